"""Weights that a step changes only where the gradient is not zero, with the result of changing all of them.

A step of proximal gradient descent with momentum mu, step length h and penalties l1, l2 is, for every weight,

    v = mu v + g;    w = soft(w - h v, h l1) / (1 + h l2 / (1 - mu));    soft(x, t) = sign(x) max(0, |x| - t)

also where g is zero.  There, the change is postponed until the weight is needed.  That is possible because

    l2        all weights shrink by the same factor: w is stored as scale * u, and the step changes the scale
    l1        without gradients a weight moves to zero by the sum of all thresholds since, in units of u
    momentum  without gradients a velocity decays by mu in each step, so its way is a sum over the steps since

The stamp of a weight is the step after which it was last brought up to date.  What was postponed is a
function of the stamp alone, through one number for each step.  Weights are only written where the *sum* of
the ranks' gradients is not zero, so all ranks write the same weights in the same step and have the same bits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire import kernels
from sparsewire.errors import InputError
from sparsewire.linear.problem import PIECE, Array

__all__ = ["Weights", "make_weights"]

Places: TypeAlias = "npt.NDArray[Any] | slice"

EVERYWHERE = slice(None)
HORIZON = 1 << 16  # a stamp has 16 bits, so all weights are brought up to date after so many steps
FORGOTTEN = 1e-20  # a velocity that decayed to this share counts as zero


class Weights(ABC):
    """A vector of weights; the module says how it is stored.  ``places`` are indices, or a slice."""

    smallest_scale = 1e-9  # below, u = w / scale could become too large for float32

    def __init__(self, start: Array, l2: float = 0.0) -> None:
        self._u, self._l2, self._scale = start.copy(), l2, 1.0

    def at(self, places: Places) -> npt.NDArray[np.float64]:
        """The weights at these places."""
        weights: npt.NDArray[np.float64] = self._current(places).astype(np.float64)
        weights *= self._scale
        return weights

    def step(self, places: Places, gradient: Array, length: float) -> None:
        """Make one step of this length; the gradient is zero at all other places."""
        if self._scale < self.smallest_scale or self._must_settle():
            self.settle()
        self._move(places, gradient, length / self._scale)
        self._scale /= 1.0 + length * self._l2

    def settle(self) -> None:
        """Bring all weights up to date, which takes time for every weight."""
        if self._is_settled():
            return
        for first in range(0, len(self._u), PIECE):  # in pieces, so that temporary arrays stay in the cache
            self._settle(slice(first, first + PIECE))
        self._scale = 1.0

    def now(self) -> Array:
        """All weights, up to date.  Not a copy."""
        self.settle()
        return self._u

    def result(self) -> Array:
        """The weights to use after training; by default those after the last step.  Not a copy."""
        return self.now()

    def _must_settle(self) -> bool:
        """Can no further step be postponed?"""
        return False

    def _settle(self, piece: slice) -> None:
        np.multiply(self._current(piece), self._u.dtype.type(self._scale), out=self._u[piece])

    def _is_settled(self) -> bool:
        return self._scale == 1.0

    @abstractmethod
    def _current(self, places: Places) -> Array:
        """u at these places, up to date."""

    @abstractmethod
    def _move(self, places: Places, gradient: Array, length: float) -> None:
        """Make the step without l2; ``length`` is in units of u."""


class PlainWeights(Weights):
    """Weights without momentum and l1, for which nothing is postponed."""

    def _current(self, places: Places) -> Array:
        return self._u[places]

    def _move(self, places: Places, gradient: Array, length: float) -> None:
        _add(self._u, places, gradient, -length)


class AveragedWeights(PlainWeights):
    """Weights whose result is their mean over all steps (Polyak and Juditsky, 1992).

    S is the sum of the scales after each step so far.  A step that adds d to u adds d only to later weights,
    so the sum of the weights so far is S u minus the sum of all d times S before their step.  ``_correction``
    is this second sum.  A step changes it only where the gradient is not zero.
    """

    smallest_scale = 0.5  # S u and the correction grow as the scale falls, but their difference does not

    def __init__(self, start: Array, l2: float = 0.0) -> None:
        super().__init__(start, l2)
        self._sum_of_scales, self._steps = 0.0, 0
        self._correction = np.zeros_like(start)

    def step(self, places: Places, gradient: Array, length: float) -> None:
        super().step(places, gradient, length)
        self._sum_of_scales += self._scale
        self._steps += 1

    def settle(self) -> None:
        super().settle()
        self._sum_of_scales = 0.0

    def _is_settled(self) -> bool:
        return super()._is_settled() and self._sum_of_scales == 0.0

    def _settle(self, piece: slice) -> None:
        self._correction[piece] -= self._u.dtype.type(self._sum_of_scales) * self._u[piece]
        super()._settle(piece)

    def result(self) -> Array:
        self.settle()
        return -self._correction / self._u.dtype.type(self._steps) if self._steps else self._u

    def _move(self, places: Places, gradient: Array, length: float) -> None:
        super()._move(places, gradient, length)
        _add(self._correction, places, gradient, -length * self._sum_of_scales)


class StampedWeights(Weights):
    """Weights whose changes are postponed; ``_postponed`` has one number for each step, read at a stamp."""

    def __init__(self, start: Array, l2: float = 0.0) -> None:
        super().__init__(start, l2)
        self._stamps = np.zeros(len(start), np.uint16)
        self._now = 0  # steps since all weights were up to date
        self._postponed = np.zeros(HORIZON)

    def settle(self) -> None:
        super().settle()
        self._stamps[:] = 0
        self._postponed[: self._now + 1] = 0.0
        self._now = 0

    def _is_settled(self) -> bool:
        return super()._is_settled() and self._now == 0

    def _must_settle(self) -> bool:
        return self._now == HORIZON - 1


class L1Weights(StampedWeights):
    """Weights with the penalty l1; ``_postponed`` has the sum of all thresholds up to each step."""

    def __init__(self, start: Array, l1: float, l2: float = 0.0) -> None:
        super().__init__(start, l2)
        self._l1 = l1

    def _current(self, places: Places) -> Array:
        return _soft(self._u[places], self._postponed[self._now] - self._postponed[self._stamps[places]])

    def _move(self, places: Places, gradient: Array, length: float) -> None:
        moved = self._current(places) - gradient * self._u.dtype.type(length)
        threshold = length * self._l1
        self._u[places] = _soft(moved, threshold)
        self._now += 1
        self._stamps[places] = self._now
        self._postponed[self._now] = self._postponed[self._now - 1] + threshold


class MomentumWeights(StampedWeights):
    """Weights with momentum; ``_postponed`` has the way until now of a velocity of 1 after each step."""

    def __init__(self, start: Array, momentum: float, l2: float = 0.0) -> None:
        # A gradient moves weights by 1 / (1 - momentum) steps in all, so the penalty must do so too.
        super().__init__(start, l2 / (1.0 - momentum))
        self._momentum = momentum
        self._velocity = np.zeros_like(start)
        self._decay = momentum ** np.arange(float(HORIZON))  # what remains of a velocity, by its age in steps
        remembered = min(math.ceil(math.log(FORGOTTEN) / math.log(momentum)), HORIZON - 1)
        self._oldest_first = self._decay[remembered:0:-1].copy()

    def _settle(self, piece: slice) -> None:
        super()._settle(piece)
        self._velocity[piece] = self._velocity_at(piece)

    def _current(self, places: Places) -> Array:
        way = self._postponed[self._stamps[places]].astype(self._u.dtype)
        current: Array = self._u[places] - self._velocity[places] * way
        return current

    def _velocity_at(self, places: Places) -> Array:
        age = self._now - self._stamps[places].astype(np.int32)
        velocity: Array = self._velocity[places] * self._decay[age].astype(self._u.dtype)
        return velocity

    def _move(self, places: Places, gradient: Array, length: float) -> None:
        velocity = self._velocity_at(places) * self._u.dtype.type(self._momentum) + gradient
        self._u[places] = self._current(places) - velocity * self._u.dtype.type(length)
        self._velocity[places] = velocity
        self._now += 1
        since = min(self._now, len(self._oldest_first))
        self._postponed[self._now - since : self._now] += length * self._oldest_first[-since:]
        self._stamps[places] = self._now


def make_weights(
    start: Array, *, l1: float = 0.0, l2: float = 0.0, momentum: float = 0.0, average: bool = False
) -> Weights:
    """Weights that begin at ``start``, with these penalties and this kind of step."""
    if momentum and l1:
        raise InputError(f"momentum ({momentum:g}) does not go with an L1 penalty: set one of them to 0")
    if average and (momentum or l1):
        raise InputError("averaging goes with neither momentum nor an L1 penalty: leave out one of them")
    if average:
        return AveragedWeights(start, l2)
    if momentum:
        return MomentumWeights(start, momentum, l2)
    return L1Weights(start, l1, l2) if l1 else PlainWeights(start, l2)


def _add(to: Array, places: Places, values: Array, factor: float) -> None:
    terms = values * to.dtype.type(factor)
    if isinstance(places, slice):
        to[places] += terms
    else:
        kernels.scatter_add(to, places, terms)


def _soft(x: Array, threshold: Any) -> Array:
    """x moved towards zero by the threshold, and not beyond zero."""
    shrunk: Array = np.maximum(np.abs(x) - threshold, 0.0).astype(x.dtype)
    return np.copysign(shrunk, x)
