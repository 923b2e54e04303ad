"""Bundles: how the parts of several ranks travel as one payload.

A payload of few frames is made and read faster than one of many, so parts are joined where they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from sparsewire.errors import WireError
from sparsewire.expected import Expected, Pieces
from sparsewire.reduction import concat
from sparsewire.steps import Expectation
from sparsewire.vector import SparseVector

__all__ = ["Bundle", "Entries", "Lists", "Rows"]

T = TypeVar("T")


class Bundle(Protocol[T]):
    """What is known of everybody's part; ``ranks`` are neighbours, where rank 0 follows the last."""

    def expected_of(self, rank: int) -> Expectation:
        """What the part of a rank has to be, if it travels alone."""

    def expected(self, ranks: Sequence[int]) -> Expectation:
        """What the payload with the parts of these ranks has to be."""

    def pack(self, parts: Sequence[T], ranks: Sequence[int]) -> Any:
        """The parts of these ranks as a payload."""

    def unpack(self, payload: Any, ranks: Sequence[int]) -> list[T]:
        """The part of each of these ranks."""


class Lists(NamedTuple):
    """Parts that are pieces, or lists of pieces, one behind the other: each keeps its form and its frame."""

    parts: Sequence[Expected | Pieces]  # by rank

    def expected_of(self, rank: int) -> Expectation:
        return self.parts[rank]

    def expected(self, ranks: Sequence[int]) -> Pieces:
        parts = (self.parts[rank] for rank in ranks)
        return Pieces(
            [one for part in parts for one in (part.pieces if isinstance(part, Pieces) else [part])]
        )

    def pack(self, parts: Sequence[Any], ranks: Sequence[int]) -> list[SparseVector]:
        return [piece for part in parts for piece in (part if isinstance(part, list) else [part])]

    def unpack(self, payload: list[SparseVector], ranks: Sequence[int]) -> list[Any]:
        pieces = iter(payload)
        return [
            [next(pieces) for _ in part.pieces] if isinstance(part, Pieces) else next(pieces)
            for part in (self.parts[rank] for rank in ranks)
        ]


class Rows(NamedTuple):
    """Vectors of a few numbers as one dense vector: each behind their count, and filled up with zeros."""

    numbers: Expectation  # of each rank
    width: int  # at most so many numbers
    dtype: np.dtype[Any]

    def expected_of(self, rank: int) -> Expectation:
        return self.numbers

    def expected(self, ranks: Sequence[int]) -> Expected:
        length = len(ranks) * (1 + self.width)
        return Expected(length, 0, length, self.dtype, is_dense=True)

    def pack(self, parts: Sequence[SparseVector], ranks: Sequence[int]) -> SparseVector:
        rows = np.zeros((len(parts), 1 + self.width), self.dtype)
        for row, part in zip(rows, parts, strict=True):
            row[0] = part.length
            row[1 : 1 + part.length] = part.values
        return SparseVector.from_dense(rows.reshape(-1))

    def unpack(self, payload: SparseVector, ranks: Sequence[int]) -> list[SparseVector]:
        rows = payload.values.reshape(len(ranks), 1 + self.width)
        return [self._numbers(rank, int(row[0]), row[1:]) for rank, row in zip(ranks, rows, strict=True)]

    def _numbers(self, rank: int, count: int, row: Any) -> SparseVector:
        if not 0 <= count <= self.width:
            raise WireError(f"rank {rank} tells {count} numbers, and no rank has more than {self.width}")
        numbers = SparseVector.from_dense(row[:count])
        self.numbers.check(rank, numbers)
        return numbers


class Entries(NamedTuple):
    """Entries of neighbouring ranges as those of one range, or of two where rank 0 follows the last."""

    length: int
    cuts: Sequence[int]  # rank r has the range from cuts[r] to cuts[r + 1]
    most: Sequence[int]  # entries of each rank
    dtype: np.dtype[Any]

    def expected_of(self, rank: int) -> Expected:
        return self._range([rank])

    def expected(self, ranks: Sequence[int]) -> Pieces:
        return Pieces([self._range(run) for run in _runs(ranks, ranks)])

    def pack(self, parts: Sequence[SparseVector], ranks: Sequence[int]) -> list[SparseVector]:
        return [concat(run) for run in _runs(parts, ranks)]

    def unpack(self, payload: list[SparseVector], ranks: Sequence[int]) -> list[SparseVector]:
        runs = zip(payload, _runs(ranks, ranks), strict=True)
        return [part for piece, run in runs for part in piece.split_at(self.cuts[run[0] : run[-1] + 2])]

    def _range(self, run: Sequence[int]) -> Expected:
        start, stop = self.cuts[run[0]], self.cuts[run[-1] + 1]
        most = sum(self.most[rank] for rank in run)
        return Expected(self.length, start, stop, self.dtype, is_dense=False, most=most)


def _runs(parts: Sequence[T], ranks: Sequence[int]) -> list[Sequence[T]]:
    """The parts up to the last rank, and those from rank 0 on, without empty runs.

    >>> _runs("abcd", [6, 7, 0, 1]), _runs("abcd", [0, 1, 2, 3])
    (['ab', 'cd'], ['abcd'])
    """
    turn = ranks.index(0) if 0 in ranks[1:] else len(ranks)
    return [run for run in (parts[:turn], parts[turn:]) if run]
