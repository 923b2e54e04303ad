"""Generated rows that resemble two well-known data sets, URL and Webspam.

The number of rows that have a feature follows Zipf's law: the feature at place i of popularity is in a row
with probability min(1, (i / scale)^-exponent), independently of all others.  The scale follows from the mean
number of features of a row.  The exponents are such that in a data set of the published size (2,396,130 and
350,000 rows) about 97% of all features are in at least one row.  Popular features have any index.

A label says whether the weighted sum of a row's more popular features, plus a little noise, is above a
threshold.  The weights are hidden, and a linear model can learn them.

Rows are generated in blocks, each with its own random numbers.  Therefore a data set is the same for any
number of ranks, a longer one begins with a shorter one, and a rank generates only its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.compress.randomk import checked_seed
from sparsewire.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["url_like", "webspam_like"]

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

BLOCK = 128  # rows
# Features in more than this share of rows are drawn one by one, the others as points of a Poisson process.
# Two points may fall on one feature, which then counts once: rows have 0.2% fewer features than they should.
POPULAR = 1 / 16
REAL = 64  # features of URL that have real values
INFORMATIVE = 256  # features that labels depend on
NOISE = 0.1  # relative to the deviation of the sums that labels depend on; it makes 3% of the labels wrong
MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Fibonacci hashing (Knuth, TAOCP 6.4)


def url_like(
    rows: int,
    *,
    features: int = 3_231_961,
    nonzeros: float = 115,
    seed: int = 0,
    part: tuple[int, int] = (0, 1),
    dtype: npt.DTypeLike = np.float32,
) -> tuple[csr_array, Integers]:
    """Rows like those of URL (Ma et al., ICML 2009), and labels, of which a third are +1 and the others -1.

    Values are 1, except for 64 popular features, whose values are anywhere between 0 and 1.  ``nonzeros`` is
    the mean number of entries of a row.  ``part`` is a rank and the number of ranks; the result is that
    rank's share of the rows.  Another seed has other hidden weights: test with more rows of the same seed.

    >>> data, labels = url_like(1000, features=50_000, nonzeros=20, part=(1, 4))
    >>> data.shape, labels.shape
    ((250, 50000), (250,))
    """
    law = Zipf.with_mean(nonzeros, features, exponent=1.15)
    return _generated(law, MostlyOnes(), 1 / 3, rows, seed, part, dtype)


def webspam_like(
    rows: int,
    *,
    features: int = 16_609_143,
    nonzeros: float = 3_700,
    seed: int = 0,
    part: tuple[int, int] = (0, 1),
    dtype: npt.DTypeLike = np.float32,
) -> tuple[csr_array, Integers]:
    """Rows like those of Webspam, with trigrams, and labels, of which 60% are +1 and the others -1.

    Values are positive, larger for popular features, and rows have a norm of 1.  The arguments are those of
    ``url_like``.
    """
    law = Zipf.with_mean(nonzeros, features, exponent=1.2)
    return _generated(law, UnitRows(law), 0.6, rows, seed, part, dtype)


@dataclass(frozen=True)
class Zipf:
    """The law by which rows have features, given by their places 1, 2, ... in popularity."""

    features: int
    exponent: float  # above 1
    scale: float
    mean: float  # number of features in a row

    @classmethod
    def with_mean(cls, nonzeros: float, features: int, exponent: float) -> Zipf:
        """The law by which a row has so many features on average, or all of them if there are no more."""
        from scipy.optimize import brentq
        from scipy.special import zeta

        if not isinstance(features, int) or not 1 <= features <= 2**48:
            raise InputError(f"features is {features!r}; it must be a number between 1 and 2^48")
        if not 0 < nonzeros < math.inf:
            raise InputError(f"nonzeros is {nonzeros!r}; it must be a positive number")
        if nonzeros >= features:
            return cls(features, exponent, float(features), float(features))

        def excess(scale: float) -> float:
            always = min(features, int(scale))
            others = zeta(exponent, always + 1) - zeta(exponent, features + 1)
            return float(always + scale**exponent * others - nonzeros)

        return cls(features, exponent, float(brentq(excess, 0.0, nonzeros + 1.0)), float(nonzeros))

    def probability(self, places: Integers) -> Floats:
        """The probability that a row has the feature at each place."""
        return np.minimum(1.0, (places / self.scale) ** -self.exponent)

    def popular(self) -> Integers:
        """The places of the features that a row has with a probability of at least ``POPULAR``."""
        return np.arange(1, min(self.features, math.ceil(self.scale * POPULAR ** (-1 / self.exponent))) + 1)

    def draw(self, generator: np.random.Generator, rows: int) -> tuple[Integers, Integers]:
        """Pairs of the number of a row and the place of a feature that it has; pairs may occur repeatedly."""
        popular = self.popular()
        drawn = generator.random((rows, len(popular)), np.float32) < self.probability(popular)
        row, column = np.nonzero(drawn)
        other_row, other_places = self._draw_others(generator, rows)
        return np.concatenate([row, other_row]), np.concatenate([popular[column], other_places])

    def _draw_others(self, generator: np.random.Generator, rows: int) -> tuple[Integers, Integers]:
        """Points of a Poisson process whose intensity at x is (x / scale)^-exponent, rounded to places."""
        power = 1 - self.exponent
        begin, end = (len(self.popular()) + 0.5) ** power, (self.features + 0.5) ** power
        counts = generator.poisson(self.scale**self.exponent * (end - begin) / power, rows)
        points = (begin + (end - begin) * generator.random(counts.sum())) ** (1 / power)
        places = np.minimum((points + 0.5).astype(np.int64), self.features)
        return np.repeat(np.arange(rows), counts), places


class Values(Protocol):
    """The law by which the entries of a row have values."""

    def draw(self, generator: np.random.Generator, row: Integers, places: Integers) -> Floats:
        """A value for each pair of a row and a place."""

    def moments(self, places: Integers) -> tuple[Floats, Floats]:
        """Mean and mean square of a value at each place."""


class MostlyOnes:
    """Values that are uniform between 0 and 1 at the odd places below 2 ``REAL``, and 1 everywhere else."""

    def draw(self, generator: np.random.Generator, row: Integers, places: Integers) -> Floats:
        values = np.ones(len(places))
        real = self._is_real(places)
        values[real] -= generator.random(np.count_nonzero(real))  # above 0, because a zero is no entry
        return values

    def moments(self, places: Integers) -> tuple[Floats, Floats]:
        real = self._is_real(places)
        return np.where(real, 1 / 2, 1.0), np.where(real, 1 / 3, 1.0)

    def _is_real(self, places: Integers) -> npt.NDArray[np.bool_]:
        is_real: npt.NDArray[np.bool_] = (places % 2 == 1) & (places < 2 * REAL)
        return is_real


@dataclass(frozen=True)
class UnitRows:
    """Values of an exponential distribution with mean place^-1/2, divided by the norm of their row."""

    law: Zipf

    def draw(self, generator: np.random.Generator, row: Integers, places: Integers) -> Floats:
        values = generator.standard_exponential(len(places)) / np.sqrt(places)
        return values / np.sqrt(np.bincount(row, np.square(values)))[row]

    def moments(self, places: Integers) -> tuple[Floats, Floats]:
        popular = self.law.popular()  # the others add less than 1% to the square of a norm
        squared_norm = np.sum(self.law.probability(popular) * 2 / popular)
        return 1 / np.sqrt(places * squared_norm), 2 / (places * squared_norm)


@dataclass(frozen=True)
class HiddenModel:
    """The linear model that decides labels."""

    weights: Floats  # of the features at the first places
    threshold: float
    noise: float

    @classmethod
    def with_share(cls, positive: float, law: Zipf, values: Values, seed: int) -> HiddenModel:
        """A model by which this share of the labels is +1, if sums are distributed nearly normally."""
        places = np.arange(1, min(INFORMATIVE, law.features) + 1)
        weights = np.random.default_rng([seed, 0]).standard_normal(len(places))
        probability = law.probability(places)
        mean, square = (probability * moment for moment in values.moments(places))
        deviation = math.sqrt(np.square(weights) @ (square - np.square(mean)))
        noise = NOISE * deviation
        quantile = NormalDist().inv_cdf(1 - positive)
        return cls(weights, float(weights @ mean) + quantile * math.hypot(deviation, noise), noise)

    def labels(
        self, generator: np.random.Generator, row: Integers, places: Integers, values: Floats
    ) -> Integers:
        known = np.flatnonzero(places <= len(self.weights))
        terms = self.weights[places[known] - 1] * values[known]
        sums = np.bincount(row[known], terms, BLOCK) + self.noise * generator.standard_normal(BLOCK)
        return np.where(sums > self.threshold, 1, -1)


class Block(NamedTuple):
    """Consecutive rows: the number of entries of each, their entries, and their labels."""

    counts: Integers
    indices: Integers
    values: Floats
    labels: Integers

    def between(self, begin: int, end: int) -> Block:
        """The rows from begin to before end."""
        bounds = np.concatenate([[0], np.cumsum(self.counts)])
        entries = slice(bounds[begin], bounds[end])
        return Block(
            self.counts[begin:end], self.indices[entries], self.values[entries], self.labels[begin:end]
        )


@dataclass(frozen=True)
class Source:
    """An endless sequence of rows."""

    law: Zipf
    values: Values
    model: HiddenModel
    seed: int

    def blocks(self, begin: int, end: int) -> Iterator[Block]:
        """The rows from begin to before end, in blocks."""
        for first in range(begin - begin % BLOCK, end, BLOCK):
            yield self._block(first // BLOCK).between(max(begin - first, 0), min(end - first, BLOCK))

    def _block(self, number: int) -> Block:
        generator = np.random.default_rng([self.seed, number + 1])  # 0 is for the hidden model
        features = self.law.features
        row, places = self.law.draw(generator, BLOCK)
        positions, first = np.unique(row * features + scattered(places - 1, features), return_index=True)
        row, places = row[first], places[first]
        values = self.values.draw(generator, row, places)
        labels = self.model.labels(generator, row, places, values)
        return Block(np.bincount(row, minlength=BLOCK), positions - row * features, values, labels)


def scattered(numbers: Integers, length: int) -> Integers:
    """A permutation of the numbers below the length that has no visible pattern, applied to these numbers.

    Numbers of as many bits as the length has are mixed by invertible steps, until they are below the length.

    >>> scattered(np.arange(10), 10)
    array([5, 3, 6, 7, 2, 9, 1, 0, 4, 8])
    """
    bits = (length - 1).bit_length()
    mixed = _mixed(numbers.astype(np.uint64), bits)
    while len(outside := np.flatnonzero(mixed >= length)):
        mixed[outside] = _mixed(mixed[outside], bits)
    return mixed.astype(np.int64)


def _mixed(numbers: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    mask, half = np.uint64(2**bits - 1), np.uint64(bits // 2 + 1)
    for _ in range(3):
        numbers = (numbers + MIX) * MIX & mask
        numbers = numbers ^ (numbers >> half)
    return numbers


def _generated(
    law: Zipf,
    values: Values,
    positive: float,
    rows: int,
    seed: int,
    part: tuple[int, int],
    dtype: npt.DTypeLike,
) -> tuple[csr_array, Integers]:
    begin, end = _share(rows, part)
    value_dtype = _checked_dtype(dtype)
    model = HiddenModel.with_share(positive, law, values, checked_seed(seed))
    blocks = Source(law, values, model, seed).blocks(begin, end)
    return _joined(blocks, (end - begin, law.features), law.mean, value_dtype)


def _joined(
    blocks: Iterator[Block], shape: tuple[int, int], nonzeros: float, dtype: np.dtype[Any]
) -> tuple[csr_array, Integers]:
    """All rows of the blocks, in arrays that are allocated once."""
    from scipy.sparse import csr_array

    # The number of entries is a sum of independent random numbers, and its variance is below its mean: fewer
    # than one in 10^15 data sets exceeds the mean by nine deviations.  Unused room takes no memory.
    expected = shape[0] * nonzeros
    room = math.ceil(expected + 9 * math.sqrt(expected) + 30)
    index_dtype = np.int32 if max(room, *shape) < 2**31 else np.int64
    indices, values = np.empty(room, index_dtype), np.empty(room, dtype)
    bounds, labels = np.zeros(shape[0] + 1, index_dtype), np.empty(shape[0], np.int64)
    row = entry = 0
    for block in blocks:
        next_row, next_entry = row + len(block.counts), entry + len(block.indices)
        indices[entry:next_entry], values[entry:next_entry] = block.indices, block.values
        bounds[row + 1 : next_row + 1] = entry + np.cumsum(block.counts)
        labels[row:next_row] = block.labels
        row, entry = next_row, next_entry
    return csr_array((values[:entry], indices[:entry], bounds), shape=shape), labels


def _share(rows: int, part: tuple[int, int]) -> tuple[int, int]:
    """The first row of a rank, and the row after its last."""
    if not isinstance(rows, int) or rows < 0:
        raise InputError(f"rows is {rows!r}; it must be a number that is not negative")
    rank, size = part
    if not (isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size):
        raise InputError(f"part is {part!r}; it must be a rank and the number of ranks, such as (0, 1)")
    return rows * rank // size, rows * (rank + 1) // size


def _checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    checked = np.dtype(dtype)
    if checked not in (np.float32, np.float64):
        raise InputError(f"dtype is {checked}; it must be float32 or float64")
    return checked
