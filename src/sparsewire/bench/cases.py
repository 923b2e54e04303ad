"""What a benchmark runs: the problem, each rank's input, and the exact answer.

Values are small positive integers.  Their sums are exact in every dtype and in every order, so a result is
right or wrong without a tolerance; nothing cancels, so the sum's support is the union of the supports.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.errors import InputError
from sparsewire.vector import VALUE_DTYPES, value_dtype

__all__ = [
    "DISTRIBUTIONS",
    "Case",
    "Indices",
    "Values",
    "count_wrong",
    "exact_sum",
    "make_input",
    "parse_size",
]

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[Any]

DISTRIBUTIONS = ("uniform", "zipf", "rows", "identical", "disjoint")
ROW = 64  # positions of a row of an embedding
LARGEST_VALUE = 4
SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# Integers up to here are exact: 2 to the number of significand bits.
EXACT_UP_TO = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24}
# Denser than this, most draws hit what was drawn before: one pass over all positions is then faster.
DRAW_ALL_DENSITY = 0.1


@dataclass(frozen=True)
class Case:
    """One problem: ``ranks`` vectors of ``length``, each with ``nnz`` entries."""

    ranks: int
    length: int
    density: float
    dtype: str = "float32"
    distribution: str = "uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise InputError(f"a benchmark needs at least one rank, got {self.ranks}")
        if self.length < 1:
            raise InputError(f"the size is {self.length}; it must be at least 1")
        if not 0 < self.density <= 1:
            raise InputError(f"the density is {self.density}; it must be above 0 and at most 1")
        if self.dtype not in VALUE_DTYPES:
            raise InputError(f"unknown dtype {self.dtype!r}; known are {', '.join(VALUE_DTYPES)}")
        if self.distribution not in DISTRIBUTIONS:
            raise InputError(
                f"unknown distribution {self.distribution!r}; known are {', '.join(DISTRIBUTIONS)}"
            )
        if self.seed < 0:
            raise InputError(f"the seed is {self.seed}; it must not be negative")
        if self.distribution == "disjoint" and self.nnz > self.length // self.ranks:
            raise InputError(
                f"{self.ranks} disjoint supports of density {self.density} do not fit; "
                f"the density must be at most 1/{self.ranks}"
            )
        if self.ranks * LARGEST_VALUE > EXACT_UP_TO.get(self.dtype, 2**31):
            raise InputError(f"sums over {self.ranks} ranks are not exact in {self.dtype}; use float32")

    @property
    def nnz(self) -> int:
        """Entries of each rank's input."""
        return max(1, round(self.length * self.density))


def parse_size(text: str) -> int:
    """A number of entries; k, M and G are powers of 1024.

    >>> parse_size("16M"), parse_size("1k"), parse_size("1000")
    (16777216, 1024, 1000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.strip().upper())
    count = float(match[1]) * SUFFIXES[match[2]] if match else -1.0
    if match is None or count != int(count) or count < 1:
        raise InputError(f"size {text!r} is not understood; write for example 16M, 64k or 1000000")
    return int(match[1]) if match[2] == "" else int(count)


def make_input(case: Case, rank: int) -> tuple[Indices, Values]:
    """Rank ``rank``'s entries: sorted indices and values, the same whenever the seed is the same."""
    chance = np.random.default_rng([case.seed, rank])
    if case.distribution == "uniform":
        indices = _uniform(chance, case.length, case.nnz)
    elif case.distribution == "zipf":
        indices = _zipf(chance, case.length, case.nnz)
    elif case.distribution == "rows":
        indices = _rows(chance, case.length, case.nnz)
    elif case.distribution == "identical":
        everybody = case.ranks  # one stream of chance more than there are ranks
        indices = _uniform(np.random.default_rng([case.seed, everybody]), case.length, case.nnz)
    else:  # disjoint: rank r owns the positions r, r + ranks, r + 2 ranks, ...
        owned = len(range(rank, case.length, case.ranks))
        indices = _uniform(chance, owned, case.nnz) * case.ranks + rank
    values = chance.integers(1, LARGEST_VALUE, case.nnz, endpoint=True)
    return indices, values.astype(value_dtype(case.dtype))


def exact_sum(case: Case) -> Values:
    """The dense sum of all ranks' inputs, by plain numpy: it must not share a mistake with the library."""
    wide = np.zeros(case.length, np.float32 if value_dtype(case.dtype).itemsize <= 2 else case.dtype)
    for rank in range(case.ranks):
        indices, values = make_input(case, rank)
        wide[indices] += values.astype(wide.dtype)  # no index twice within one rank
    return wide.astype(value_dtype(case.dtype), copy=False)


def count_wrong(result: Values, expected: Values, bound: Values | None = None) -> int:
    """Entries of ``result`` that are not exactly the expected ones; all of them if the shape is wrong.

    With a bound, which has a number for each non-zero of ``expected``: entries that are further away.
    """
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return max(1, expected.size)
    if bound is None:
        return int(np.count_nonzero(result != expected))
    support = np.flatnonzero(expected)
    rounded = result[support]
    error = np.abs(rounded.astype(np.float64) - expected[support].astype(np.float64))
    should_be_zero = np.count_nonzero(result) - np.count_nonzero(rounded)
    return int(np.count_nonzero(~(error <= bound)) + should_be_zero)


def _uniform(chance: np.random.Generator, length: int, nnz: int) -> Indices:
    """Every set of ``nnz`` positions equally likely."""
    if nnz > DRAW_ALL_DENSITY * length:
        return _smallest(chance.random(length), nnz)
    return _distinct(lambda count: chance.integers(0, length, count), nnz, chance)


def _zipf(chance: np.random.Generator, length: int, nnz: int) -> Indices:
    """Position i with a weight of 1 / (i + 1): words in a text, rows of an embedding."""
    if nnz > DRAW_ALL_DENSITY * length:
        # The smallest of exponential keys / weight are a weighted draw without replacement.
        return _smallest(chance.standard_exponential(length) * np.arange(1, length + 1), nnz)
    # The inverse of the cumulated weights, log(i + 1) / log(length + 1).
    return _distinct(lambda count: ((length + 1.0) ** chance.random(count)).astype(np.int64) - 1, nnz, chance)


def _rows(chance: np.random.Generator, length: int, nnz: int) -> Indices:
    """Whole rows, any of them equally likely; the last one that is drawn may be cut."""
    rows = chance.permutation(-(-length // ROW))[: -(-nnz // ROW) + 1]  # one more: the vector's last is short
    positions = (rows[:, np.newaxis] * ROW + np.arange(ROW)).ravel()
    return np.sort(positions[positions < length][:nnz])


def _smallest(keys: npt.NDArray[np.float64], nnz: int) -> Indices:
    chosen = np.zeros(len(keys), np.bool_)
    chosen[np.argpartition(keys, nnz - 1)[:nnz]] = True
    return np.flatnonzero(chosen)  # sorted, and sooner than by sorting


def _distinct(draw: Callable[[int], Indices], nnz: int, chance: np.random.Generator) -> Indices:
    """``nnz`` different positions, sorted: draw until there are enough, then drop the surplus at random."""
    found = np.unique(draw(nnz + nnz // 8 + 8))
    while len(found) < nnz:
        found = np.union1d(found, draw(nnz))
    keep = np.sort(chance.permutation(len(found))[:nnz])
    return found[keep]
