"""The figures whose predictions come closest to measured times.

Least squares of log(predicted / measured) by Levenberg and Marquardt's method, over the logarithms of the
figures: cost functions are not linear in them, and a factor of two is as bad upwards as downwards.  The
longer an algorithm takes, compared with the fastest for its problem, the less it counts: nobody will choose
it, or the measurement was disturbed.  An error that all algorithms share in a problem counts a fifth, because
a choice depends on the differences.

Described in: Marquardt, SIAM J. Appl. Math. 1963.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.algorithms import ALGORITHMS
from sparsewire.cost import CostFigures, Shape

__all__ = ["Sample", "fit", "predicted_over_measured"]

Vector: TypeAlias = npt.NDArray[np.float64]

SLOWNESS_EXPONENT = 3  # the weight of a sample falls with this power of its time
COMMON_WEIGHT = 0.2  # of the error that all algorithms share in a problem
PRIOR_WEIGHT = 1e-5  # of the distance to the start: it decides what the samples do not determine
ITERATIONS = 60
SMALLEST_GAIN = 1e-4  # the share of the loss that an iteration must gain, or the search ends
STEP = 1e-6  # of the numerical derivatives, in logarithms
# No machine has figures outside these; they bound what the samples do not determine.
SMALLEST = CostFigures(1e-9, 1e5, 1e-9, 1e-13, 1e-13, 0.0, 1e-9, 1e-13)
LARGEST = CostFigures(1.0, 1e13, 1.0, 1e-5, 1e-5, 1.0, 1.0, 1e-5)
_IS_SHARE = np.array([field.name == "overlap" for field in fields(CostFigures)])


class Sample(NamedTuple):
    """One algorithm's time for one problem."""

    algorithm: str
    shape: Shape
    seconds: float


def fit(samples: Sequence[Sample], starts: Sequence[CostFigures]) -> CostFigures:
    """The best figures found from any of the starting points."""
    problems = [_Problem(samples, _to_point(start)) for start in starts]
    found = [(problem, problem.descend()) for problem in problems]
    return _to_network(min(found, key=lambda pair: pair[0].loss(pair[1]))[1])


def predicted_over_measured(network: CostFigures, samples: Sequence[Sample]) -> list[float]:
    costs = [ALGORITHMS[s.algorithm].cost(network, s.shape).seconds for s in samples]
    return [(network.startup + cost) / s.seconds for cost, s in zip(costs, samples, strict=True)]


class _Problem:
    """Minimise the loss over points: logarithms of the figures, and shares as they are."""

    def __init__(self, samples: Sequence[Sample], start: Vector) -> None:
        self._samples, self._start = samples, start
        shapes = list(dict.fromkeys(s.shape for s in samples))
        self._group = np.array([shapes.index(s.shape) for s in samples])
        seconds, best = np.array([s.seconds for s in samples]), np.full(len(shapes), np.inf)
        np.minimum.at(best, self._group, seconds)
        self._weights = (best[self._group] / seconds) ** SLOWNESS_EXPONENT

    def descend(self) -> Vector:
        point, damping = self._start, 1e-2
        for _ in range(ITERATIONS):
            before, residuals, slopes = self.loss(point), self._residuals(point), self._slopes(point)
            normal = slopes.T @ (slopes * self._weights[:, None]) + PRIOR_WEIGHT * np.eye(len(point))
            gradient = slopes.T @ (residuals * self._weights) + PRIOR_WEIGHT * (point - self._start)
            gain = 0.0
            while gain <= 0:
                ridge = damping * np.diag(np.diag(normal))
                tried = _within_bounds(point - np.linalg.solve(normal + ridge, gradient))
                gain = before - self.loss(tried)
                damping *= 4
                if damping > 1e6:
                    return point
            point, damping = tried, damping / 40
            if gain < SMALLEST_GAIN * before:
                break
        return point

    def loss(self, point: Vector) -> float:
        squares = np.sum(self._weights * self._residuals(point) ** 2)
        return float(squares + PRIOR_WEIGHT * np.sum((point - self._start) ** 2)) / 2

    def _residuals(self, point: Vector) -> Vector:
        errors = np.log(predicted_over_measured(_to_network(point), self._samples))
        means = np.bincount(self._group, self._weights * errors) / np.bincount(self._group, self._weights)
        residuals: Vector = errors - (1 - COMMON_WEIGHT) * means[self._group]
        return residuals

    def _slopes(self, point: Vector) -> Vector:
        """How each residual moves with each coordinate."""
        moved = [self._residuals(point + step) for step in STEP * np.eye(len(point))]
        slopes: Vector = (np.array(moved) - self._residuals(point)).T / STEP
        return slopes


def _to_point(network: CostFigures) -> Vector:
    """Logarithms of the figures; shares as they are."""
    figures = np.clip(astuple(network), astuple(SMALLEST), astuple(LARGEST))
    return np.where(_IS_SHARE, figures, np.log(np.where(_IS_SHARE, 1.0, figures)))


def _to_network(point: Vector) -> CostFigures:
    figures: list[Any] = np.where(_IS_SHARE, point, np.exp(point)).tolist()
    return CostFigures(*figures)


def _within_bounds(point: Vector) -> Vector:
    return np.clip(point, _to_point(SMALLEST), _to_point(LARGEST))
