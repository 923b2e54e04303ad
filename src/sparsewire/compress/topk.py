"""The k largest magnitudes, exactly, with one pass over the vector in most steps.

The state holds a guess: a threshold that slightly more than k values should exceed.  One pass takes these
candidates out.  The k largest of all are among them and are found without another pass; the others are put
back.  If there are fewer than k candidates, because values became smaller, there is a second pass with a
guess from a sample.  If that fails too, a third pass finds the k-th largest magnitude.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy.typing as npt

from sparsewire import kernels
from sparsewire.compress.compressor import Compressor, checked_vector
from sparsewire.compress.control import Point, Trend, guess_from_sample, secant
from sparsewire.compress.schedule import Density, checked_density, count_of, density_at
from sparsewire.compress.source import Source
from sparsewire.compress.state import StepState
from sparsewire.errors import InputError
from sparsewire.kernels import Entries
from sparsewire.vector import SparseVector

__all__ = ["TopK", "TopKState"]

CANDIDATES = 1.25  # the aim, in units of k: one too few costs a pass, one too many costs nanoseconds
RISE_FOLLOWED = 0.5  # the share of a rising trend that the guess follows
MARGIN = 3.0  # standard deviations of a sample's count


@dataclass(frozen=True)
class TopKState(StepState):
    """The number of the step, a threshold that slightly more than k values should exceed, and its trend."""

    guess: float | None = None
    trend: Trend = field(default_factory=Trend)


@dataclass(frozen=True)
class TopK(Compressor[TopKState]):
    """The k entries of largest magnitude, the lowest index first among equals; k, or a density of the length.

    There are fewer if fewer are not zero.  A NaN counts as larger than infinity.

    >>> import numpy as np
    >>> top = TopK(k=2)
    >>> entries, state = top.step(np.array([1, -3, 2, 2], np.float32), top.init(4))
    >>> entries.indices, entries.values
    (array([1, 2], dtype=uint32), array([-3.,  2.], dtype=float32))
    """

    density: Density | None = None
    k: int | None = None

    def __post_init__(self) -> None:
        if (self.density is None) == (self.k is None):
            raise InputError(f"give density or k, and not both: density is {self.density} and k is {self.k}")
        if self.density is not None:
            checked_density(self.density)
        if self.k is not None and operator.index(self.k) < 1:
            raise InputError(f"k is {self.k}; at least 1 entry is sent")

    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> TopKState:
        length, _ = checked_vector(length, dtype)
        self._count(length, 0)
        return TopKState()

    def take(self, source: Source, state: TopKState) -> tuple[SparseVector, TopKState]:
        k = self._count(source.length, state.step)
        candidates, guess = _candidates(source, k, state.guess)
        count = len(candidates[0])
        if count < max(k, 1):  # fewer than k values are not zero, and these are all
            return source.vector(*candidates), TopKState(state.step + 1)
        entries, kth = source.keep_largest(candidates, k)
        trend = state.trend.after(kth)
        next_guess = _next_guess(kth, k, guess, count, trend)
        return source.vector(*entries), TopKState(state.step + 1, next_guess, trend)

    def _count(self, length: int, step: int) -> int:
        if self.k is None:
            assert self.density is not None
            return count_of(length, density_at(self.density, step))
        if self.k >= length:
            raise InputError(
                f"k is {self.k} and there are {length} values; choose fewer, or density=1 for everything"
            )
        return self.k


def _candidates(source: Source, k: int, guess: float | None) -> tuple[Entries, float]:
    """Entries that were taken out, among them the k largest of all, and the threshold that they exceed."""
    for threshold in _guesses(source, k, guess):
        entries = source.take(threshold)
        if len(entries[0]) >= k or threshold == 0:
            return entries, threshold
        source.put_back(*entries)
    threshold, ties = kernels.threshold_for_k(source.array(), k)
    return source.take(threshold, ties if threshold != 0 else 0), threshold


def _guesses(source: Source, k: int, guess: float | None) -> Iterator[float]:
    if guess is not None:
        yield guess
    yield guess_from_sample(source, k, MARGIN)


def _next_guess(kth: float, k: int, guess: float, count: int, trend: Trend) -> float | None:
    """A threshold for the next step's candidates, from today's k-th magnitude and count."""
    if not math.isfinite(kth):
        return None
    threshold = secant(Point(kth, k), Point(guess, count), CANDIDATES * k)
    # Where the threshold rises, a guess that is too low only means more candidates.
    return threshold * math.exp(min(trend.rate, RISE_FOLLOWED * trend.rate))
