"""Thresholds from what is known: a sample before the first step, counts after each, and their trend.

Over short distances, counts of entries fall with a power of the threshold.  So thresholds and counts are
compared by their logarithms, where that is a straight line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsewire import kernels
from sparsewire.compress.base import Source, State
from sparsewire.vector import Array

__all__ = ["Point", "Trend", "guess_from_sample", "kth_largest", "secant"]

# How steeply log(threshold) falls with log(count).  Normal values at 1% have 0.13, and at 0.1% 0.09; with
# error feedback they crowd below the threshold and have 0.07; a tail like 1 / x^a has 1 / a.
USUAL_SLOPE = 0.1
SLOPES = (0.01, 1.0)
FARTHEST = math.log(4)  # in log(count): a line through two near points says nothing about far ones


# Of a trend: how much the newest change counts, and the largest change of log(threshold) that is not a jump.
NEWEST = 0.25
LARGEST = 0.2


@dataclass(frozen=True)
class Point:
    """So many values exceed, or reach, this threshold."""

    threshold: float
    count: int


@dataclass(frozen=True)
class Trend(State):
    """How fast the threshold that would have been right changes, as an average over the last few steps.

    With error feedback it rises for many steps after the first, and falls for as long after gradients have
    become smaller, while what waits is sent.  A guess that ignores this is wrong in each of these steps.
    """

    latest: float | None = None
    rate: float = 0.0  # of the logarithm, per step

    def after(self, threshold: float) -> Trend:
        """The trend when one more such threshold is known; one that is zero or not finite tells nothing."""
        if not _is_on_the_plot(Point(threshold, 1)):
            return self
        threshold = float(threshold)  # of integers it is one, and a state has one kind of number
        if self.latest is None:
            return Trend(threshold)
        change = math.log(threshold) - math.log(self.latest)
        bounded = max(-LARGEST, min(LARGEST, change))
        return Trend(threshold, self.rate + NEWEST * (bounded - self.rate))


def guess_from_sample(source: Source, k: int, margin: float = 0.0) -> float:
    """A threshold that about k values exceed; `margin` adds so many standard deviations to the count."""
    sample = source.sample()
    if len(sample) == 0:
        return 0.0
    expected = k * len(sample) / source.length
    wanted = math.ceil(expected + (margin * math.sqrt(expected) if len(sample) < source.length else 0))
    return kth_largest(sample, wanted + 1) if wanted < len(sample) else 0.0  # a strict threshold: one below


def kth_largest(values: Array, k: int) -> float:
    """The k-th largest magnitude."""
    return kernels.threshold_for_k(values, k)[0]


def secant(near: Point, other: Point, target: float) -> float:
    """The threshold that `target` values exceed, on the line through two points, starting at the first.

    The slope of the line is held to what distributions have, and the distance to what a line is good for.  A
    point that is not on the plot, because a number is zero or not finite, tells nothing.
    """
    if not _is_on_the_plot(near):
        return near.threshold
    distance = math.log(target / near.count)
    step = -_slope(near, other) * max(-FARTHEST, min(FARTHEST, distance))
    return near.threshold * math.exp(step)


def _slope(a: Point, b: Point) -> float:
    if not _is_on_the_plot(b) or a.count == b.count or a.threshold == b.threshold:
        return USUAL_SLOPE
    slope = -(math.log(a.threshold) - math.log(b.threshold)) / math.log(a.count / b.count)
    return max(SLOPES[0], min(SLOPES[1], slope))


def _is_on_the_plot(point: Point) -> bool:
    return point.count > 0 and point.threshold > 0 and math.isfinite(point.threshold)
