"""How thresholds are predicted: from a sample before the first step, from counts after each, and their trend.

Over short distances, the number of values above a threshold falls with a power of the threshold.  That is a
straight line in a plot of logarithms, so predictions are made with logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsewire import kernels
from sparsewire.compress.source import Source
from sparsewire.compress.state import State
from sparsewire.vector import Array

__all__ = ["Point", "Trend", "guess_from_sample", "kth_largest", "secant"]

# How steeply log(threshold) falls with log(count).  Normal values at 1% have 0.13, and at 0.1% 0.09; with
# error feedback they crowd below the threshold and have 0.07; a tail like 1 / x^a has 1 / a.
USUAL_SLOPE = 0.1
SLOPES = (0.01, 1.0)
FARTHEST = math.log(4)  # in log(count): a line through two near points says nothing about far ones

NEWEST_WEIGHT = 0.25  # of the newest change in a trend
LARGEST_CHANGE = 0.2  # of log(threshold) in one step; larger changes are jumps, which are no trend


@dataclass(frozen=True)
class Point:
    """A threshold, and the number of values that exceed or reach it."""

    threshold: float
    count: int


@dataclass(frozen=True)
class Trend(State):
    """How fast the right threshold changes, as an average over the last few steps.

    With error feedback it rises for many steps after the first.  After gradients have become smaller it falls
    for as long, while the residual is sent.  A guess that ignores this is wrong in each of these steps.
    """

    latest: float | None = None
    rate: float = 0.0  # of the logarithm, per step

    def after(self, threshold: float) -> Trend:
        """The trend after one more step; a threshold that is zero or not finite changes nothing."""
        if not _has_logarithms(Point(threshold, 1)):
            return self
        threshold = float(threshold)  # integer values have an integer threshold, and a state has floats
        if self.latest is None:
            return Trend(threshold)
        change = math.log(threshold) - math.log(self.latest)
        bounded = max(-LARGEST_CHANGE, min(LARGEST_CHANGE, change))
        return Trend(threshold, self.rate + NEWEST_WEIGHT * (bounded - self.rate))


def guess_from_sample(source: Source, k: int, margin: float = 0.0) -> float:
    """A threshold that about k values exceed; `margin` adds so many standard deviations to the count."""
    sample = source.sample()
    if len(sample) == 0:
        return 0.0
    expected = k * len(sample) / source.length
    wanted = math.ceil(expected + (margin * math.sqrt(expected) if len(sample) < source.length else 0))
    # Entries exceed a threshold strictly, so it is the magnitude behind the last one that is wanted.
    return kth_largest(sample, wanted + 1) if wanted < len(sample) else 0.0


def kth_largest(values: Array, k: int) -> float:
    """The k-th largest magnitude."""
    return kernels.threshold_for_k(values, k)[0]


def secant(near: Point, other: Point, target: float) -> float:
    """The threshold that `target` values exceed, on the line through two points, starting at the first.

    The slope of the line is limited to what distributions have, and the distance to what a line predicts.  A
    point whose numbers are zero or not finite has no logarithms and is ignored.
    """
    if not _has_logarithms(near):
        return near.threshold
    distance = math.log(target / near.count)
    step = -_slope(near, other) * max(-FARTHEST, min(FARTHEST, distance))
    return near.threshold * math.exp(step)


def _slope(a: Point, b: Point) -> float:
    if not _has_logarithms(b) or a.count == b.count or a.threshold == b.threshold:
        return USUAL_SLOPE
    slope = -(math.log(a.threshold) - math.log(b.threshold)) / math.log(a.count / b.count)
    return max(SLOPES[0], min(SLOPES[1], slope))


def _has_logarithms(point: Point) -> bool:
    return point.count > 0 and point.threshold > 0 and math.isfinite(point.threshold)
