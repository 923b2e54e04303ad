"""Loss functions: logistic, hinge, squared hinge, and squared error.

A margin is what the model computes for a row.  A target is what it should be: +1 or -1, or for the squared
error any number.  All functions work elementwise on float64 arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["HINGE", "LOGISTIC", "LOSSES", "SQUARED", "SQUARED_HINGE", "Loss"]

Array: TypeAlias = npt.NDArray[np.float64]


class Loss(NamedTuple):
    """A loss, its derivative by the margin, and the largest second derivative.

    The last is infinite if the loss is not differentiable everywhere.
    """

    name: str
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    curvature: float


def _logistic(margins: Array, targets: Array) -> Array:
    return np.logaddexp(0.0, -targets * margins)


def _logistic_slope(margins: Array, targets: Array) -> Array:
    # This is -t / (1 + exp(t m)); unlike exp, tanh does not overflow.
    return -0.5 * targets * (1.0 - np.tanh(0.5 * targets * margins))


def _hinge(margins: Array, targets: Array) -> Array:
    return np.maximum(0.0, 1.0 - targets * margins)


def _hinge_slope(margins: Array, targets: Array) -> Array:
    return np.where(targets * margins < 1.0, -targets, 0.0)


def _squared_hinge(margins: Array, targets: Array) -> Array:
    return np.square(_hinge(margins, targets))


def _squared_hinge_slope(margins: Array, targets: Array) -> Array:
    return -2.0 * targets * _hinge(margins, targets)


def _squared(margins: Array, targets: Array) -> Array:
    return 0.5 * np.square(margins - targets)


def _squared_slope(margins: Array, targets: Array) -> Array:
    return margins - targets


LOGISTIC = Loss("logistic", _logistic, _logistic_slope, 0.25)
HINGE = Loss("hinge", _hinge, _hinge_slope, np.inf)
SQUARED_HINGE = Loss("squared_hinge", _squared_hinge, _squared_hinge_slope, 2.0)
SQUARED = Loss("squared", _squared, _squared_slope, 1.0)
LOSSES = {loss.name: loss for loss in (LOGISTIC, HINGE, SQUARED_HINGE, SQUARED)}
