"""Reductions: the values that vectors have at one index become one value; neighbouring pieces become one.

Where a result is stored is decided after each step: as entries or densely, whichever takes fewer bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sparsewire import kernels, work
from sparsewire.errors import WireError
from sparsewire.kernels import memory
from sparsewire.vector import Array, SparseVector, accumulator_dtype, index_dtype

__all__ = ["MAX", "MIN", "REDUCTIONS", "SUM", "RangeSums", "Reduction", "concat"]


@dataclass(frozen=True)
class Reduction:
    """How the values that vectors have at one index become one value.

    A vector stands for its dense form: for the maximum and the minimum, an absent entry counts as zero.  A
    maximum or minimum of zero may be stored as an entry, and is 0.0, never -0.0.

    >>> low = SparseVector(4, [1, 2], np.array([-3.0, 5.0]))
    >>> MAX.merge([low, SparseVector.empty(4, "float64")]).to_dense()
    array([0., 0., 5., 0.])
    """

    name: str
    merge_entries: Callable[[Sequence[kernels.Entries], kernels.Entries | None], kernels.Entries]
    combine: np.ufunc
    absent_is_neutral: bool

    def merge(self, pieces: Sequence[SparseVector], out: kernels.Entries | None = None) -> SparseVector:
        """The pieces, which have one range, as one piece; each index is reduced in the order given.

        The sum of the entry counts bounds the result.  If entries may need more bytes than the dense range by
        that bound, the result is formed densely, and becomes entries again if those take fewer bytes.
        ``out`` has room for entries, which may be written there.
        """
        first = pieces[0]
        if len(pieces) == 1:
            return first
        _check_one_range(pieces)
        entries = [(piece.indices, piece.values) for piece in pieces if piece.indices is not None]
        room = first.span * first.dtype.itemsize
        if len(entries) < len(pieces) or sum(piece.nbytes for piece in pieces) > room:
            return self.dense(pieces).smaller()
        work.count(entries=sum(piece.nnz for piece in pieces))
        indices, values = self.merge_entries(entries, out)
        return SparseVector.piece(first.length, first.start, first.stop, indices, values)

    def dense(self, pieces: Sequence[SparseVector]) -> SparseVector:
        """The pieces, which have one range, as one dense piece; half types are added up in float32."""
        first = pieces[0]
        _check_one_range(pieces)
        total = memory.empty(first.span, accumulator_dtype(first.dtype))
        work.count(values=first.span)
        total[:] = 0 if first.indices is not None else first.values
        with np.errstate(over="ignore", invalid="ignore"):  # sums that overflow, and inf - inf, are values
            if first.indices is not None:
                _scatter(kernels.scatter, total, first)
            for piece in pieces[1:]:
                if piece.indices is not None and self.absent_is_neutral:
                    _scatter(kernels.scatter_add, total, piece)
                else:
                    work.count(values=piece.span)
                    self.combine(total, piece.to_dense().astype(total.dtype, copy=False), out=total)
            if not self.absent_is_neutral:
                total += 0  # -0.0 becomes 0.0
            total = total.astype(first.dtype, copy=False)
        return SparseVector.piece(first.length, first.start, first.stop, None, total)


def _check_one_range(pieces: Sequence[SparseVector]) -> None:
    """Raise WireError unless all pieces have the same length, range and dtype.

    A script that says what it expects never comes here with others.  Kernels write by index, so one that does
    not say it must not get any further.
    """
    first = pieces[0]
    length, start, stop, dtype = first.length, first.start, first.stop, first.values.dtype
    for other in pieces[1:]:
        is_like = other.start == start and other.stop == stop and other.length == length
        if not is_like or (other.values.dtype is not dtype and other.values.dtype != dtype):
            raise WireError(f"pieces of different ranges or dtypes cannot be added up: {first} and {other}")


def _check_order(pieces: Sequence[SparseVector]) -> None:
    """Raise WireError unless each piece begins where the one before ends; entries may have gaps between."""
    may_have_gaps = not any(piece.is_dense for piece in pieces)
    for before, piece in pairwise(pieces):
        is_like = piece.length == before.length and piece.values.dtype == before.values.dtype
        is_next = piece.start == before.stop or (may_have_gaps and piece.start > before.stop)
        if not is_like or not is_next:
            raise WireError(f"pieces that are no neighbours cannot be joined: {before} and {piece}")


def _scatter(kernel: Callable[..., None], dense: Array, piece: SparseVector) -> None:
    work.count(entries=piece.nnz)
    kernel(dense, piece.indices, piece.values.astype(dense.dtype, copy=False), offset=piece.start)


SUM = Reduction("sum", kernels.merge_sum, np.add, absent_is_neutral=True)
MAX = Reduction("max", kernels.merge_max, np.maximum, absent_is_neutral=False)
MIN = Reduction("min", kernels.merge_min, np.minimum, absent_is_neutral=False)
REDUCTIONS = {op.name: op for op in (SUM, MAX, MIN)}


def concat(pieces: Sequence[SparseVector]) -> SparseVector:
    """Neighbouring pieces as one piece, stored as entries or densely, whichever takes fewer bytes.

    >>> v = SparseVector(8, [1, 5], np.ones(2))
    >>> concat(v.split_at([0, 4, 8])).indices
    array([1, 5], dtype=uint32)
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first
    _check_order(pieces)
    if any(piece.is_dense for piece in pieces):
        room = (last.stop - first.start) * first.dtype.itemsize
        if all(piece.is_dense for piece in pieces) or sum(piece.entry_bytes for piece in pieces) >= room:
            return _joined([piece.as_dense() for piece in pieces])
        pieces = [piece.as_sparse() for piece in pieces]
    return _joined(pieces)


class RangeSums:
    """Sums of neighbouring ranges, each written behind the one before: joined, they need no copy.

    >>> v = SparseVector(8, [1, 5], np.ones(2))
    >>> sums = RangeSums()
    >>> for piece in v.split_evenly(2):
    ...     sums.add([piece, piece])
    >>> sums.concat().to_dense()
    array([0., 2., 0., 0., 0., 2., 0., 0.])
    """

    def __init__(self, op: Reduction = SUM) -> None:
        self._op = op
        self._sums: list[SparseVector] = []
        self._indices: Array = np.empty(0, np.uint32)
        self._values: Array = np.empty(0, np.float32)
        self._used = 0
        self._apart = False  # is one of the sums stored elsewhere, because it is dense?

    def add(self, pieces: Sequence[SparseVector]) -> None:
        """Append the sum of the pieces of the next range."""
        if self._apart:
            self._sums.append(self._op.merge(pieces))
            return
        self._make_room(sum(piece.nnz for piece in pieces), pieces[0])
        total = self._op.merge(pieces, (self._indices[self._used :], self._values[self._used :]))
        self._sums.append(total)
        self._used += total.nnz
        self._apart = total.nnz > 0 and not np.may_share_memory(total.values, self._values)

    def concat(self) -> SparseVector:
        """All sums as one piece."""
        first, last = self._sums[0], self._sums[-1]
        if self._apart:
            return concat(self._sums)
        indices, values = memory.used(self._indices, self._used), memory.used(self._values, self._used)
        return SparseVector.piece(first.length, first.start, last.stop, indices, values)

    def _make_room(self, entries: int, like: SparseVector) -> None:
        """Have room for so many more entries.

        What is allocated is enough for all ranges if the ones to come have as many entries as those so far.
        """
        needed = self._used + entries
        if self._sums and needed <= len(self._values):
            return
        begun = self._sums[0].start if self._sums else like.start
        capacity = needed * (like.length - begun) // max(1, like.stop - begun) * 9 // 8
        indices = memory.empty(max(needed, capacity), index_dtype(like.length))
        values = memory.empty(max(needed, capacity), like.dtype)
        if self._sums:
            indices[: self._used] = self._indices[: self._used]
            values[: self._used] = self._values[: self._used]
        self._indices, self._values = indices, values


def _joined(pieces: Sequence[SparseVector]) -> SparseVector:
    """The pieces as one; either all of them are dense or none is."""
    first, last = pieces[0], pieces[-1]
    count = sum(piece.nnz for piece in pieces)
    work.count(values=count)
    indices = None if first.is_dense else memory.empty(count, index_dtype(first.length))
    values = memory.empty(count, first.dtype)
    end = 0
    for piece in pieces:
        begin, end = end, end + piece.nnz
        if indices is not None:
            indices[begin:end] = piece.indices
        values[begin:end] = piece.values
    return SparseVector.piece(first.length, first.start, last.stop, indices, values)
