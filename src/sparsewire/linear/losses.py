"""Loss functions: logistic, hinge, squared hinge, and squared error.

A margin is what the model computes for a row.  A target is what it should be: +1 or -1, or for the squared
error any number.  All functions work elementwise on float64 arrays.

A variable is that of the dual problem: a number that the negative slope of the loss can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import entr

__all__ = ["HINGE", "LOGISTIC", "LOSSES", "SQUARED", "SQUARED_HINGE", "Loss"]

Array: TypeAlias = npt.NDArray[np.float64]


class Loss(NamedTuple):
    """A loss, its derivative by the margin, the largest second derivative, and its part of the dual.

    The second derivative is infinite if the loss is not differentiable everywhere.  The dual value of a
    variable a is -loss*(-a), the largest number that loss(m) + a m has as a lower bound for all margins m.
    """

    name: str
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    curvature: float
    dual_value: Callable[[Array, Array], Array]


def _logistic(margins: Array, targets: Array) -> Array:
    return np.logaddexp(0.0, -targets * margins)


def _logistic_slope(margins: Array, targets: Array) -> Array:
    # This is -t / (1 + exp(t m)); unlike exp, tanh does not overflow.
    return -0.5 * targets * (1.0 - np.tanh(0.5 * targets * margins))


def _logistic_dual(variables: Array, targets: Array) -> Array:
    dual: Array = entr(targets * variables) + entr(1.0 - targets * variables)
    return dual


def _hinge(margins: Array, targets: Array) -> Array:
    return np.maximum(0.0, 1.0 - targets * margins)


def _hinge_slope(margins: Array, targets: Array) -> Array:
    return np.where(targets * margins < 1.0, -targets, 0.0)


def _hinge_dual(variables: Array, targets: Array) -> Array:
    return targets * variables


def _squared_hinge(margins: Array, targets: Array) -> Array:
    return np.square(_hinge(margins, targets))


def _squared_hinge_slope(margins: Array, targets: Array) -> Array:
    return -2.0 * targets * _hinge(margins, targets)


def _squared_hinge_dual(variables: Array, targets: Array) -> Array:
    return targets * variables - 0.25 * np.square(variables)


def _squared(margins: Array, targets: Array) -> Array:
    return 0.5 * np.square(margins - targets)


def _squared_slope(margins: Array, targets: Array) -> Array:
    return margins - targets


def _squared_dual(variables: Array, targets: Array) -> Array:
    return targets * variables - 0.5 * np.square(variables)


LOGISTIC = Loss("logistic", _logistic, _logistic_slope, 0.25, _logistic_dual)
HINGE = Loss("hinge", _hinge, _hinge_slope, np.inf, _hinge_dual)
SQUARED_HINGE = Loss("squared_hinge", _squared_hinge, _squared_hinge_slope, 2.0, _squared_hinge_dual)
SQUARED = Loss("squared", _squared, _squared_slope, 1.0, _squared_dual)
LOSSES = {loss.name: loss for loss in (LOGISTIC, HINGE, SQUARED_HINGE, SQUARED)}
