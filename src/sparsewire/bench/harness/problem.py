"""The problem that a benchmark solves: each rank's input, and the exact sum.

Values are small positive integers.  Their sums are exact in every dtype and in every order, so a result is
right or wrong without a tolerance.  Nothing cancels, so the sum's support is the union of the supports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.bench.harness import draws
from sparsewire.bench.harness.draws import Indices
from sparsewire.bench.harness.layouts import EXAMPLES, Layout, TraceRows, parse_layout
from sparsewire.errors import InputError
from sparsewire.vector import VALUE_DTYPES, value_dtype

Values: TypeAlias = npt.NDArray[Any]

DISTRIBUTIONS = ("uniform", "zipf", "rows", "identical", "disjoint")
LARGEST_VALUE = 4
SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# Integers up to here are exact: 2 to the number of significand bits.
EXACT_UP_TO = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24}


@dataclass(frozen=True)
class Case:
    """One problem: ``ranks`` vectors of ``length``, each with ``nnz`` entries.

    Where entries come in blocks, the density is the share of blocks.  The last block may be short, and a rank
    that has it has fewer entries.
    """

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
        if self.distribution not in DISTRIBUTIONS and ":" not in self.distribution:
            known = ", ".join((*DISTRIBUTIONS, *EXAMPLES))
            raise InputError(f"unknown distribution {self.distribution!r}; known are {known}")
        if self.seed < 0:
            raise InputError(f"the seed is {self.seed}; it must not be negative")
        if self.layout:
            self.layout.check(self)
        if self.distribution == "disjoint" and self.nnz > self.length // self.ranks:
            raise InputError(
                f"{self.ranks} disjoint supports of density {self.density} do not fit; "
                f"the density must be at most 1/{self.ranks}"
            )
        if self.ranks * LARGEST_VALUE > EXACT_UP_TO.get(self.dtype, 2**31):
            raise InputError(f"sums over {self.ranks} ranks are not exact in {self.dtype}; use float32")

    @cached_property
    def layout(self) -> Layout | None:
        """The blocks that entries come in, or None where entries are independent."""
        return None if self.distribution in DISTRIBUTIONS else parse_layout(self.distribution)

    @property
    def distribution_name(self) -> str:
        """The distribution without the folder of its file."""
        return self.layout.name if self.layout else self.distribution

    @property
    def overlap(self) -> str:
        """How the ranks' supports overlap, as a name of ``Shape.overlap``."""
        if self.layout:
            return self.layout.overlap
        return self.distribution if self.distribution in ("identical", "disjoint") else "uniform"

    @property
    def blocks(self) -> int:
        """The number of blocks of the vector, zero or not."""
        assert self.layout
        return -(-self.length // self.layout.block)

    @cached_property
    def nnz(self) -> int:
        """Entries of each rank's input; where entries come in blocks, of the rank that has most."""
        if self.layout is None:
            return max(1, round(self.length * self.density))
        missing = self.blocks * self.layout.block - self.length  # positions that the last block lacks
        touched = (touched_blocks(self, rank) for rank in range(self.ranks))
        return max(len(t) * self.layout.block - missing * (int(t[-1]) == self.blocks - 1) for t in touched)

    def chance(self, rank: int) -> np.random.Generator:
        """The generator that a rank draws its input from."""
        return np.random.default_rng([self.seed, rank])

    def common_chance(self) -> np.random.Generator:
        """The generator that is the same on all ranks; no rank has its number."""
        return self.chance(self.ranks)


def parse_size(text: str) -> int:
    """The number of entries; k, M and G are powers of 1024.

    >>> parse_size("16M"), parse_size("1k"), parse_size("1000")
    (16777216, 1024, 1000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.strip().upper())
    count = float(match[1]) * SUFFIXES[match[2]] if match else -1.0
    if match is None or count != int(count) or count < 1:
        raise InputError(f"size {text!r} is not understood; write for example 16M, 64k or 1000000")
    return int(match[1]) if match[2] == "" else int(count)


def trace_case(ranks: int, dtype: str, distribution: str, seed: int) -> Case:
    """The case of a recorded trace, whose length and density follow from it."""
    layout = parse_layout(distribution)
    assert isinstance(layout, TraceRows)
    layout.trace.check(ranks, seed)
    return Case(ranks, layout.trace.length, layout.trace.density(ranks, seed), dtype, distribution, seed)


def make_input(case: Case, rank: int) -> tuple[Indices, Values]:
    """Sorted indices and values of a rank's input; the same seed gives the same input."""
    chance = case.chance(rank)
    indices = _support(case, rank, chance)
    values = chance.integers(1, LARGEST_VALUE, len(indices), endpoint=True)
    return indices, values.astype(value_dtype(case.dtype))


def touched_blocks(case: Case, rank: int) -> Indices:
    """The numbers of the blocks in which a rank's input has entries."""
    assert case.layout
    return case.layout.touched(case, rank, case.chance(rank))


def _support(case: Case, rank: int, chance: np.random.Generator) -> Indices:
    if case.layout:
        blocks = case.layout.touched(case, rank, chance)
        positions = (blocks[:, np.newaxis] * case.layout.block + np.arange(case.layout.block)).ravel()
        return positions[: np.searchsorted(positions, case.length)]  # the last block may be short
    if case.distribution == "uniform":
        return draws.uniform(chance, case.length, case.nnz)
    if case.distribution == "zipf":
        return draws.zipf(chance, case.length, case.nnz)
    if case.distribution == "rows":
        return draws.rows(chance, case.length, case.nnz)
    if case.distribution == "identical":
        return draws.uniform(case.common_chance(), case.length, case.nnz)
    return draws.disjoint(chance, case.length, case.nnz, rank, case.ranks)


def exact_sum(case: Case) -> Values:
    """The dense sum of all ranks' inputs, in plain numpy so that it shares no mistake with the library."""
    wide = np.zeros(case.length, np.float32 if value_dtype(case.dtype).itemsize <= 2 else case.dtype)
    for rank in range(case.ranks):
        indices, values = make_input(case, rank)
        wide[indices] += values.astype(wide.dtype)  # no index twice within one rank
    return wide.astype(value_dtype(case.dtype), copy=False)


def count_wrong(result: Values, expected: Values, bound: Values | None = None) -> int:
    """How many entries of ``result`` are not exactly the expected ones; all of them if the shape is wrong.

    ``bound`` has a number for each non-zero of ``expected``, and an entry is wrong if it differs by more.
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
