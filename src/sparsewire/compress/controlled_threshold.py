"""A threshold that follows the values, so that about k of them exceed it: one pass, and no candidates.

After each step the entries show which threshold would have been right.  If there were k or more, it is the
k-th magnitude; otherwise it is extrapolated from two magnitudes.  The next threshold is that one, moved by
its trend.  If there were far too few, the next threshold comes from a sample of the next values.

Ok-Topk (Li and Hoefler, PPoPP'22) reuses a threshold for 32 to 128 steps and corrects it by fixed factors.
After a cold start with error feedback it sends many times what was asked for.  Here there is a hard cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy.typing as npt

from sparsewire.compress.compressor import Compressor, checked_vector
from sparsewire.compress.control import Point, Trend, guess_from_sample, kth_largest, secant
from sparsewire.compress.schedule import Density, checked_density, count_of, density_at
from sparsewire.compress.source import Source
from sparsewire.compress.state import State
from sparsewire.vector import Array, SparseVector

__all__ = ["ControlState", "ControlledThreshold"]

# Counts in units of k.  Ok-Topk's code for BERT accepts 0.8 to 1.25.  Entries that are too many can be put
# back, and missing ones cannot be found in the same pass, so the aim is a little high.
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
    """The entries above a threshold that earlier steps have adjusted to the density.

    There are about density * length of them, and at most 1.25 times as many: the smallest beyond that are not
    sent.  If density * length is less than a few hundred, the count leaves 0.8 to 1.25 times that number in
    some steps by chance alone.

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
    """The threshold that the wanted number of values would have exceeded."""
    count, half = len(values), (len(values) + 1) // 2
    if count > wanted:
        return kth_largest(values, math.ceil(wanted))
    return secant(Point(threshold, count), Point(kth_largest(values, half), half), wanted)
