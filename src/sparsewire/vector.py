"""SparseVector: a vector, or a range of one, stored as its entries or densely, whichever is smaller.

Words used throughout: an *index* is a position in the vector, an *entry* is (index, value), *length* is
the dimension, *nnz* the number of stored entries, and a *piece* is the part of a vector that lies in
[start, stop).  A piece keeps the indices of the whole vector, so pieces concatenate without rewriting.

A vector is a value: nothing here writes to arrays it was given, and neither should you.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire import kernels, work
from sparsewire.errors import InputError, MissingExtraError
from sparsewire.kernels import memory

__all__ = [
    "MAX",
    "MIN",
    "REDUCTIONS",
    "SUM",
    "VALUE_DTYPES",
    "Array",
    "Packed",
    "RangeSums",
    "Reduction",
    "SparseVector",
    "concat",
    "index_dtype",
    "value_dtype",
]

Array: TypeAlias = npt.NDArray[Any]

VALUE_DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")


def value_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of one of ``VALUE_DTYPES``; bfloat16 comes from ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingExtraError.of("ml_dtypes, which has bfloat16,", "torch") from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


class Packed(NamedTuple):
    """The bytes that rounded values were made of, and the precision that made them."""

    precision: Any  # a ``precision.Precision``, of which a vector knows nothing
    data: Array


class SparseVector:
    """A vector of ``length`` whose entries are ``indices`` (strictly increasing) and ``values``.

    >>> v = SparseVector(8, [1, 5], np.array([2.0, -1.0], dtype="float32"))
    >>> v
    SparseVector(length=8, nnz=2, float32)
    >>> v.to_dense()
    array([ 0.,  2.,  0.,  0.,  0., -1.,  0.,  0.], dtype=float32)
    """

    __slots__ = ("indices", "length", "packed", "start", "stop", "values")

    length: int
    start: int
    stop: int
    indices: Array | None  # None: dense, values[i] belongs to index start + i
    values: Array
    packed: Packed | None  # the same values in fewer bytes, if they were rounded: what travels

    def __init__(self, length: int, indices: npt.ArrayLike, values: npt.ArrayLike) -> None:
        length = _checked_length(length)
        checked = _checked_values(values)
        self._set(length, 0, length, _checked_indices(indices, length, len(checked)), checked)

    def _set(self, length: int, start: int, stop: int, indices: Array | None, values: Array) -> None:
        self.length, self.start, self.stop, self.indices, self.values = length, start, stop, indices, values
        self.packed = None

    @classmethod
    def piece(cls, length: int, start: int, stop: int, indices: Array | None, values: Array) -> SparseVector:
        """A part of a vector from arrays that are known to be valid; nothing is checked or copied."""
        vector = cls.__new__(cls)
        vector._set(length, start, stop, indices, values)
        return vector

    @classmethod
    def from_dense(cls, array: npt.ArrayLike) -> SparseVector:
        """The same numbers as a dense vector, without a copy where the array is contiguous.

        >>> SparseVector.from_dense(np.arange(3, dtype="int64"))
        SparseVector(length=3, dense, int64)
        """
        values = _checked_values(array)
        return cls.piece(len(values), 0, len(values), None, values)

    @classmethod
    def empty(cls, length: int, dtype: npt.DTypeLike = "float32") -> SparseVector:
        """No entries at all."""
        return cls.piece(length, 0, length, np.empty(0, index_dtype(length)), np.empty(0, dtype))

    @classmethod
    def coalesce(cls, length: int, indices: npt.ArrayLike, values: npt.ArrayLike) -> SparseVector:
        """Sorts unsorted entries and adds up those that share an index, in the order given.

        >>> SparseVector.coalesce(4, [2, 0, 2], np.array([1, 2, 3], dtype="int64")).to_dense()
        array([2, 0, 4, 0])
        """
        checked = _checked_values(values)
        positions = np.asarray(indices)
        order = np.argsort(positions, kind="stable")
        unique, first = np.unique(positions[order], return_index=True)
        wide = checked[order].astype(_accumulator(checked.dtype), copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.add.reduceat(wide, first) if len(first) else wide
            return cls(length, unique, sums.astype(checked.dtype, copy=False))

    @property
    def is_dense(self) -> bool:
        return self.indices is None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """Stored entries: all of them in a dense vector."""
        return len(self.values)

    @property
    def span(self) -> int:
        """Positions in the range, stored or not."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Bytes of the entries, or of the dense values."""
        return self.values.nbytes + (0 if self.indices is None else self.indices.nbytes)

    def range(self, start: int, stop: int) -> SparseVector:
        """The piece in [start, stop), as views."""
        return self.split_at([start, stop])[0]

    def split_at(self, cuts: Sequence[int]) -> list[SparseVector]:
        """The pieces between consecutive ``cuts``, as views.

        >>> [p.nnz for p in SparseVector(8, [1, 2, 5], np.ones(3)).split_at([0, 2, 4, 8])]
        [1, 1, 1]
        """
        if self.indices is None:
            at = [cut - self.start for cut in cuts]
        else:
            at = kernels.split_at(self.indices, cuts).tolist()
        return [
            SparseVector.piece(
                self.length,
                cuts[i],
                cuts[i + 1],
                None if self.indices is None else self.indices[at[i] : at[i + 1]],
                self.values[at[i] : at[i + 1]],
            )
            for i in range(len(cuts) - 1)
        ]

    def entries_between(self, first: int, last: int) -> SparseVector:
        """The piece from its entry number ``first`` to before number ``last``, as views.

        >>> [p.stop for p in (SparseVector(8, [1, 2, 5], np.ones(3)).entries_between(0, 2),)]
        [5]
        """
        assert self.indices is not None
        start, stop = (
            int(self.indices[number]) if 0 < number < self.nnz else outside
            for number, outside in ((first, self.start), (last, self.stop))
        )
        return SparseVector.piece(self.length, start, stop, *self._entries(first, last))

    def largest(self, count: int) -> SparseVector:
        """The entries of largest magnitude, the first of those that are equal; NaN is above infinity.

        >>> SparseVector(8, [1, 2, 5], np.array([3.0, -4.0, 3.0])).largest(2).indices
        array([1, 2], dtype=uint32)
        """
        return self.split_largest(count)[0]

    def split_largest(self, count: int) -> tuple[SparseVector, SparseVector]:
        """So many entries of largest magnitude, and the others."""
        if self.nnz <= count:
            return self, self._with_entries(*self._entries(self.nnz, self.nnz))
        if count == 0:
            return self._with_entries(*self._entries(0, 0)), self
        assert self.indices is not None
        work.count(values=2 * self.nnz)
        threshold, ties = kernels.threshold_for_k(self.values, count)
        large, rest = kernels.partition(self.indices, self.values, threshold, ties)
        return self._with_entries(*large), self._with_entries(*rest)

    def _entries(self, first: int, last: int) -> tuple[Array, Array]:
        assert self.indices is not None
        return self.indices[first:last], self.values[first:last]

    def _with_entries(self, indices: Array, values: Array) -> SparseVector:
        return SparseVector.piece(self.length, self.start, self.stop, indices, values)

    def without(self, other: SparseVector) -> SparseVector:
        """The entries at whose index the other has none.

        >>> v = SparseVector(8, [1, 2, 5], np.ones(3))
        >>> v.without(v.largest(1)).indices
        array([2, 5], dtype=uint32)
        """
        assert self.indices is not None
        assert other.indices is not None
        work.count(entries=self.nnz)
        return self._with_entries(*kernels.without(self.indices, self.values, other.indices))

    def histogram(self) -> npt.NDArray[np.int64]:
        """How many entries are in each class of magnitude; see ``kernels.histogram``."""
        work.count(values=self.nnz)
        return kernels.histogram(self.values)

    def count_blocks(self, block: int) -> int:
        """How many blocks of so many positions have an entry, or a value that is not zero.

        >>> SparseVector(8, [1, 2, 5], np.ones(3)).count_blocks(2)
        3
        """
        work.count(values=self.nnz)
        if self.indices is None:
            return len(kernels.nonzero_blocks(self.values, block))
        number = self.indices // block
        return int(np.count_nonzero(number[1:] != number[:-1])) + bool(self.nnz)

    def whole(self) -> SparseVector:
        """The entries as a vector without a range of its own."""
        return SparseVector.piece(self.length, 0, self.length, self.indices, self.values)

    def split_evenly(self, parts: int) -> list[SparseVector]:
        """The range in ``parts`` that differ by at most one position, as views.

        >>> [(p.start, p.stop) for p in SparseVector.empty(10).split_evenly(4)]
        [(0, 3), (3, 6), (6, 8), (8, 10)]
        """
        size, larger = divmod(self.span, parts)
        return self.split_at([self.start + part * size + min(part, larger) for part in range(parts + 1)])

    def to_dense(self) -> Array:
        """The range as a plain array; a dense vector's own array, not a copy."""
        if self.indices is None:
            return self.values
        work.count(entries=self.nnz, values=self.span)
        dense = np.zeros(self.span, self.dtype)
        kernels.scatter(dense, self.indices, self.values, offset=self.start)
        return dense

    def as_dense(self) -> SparseVector:
        """The same numbers, stored densely."""
        if self.is_dense:
            return self
        return SparseVector.piece(self.length, self.start, self.stop, None, self.to_dense())

    def as_sparse(self) -> SparseVector:
        """The same numbers, stored as entries; zeros of a dense vector are not entries."""
        if not self.is_dense:
            return self
        work.count(values=self.span)
        indices, values = kernels.dense_to_sparse(
            self.values, offset=self.start, index_dtype=index_dtype(self.length)
        )
        return SparseVector.piece(self.length, self.start, self.stop, indices, values)

    def smaller(self) -> SparseVector:
        """The same numbers in the form that takes fewer bytes.

        >>> SparseVector.from_dense(np.array([0, 0, 0, 7], dtype="int32")).smaller()
        SparseVector(length=4, nnz=1, int32)
        """
        if self.is_dense:
            return self.as_sparse() if _entry_bytes(self) < self.nbytes else self
        return self.as_dense() if self.nbytes > self.span * self.dtype.itemsize else self

    def decoded(self) -> SparseVector:
        """The same, with its arrays made: a piece that came over the wire makes them when it is looked at."""
        return self

    def write_to(self, indices: Array | None, values: Array) -> None:
        """Put the entries, or the values alone of a dense piece, where they are wanted."""
        if indices is not None:
            indices[:] = self.indices
        values[:] = self.values

    def detached(self) -> SparseVector:
        """The piece as a vector of its own: as long as its range, counted from 0."""
        indices = self.indices
        if indices is not None:
            indices = (indices - indices.dtype.type(self.start)).astype(index_dtype(self.span), copy=False)
        return SparseVector.piece(self.span, 0, self.span, indices, self.values)

    def with_values(self, values: Array, packed: Packed | None = None) -> SparseVector:
        """Other values at the same places."""
        vector = SparseVector.piece(self.length, self.start, self.stop, self.indices, values)
        vector.packed = packed
        return vector

    def divided_by(self, number: int) -> SparseVector:
        """Each value divided, and rounded once, in its dtype.

        >>> SparseVector(8, [1, 5], np.array([2.0, -1.0])).divided_by(4).values
        array([ 0.5 , -0.25])
        """
        return self.with_values((self.values / number).astype(self.dtype, copy=False))

    def __repr__(self) -> str:
        where = "" if self.span == self.length else f", range=[{self.start}, {self.stop})"
        stored = "dense" if self.is_dense else f"nnz={self.nnz}"
        return f"SparseVector(length={self.length}{where}, {stored}, {self.dtype.name})"


def index_dtype(length: int) -> np.dtype[Any]:
    """u32 as long as every index fits."""
    return np.dtype(np.uint32 if length <= 2**32 else np.uint64)


@dataclass(frozen=True)
class Reduction:
    """How the values that vectors have at one index become one value.

    A vector is what its dense form says: for the maximum and the minimum, an absent entry counts as zero.  If
    they are zero they may be entries all the same, and are 0.0, never -0.0.

    >>> low = SparseVector(4, [1, 2], np.array([-3.0, 5.0]))
    >>> MAX.merge([low, SparseVector.empty(4, "float64")]).to_dense()
    array([0., 0., 5., 0.])
    """

    name: str
    merge_entries: Callable[[Sequence[kernels.Entries], kernels.Entries | None], kernels.Entries]
    combine: np.ufunc
    absent_is_neutral: bool

    def merge(self, pieces: Sequence[SparseVector], out: kernels.Entries | None = None) -> SparseVector:
        """Pieces of one range as one, each index reduced in the order given; stored as is smaller.

        The sum of the entry counts bounds the result.  Only where that bound says that entries might need
        more room than the range itself, it is formed densely, and it returns to entries if few remain.
        ``out`` is where entries may be written to.
        """
        first = pieces[0]
        if len(pieces) == 1:
            return first
        entries = [(piece.indices, piece.values) for piece in pieces if piece.indices is not None]
        room = first.span * first.dtype.itemsize
        if len(entries) < len(pieces) or sum(piece.nbytes for piece in pieces) > room:
            return self.dense(pieces).smaller()
        work.count(entries=sum(piece.nnz for piece in pieces))
        indices, values = self.merge_entries(entries, out)
        return SparseVector.piece(first.length, first.start, first.stop, indices, values)

    def dense(self, pieces: Sequence[SparseVector]) -> SparseVector:
        """Pieces of one range as one, stored densely; half types are added up in float32."""
        first = pieces[0]
        total = memory.empty(first.span, _accumulator(first.dtype))
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


def _scatter(kernel: Callable[..., None], dense: Array, piece: SparseVector) -> None:
    work.count(entries=piece.nnz)
    kernel(dense, piece.indices, piece.values.astype(dense.dtype, copy=False), offset=piece.start)


SUM = Reduction("sum", kernels.merge_sum, np.add, absent_is_neutral=True)
MAX = Reduction("max", kernels.merge_max, np.maximum, absent_is_neutral=False)
MIN = Reduction("min", kernels.merge_min, np.minimum, absent_is_neutral=False)
REDUCTIONS = {op.name: op for op in (SUM, MAX, MIN)}


def concat(pieces: Sequence[SparseVector]) -> SparseVector:
    """Neighbouring pieces as one, stored as is smaller.

    >>> v = SparseVector(8, [1, 5], np.ones(2))
    >>> concat(v.split_at([0, 4, 8])).indices
    array([1, 5], dtype=uint32)
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first
    if any(piece.is_dense for piece in pieces):
        room = (last.stop - first.start) * first.dtype.itemsize
        if all(piece.is_dense for piece in pieces) or sum(map(_entry_bytes, pieces)) >= room:
            return _joined([piece.as_dense() for piece in pieces])
        pieces = [piece.as_sparse() for piece in pieces]
    return _joined(pieces)


class RangeSums:
    """Sums of neighbouring ranges, each written behind the one before, so that joining them is free.

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
        """At first, and if that was too little, as much as all ranges need if they are like those so far."""
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
    """All of them as one; they are all dense or all sparse."""
    first, last = pieces[0], pieces[-1]
    count = sum(piece.nnz for piece in pieces)
    work.count(values=count)
    indices = None if first.is_dense else memory.empty(count, index_dtype(first.length))
    values = memory.empty(count, first.dtype)
    end = 0
    for piece in pieces:
        begin, end = end, end + piece.nnz
        piece.write_to(None if indices is None else indices[begin:end], values[begin:end])
    return SparseVector.piece(first.length, first.start, last.stop, indices, values)


def _entry_bytes(piece: SparseVector) -> int:
    """Bytes of the piece if it were stored as entries."""
    nnz = piece.nnz
    if piece.is_dense:
        work.count(values=piece.span)
        nnz = int(np.count_nonzero(piece.values))
    return nnz * (index_dtype(piece.length).itemsize + piece.dtype.itemsize)


def _accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _checked_length(length: int) -> int:
    if not isinstance(length, int | np.integer) or isinstance(length, bool) or not 0 <= length < 2**63:
        raise InputError(f"length is {length!r}; it must be an integer of 0 or more")
    return int(length)


def _checked_values(values: npt.ArrayLike) -> Array:
    array = np.asarray(values)
    if array.dtype.name not in VALUE_DTYPES:
        raise InputError(f"values have dtype {array.dtype}; supported are {', '.join(VALUE_DTYPES)}")
    if array.ndim != 1:
        raise InputError(f"values have shape {array.shape}; a vector has one dimension: use .ravel()")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return _in_row(array, array.dtype)


def _in_row(array: Array, dtype: np.dtype[Any]) -> Array:
    """Contiguous and aligned, as kernels want it; a copy only where it must be."""
    array = np.ascontiguousarray(array, dtype)
    return array if array.flags.aligned else array.copy()


def _checked_indices(indices: npt.ArrayLike, length: int, nnz: int) -> Array:
    array = np.asarray(indices)
    if array.size == 0 and array.dtype.kind == "f":  # np.asarray([]) is float64
        array = array.astype(np.uint32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(
            f"indices have dtype {array.dtype} and shape {array.shape}; they must be integers in one row"
        )
    if len(array) != nnz:
        raise InputError(f"there are {len(array)} indices but {nnz} values; each entry needs both")
    if nnz > length:
        raise InputError(f"there are {nnz} entries in a vector of length {length}; at most {length} fit")
    if array.dtype.kind == "i" and nnz and array.min() < 0:
        _refuse(array, int(np.argmax(array < 0)), length)
    wanted = index_dtype(length)
    if array.dtype.itemsize > wanted.itemsize and nnz and array.max() >= length:
        _refuse(array, int(np.argmax(array >= length)), length)  # before the cast to u32 could hide it
    array = _in_row(array, wanted)
    position = kernels.first_invalid(array, 0, length)
    if position >= 0:
        _refuse(array, position, length)
    return array


def _refuse(indices: Array, position: int, length: int) -> None:
    here, before = int(indices[position]), int(indices[position - 1])
    if not 0 <= here < length:
        raise InputError(f"indices[{position}] is {here}, outside a vector of length {length}")
    what = "repeats" if here == before else "comes after the larger"
    raise InputError(
        f"indices[{position}] is {here}, which {what} indices[{position - 1}] = {before}; "
        "indices must strictly increase: SparseVector.coalesce(length, indices, values) sorts them "
        "and adds up duplicates"
    )
