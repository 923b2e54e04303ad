"""Weights that a step changes only where the gradient is not zero, and that are as if it had changed all.

A step of proximal gradient descent with momentum mu, step length h and penalties l1, l2 is, for every weight,

    v = mu v + g;    w = soft(w - h v, h l1) / (1 + h l2 / (1 - mu));    soft(x, t) = sign(x) max(0, |x| - t)

also where g is zero.  What happens there is put off until the weight is needed, which is possible because

    l2        all weights shrink alike: w is kept as scale * u, and the step changes the scale
    l1        a weight at rest moves to zero by the sum of all thresholds since, in units of u
    momentum  a velocity at rest decays by mu each step, so the way it has gone is a sum over the steps since

A weight's stamp is the step after which it was last brought up to date.  All of it is a function of the stamp
alone, through one number for each step; and weights are only ever written where the *summed* gradient is, so
that all ranks write at the same time and hold the same bits.
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
HORIZON = 1 << 16  # steps until all weights are brought up to date: a stamp has 16 bits
FORGOTTEN = 1e-20  # what is left of a velocity that no longer counts


class Weights(ABC):
    """A vector of weights; see the module.  ``places`` are indices, or a slice."""

    smallest_scale = 1e-9  # float32 has room for u = w / scale to grow

    def __init__(self, start: Array, l2: float = 0.0) -> None:
        self._u, self._l2, self._scale = start.copy(), l2, 1.0

    def at(self, places: Places) -> npt.NDArray[np.float64]:
        """The weights there."""
        weights: npt.NDArray[np.float64] = self._current(places).astype(np.float64)
        weights *= self._scale
        return weights

    def step(self, places: Places, gradient: Array, length: float) -> None:
        """One step of this length; the gradient is zero elsewhere."""
        if self._scale < self.smallest_scale or self._is_late():
            self.settle()
        self._move(places, gradient, length / self._scale)
        self._scale /= 1.0 + length * self._l2

    def settle(self) -> None:
        """Bring all weights up to date, which takes as long as there are weights."""
        if self._is_settled():
            return
        for first in range(0, len(self._u), PIECE):  # in pieces: temporary arrays stay in the cache
            self._settle(slice(first, first + PIECE))
        self._scale = 1.0

    def now(self) -> Array:
        """All of them, up to date; not a copy."""
        self.settle()
        return self._u

    def result(self) -> Array:
        """What the steps have led to: by default, where they are now.  Not a copy."""
        return self.now()

    def _is_late(self) -> bool:
        """Whether not even one more step can be put off."""
        return False

    def _settle(self, piece: slice) -> None:
        np.multiply(self._current(piece), self._u.dtype.type(self._scale), out=self._u[piece])

    def _is_settled(self) -> bool:
        return self._scale == 1.0

    @abstractmethod
    def _current(self, places: Places) -> Array:
        """u there, up to date."""

    @abstractmethod
    def _move(self, places: Places, gradient: Array, length: float) -> None:
        """The step, but for l2, in units of u."""


class Plain(Weights):
    """Without momentum and l1 nothing has to be put off."""

    def _current(self, places: Places) -> Array:
        return self._u[places]

    def _move(self, places: Places, gradient: Array, length: float) -> None:
        _add(self._u, places, gradient, -length)


class Averaged(Plain):
    """The result is the mean of the weights after each step (Polyak and Juditsky, 1992).

    With S the sum of the scales so far, the sum of all weights so far is S u, less what each step added to u
    times S as it was before that step.  So a step touches no more than the gradient does.
    """

    smallest_scale = 0.5  # the two grow as the scale falls, and their difference does not

    def __init__(self, start: Array, l2: float = 0.0) -> None:
        super().__init__(start, l2)
        self._scales, self._steps = 0.0, 0
        self._less = np.zeros_like(start)

    def step(self, places: Places, gradient: Array, length: float) -> None:
        super().step(places, gradient, length)
        self._scales += self._scale
        self._steps += 1

    def settle(self) -> None:
        super().settle()
        self._scales = 0.0

    def _is_settled(self) -> bool:
        return super()._is_settled() and self._scales == 0.0

    def _settle(self, piece: slice) -> None:
        self._less[piece] -= self._u.dtype.type(self._scales) * self._u[piece]
        super()._settle(piece)

    def result(self) -> Array:
        self.settle()
        return -self._less / self._u.dtype.type(self._steps) if self._steps else self._u

    def _move(self, places: Places, gradient: Array, length: float) -> None:
        super()._move(places, gradient, length)
        _add(self._less, places, gradient, -length * self._scales)


class Stamped(Weights):
    """What puts off by a number for each step: ``_due``, to be read at a weight's stamp."""

    def __init__(self, start: Array, l2: float = 0.0) -> None:
        super().__init__(start, l2)
        self._stamps = np.zeros(len(start), np.uint16)
        self._now = 0  # steps since all were up to date
        self._due = np.zeros(HORIZON)

    def settle(self) -> None:
        super().settle()
        self._stamps[:] = 0
        self._due[: self._now + 1] = 0.0
        self._now = 0

    def _is_settled(self) -> bool:
        return super()._is_settled() and self._now == 0

    def _is_late(self) -> bool:
        return self._now == HORIZON - 1


class Sparse(Stamped):
    """With the penalty l1: ``_due`` is the sum of thresholds so far."""

    def __init__(self, start: Array, l1: float, l2: float = 0.0) -> None:
        super().__init__(start, l2)
        self._l1 = l1

    def _current(self, places: Places) -> Array:
        return _soft(self._u[places], self._due[self._now] - self._due[self._stamps[places]])

    def _move(self, places: Places, gradient: Array, length: float) -> None:
        moved = self._current(places) - gradient * self._u.dtype.type(length)
        threshold = length * self._l1
        self._u[places] = _soft(moved, threshold)
        self._now += 1
        self._stamps[places] = self._now
        self._due[self._now] = self._due[self._now - 1] + threshold


class Moving(Stamped):
    """With momentum: ``_due`` is the way that a velocity of 1, there after that step, has gone since."""

    def __init__(self, start: Array, momentum: float, l2: float = 0.0) -> None:
        # In the end a gradient moves the weights by 1 / (1 - momentum) times a step, and so must the penalty.
        super().__init__(start, l2 / (1.0 - momentum))
        self._momentum = momentum
        self._velocity = np.zeros_like(start)
        self._left = momentum ** np.arange(float(HORIZON))  # of a velocity, by its age in steps
        remembered = min(math.ceil(math.log(FORGOTTEN) / math.log(momentum)), HORIZON - 1)
        self._oldest_first = self._left[remembered:0:-1].copy()

    def _settle(self, piece: slice) -> None:
        super()._settle(piece)
        self._velocity[piece] = self._velocity_at(piece)

    def _current(self, places: Places) -> Array:
        way = self._due[self._stamps[places]].astype(self._u.dtype)
        current: Array = self._u[places] - self._velocity[places] * way
        return current

    def _velocity_at(self, places: Places) -> Array:
        age = self._now - self._stamps[places].astype(np.int32)
        velocity: Array = self._velocity[places] * self._left[age].astype(self._u.dtype)
        return velocity

    def _move(self, places: Places, gradient: Array, length: float) -> None:
        velocity = self._velocity_at(places) * self._u.dtype.type(self._momentum) + gradient
        self._u[places] = self._current(places) - velocity * self._u.dtype.type(length)
        self._velocity[places] = velocity
        self._now += 1
        since = min(self._now, len(self._oldest_first))
        self._due[self._now - since : self._now] += length * self._oldest_first[-since:]
        self._stamps[places] = self._now


def make_weights(
    start: Array, *, l1: float = 0.0, l2: float = 0.0, momentum: float = 0.0, average: bool = False
) -> Weights:
    """Weights that begin there and move so."""
    if momentum and l1:
        raise InputError(f"momentum ({momentum:g}) does not go with an L1 penalty: set one of them to 0")
    if average and (momentum or l1):
        raise InputError("averaging goes with neither momentum nor an L1 penalty: leave out one of them")
    if average:
        return Averaged(start, l2)
    if momentum:
        return Moving(start, momentum, l2)
    return Sparse(start, l1, l2) if l1 else Plain(start, l2)


def _add(to: Array, places: Places, values: Array, factor: float) -> None:
    terms = values * to.dtype.type(factor)
    if isinstance(places, slice):
        to[places] += terms
    else:
        kernels.scatter_add(to, places, terms)


def _soft(x: Array, threshold: Any) -> Array:
    """x, moved to zero by that much, and not beyond."""
    shrunk: Array = np.maximum(np.abs(x) - threshold, 0.0).astype(x.dtype)
    return np.copysign(shrunk, x)
