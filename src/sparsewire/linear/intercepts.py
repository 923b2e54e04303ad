"""The best intercepts for given weights: the zeros of increasing functions, by regula falsi (Illinois).

A zero is first enclosed, by steps that double.  Then the secant through both ends gives the next point.  If
the same end stays twice, its value counts half, so that both ends move.  All outputs are searched at once,
because each value is a sum over all ranks.

Paper: Dowell and Jarratt, A modified regula falsi method for computing the root of an equation, BIT 1971.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsewire.linear.batches import Doubles

__all__ = ["zero_of_increasing"]

MOST_DOUBLINGS = 20
MOST_SECANTS = 10
ACCURATE = 1e-2  # of the first value; the next pass moves the zero by more


def zero_of_increasing(function: Callable[[Doubles], Doubles], start: Doubles, reach: Doubles) -> Doubles:
    """Where each component of an increasing function is nearly zero, searched from ``start`` on.

    The first step has the length ``reach``.  Where a component has no zero, the search ends far away.

    >>> zero_of_increasing(lambda x: x - 3.0, np.array([0.0]), np.array([1.0]))
    array([3.])
    """
    near, value = start, function(start)
    accurate, step = ACCURATE * np.abs(value), -np.sign(value) * reach
    far, beyond = near + step, function(near + step)
    for _ in range(MOST_DOUBLINGS):
        is_short = beyond * value > 0
        if not is_short.any():
            break
        step = 2.0 * step
        near, value = np.where(is_short, far, near), np.where(is_short, beyond, value)
        far = np.where(is_short, far + step, far)
        beyond = function(far)
    for _ in range(MOST_SECANTS):
        if (np.abs(beyond) <= accurate).all():
            break
        rise = beyond - value
        middle = far - np.divide(beyond * (far - near), rise, out=np.zeros_like(rise), where=rise != 0)
        at_middle = function(middle)
        has_crossed = at_middle * beyond < 0
        near = np.where(has_crossed, far, near)
        value = np.where(has_crossed, beyond, 0.5 * value)
        far, beyond = middle, at_middle
    return far
