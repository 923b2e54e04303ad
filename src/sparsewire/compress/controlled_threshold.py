"""A threshold that follows the values, so that about k of them exceed it: one pass, and no candidates.

After each step the count says which threshold would have been right: if there were k or more it is among
the entries, otherwise it lies on the line through two points of them.  The next threshold is that one, moved
on by its trend.  A count that is far too low says little; then the next threshold comes from a sample of the
next values, which is taken before the pass.

Ok-Topk (Li and Hoefler, PPoPP'22) reuses a threshold for 32 to 128 steps and corrects it by fixed factors, so
that a cold start with error feedback sends many times what was asked for.  Here there is a hard cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy.typing as npt

from sparsewire.compress.base import Compressor, Source, State, checked_vector
from sparsewire.compress.control import Point, Trend, guess_from_sample, kth_largest, secant
from sparsewire.compress.schedule import Density, checked_density, count_of, density_at
from sparsewire.vector import Array, SparseVector

__all__ = ["ControlState", "ControlledThreshold"]

# Counts in units of k.  From 0.8 to 1.25 is what Ok-Topk's code calls close (its band for BERT).  What is too
# much can be put back and what is missing cannot be found in the same pass, so the aim is a little high.
FEW = 0.8
AIM = 1.05
CAP = 1.25


@dataclass(frozen=True)
class ControlState(State):
    """The number of the step, the threshold for it (None: from a sample), and its trend."""

    step: int = 0
    threshold: float | None = None
    trend: Trend = field(default_factory=Trend)


@dataclass(frozen=True)
class ControlledThreshold(Compressor[ControlState]):
    """The entries above a threshold that is held to a density by what the steps before counted.

    There are about density * length of them, and at most 1.25 times as many: what is beyond is left, the
    smallest first.  Where that is less than a few hundred, chance alone moves the count out of 0.8 to 1.25
    times as many in some of the steps.

    >>> import numpy as np
    >>> held = ControlledThreshold(density=0.01)
    >>> entries, state = held.step(np.arange(1000, dtype=np.float32), held.init(1000))
    >>> entries.nnz
    10
    """

    density: Density

    def __post_init__(self) -> None:
        checked_density(self.density)

    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> ControlState:
        checked_vector(length, dtype)
        return ControlState()

    def take(self, source: Source, state: ControlState) -> tuple[SparseVector, ControlState]:
        k = count_of(source.length, density_at(self.density, state.step))
        threshold = guess_from_sample(source, k) if state.threshold is None else state.threshold
        entries = source.take(threshold)
        threshold_after, trend = _next_threshold(threshold, entries[1], k, state.trend)
        cap = math.ceil(CAP * k)
        if len(entries[0]) > cap:
            entries, _ = source.keep_largest(entries, cap)
        return source.vector(*entries), ControlState(state.step + 1, threshold_after, trend)


def _next_threshold(threshold: float, values: Array, k: int, trend: Trend) -> tuple[float | None, Trend]:
    if len(values) == 0:
        return None, Trend()
    right = _right_threshold(threshold, values, AIM * k)
    trend = trend.after(right)
    if len(values) < FEW * k or not math.isfinite(right):
        return None, trend
    return right * math.exp(trend.rate), trend


def _right_threshold(threshold: float, values: Array, wanted: float) -> float:
    """What would have given the count that is wanted."""
    count, half = len(values), (len(values) + 1) // 2
    if count > wanted:
        return kth_largest(values, math.ceil(wanted))
    return secant(Point(threshold, count), Point(kth_largest(values, half), half), wanted)
