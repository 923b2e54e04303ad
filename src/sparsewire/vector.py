"""SparseVector: a vector, or a range of one, stored as its entries or densely, whichever is smaller.

Words used throughout: an *index* is a position in the vector, an *entry* is (index, value), *length* is
the dimension, *nnz* the number of stored entries, and a *piece* is the part of a vector that lies in
[start, stop).  A piece keeps the indices of the whole vector, so pieces concatenate without rewriting.

A vector is a value: nothing here writes to arrays it was given, and neither should you.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire import kernels, work
from sparsewire.errors import InputError, MissingExtraError

__all__ = [
    "VALUE_DTYPES",
    "Array",
    "Packed",
    "SparseVector",
    "accumulator_dtype",
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
    """Rounded values in the bytes that travel, and the precision that they are rounded to."""

    precision: Any  # a ``coding.values.Precision``; a vector does not look into it
    data: Array


class SparseVector:
    """A vector of ``length`` whose entries are ``indices`` (strictly increasing) and ``values``.

    >>> v = SparseVector(8, [1, 5], np.array([2.0, -1.0], dtype="float32"))
    >>> v
    SparseVector(length=8, nnz=2, float32)
    >>> v.to_dense()
    array([ 0.,  2.,  0.,  0.,  0., -1.,  0.,  0.], dtype=float32)
    """

    __slots__ = ("coded", "indices", "length", "packed", "start", "stop", "values")

    length: int
    start: int
    stop: int
    indices: Array | None  # None: dense, values[i] belongs to index start + i
    values: Array
    packed: Packed | None  # if the values were rounded: the same values in the bytes that travel
    coded: Any  # if it came as a coded frame: that ``coding.frame.CodedPiece``, to be forwarded as it is

    def __init__(self, length: int, indices: npt.ArrayLike, values: npt.ArrayLike) -> None:
        length = _checked_length(length)
        checked = _checked_values(values)
        self._set(length, 0, length, _checked_indices(indices, length, len(checked)), checked)

    def _set(self, length: int, start: int, stop: int, indices: Array | None, values: Array) -> None:
        self.length, self.start, self.stop, self.indices, self.values = length, start, stop, indices, values
        self.packed = self.coded = None

    @classmethod
    def piece(cls, length: int, start: int, stop: int, indices: Array | None, values: Array) -> SparseVector:
        """A part of a vector from arrays that are known to be valid; nothing is checked or copied.

        Indices are checked where they enter: by the constructor, and when a frame is decoded.
        """
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
        wide = checked[order].astype(accumulator_dtype(checked.dtype), copy=False)
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
        """The number of stored entries; in a dense vector, of all positions."""
        return len(self.values)

    @property
    def span(self) -> int:
        """The number of positions in the range, stored or not."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Bytes of the entries, or of the dense values."""
        return self.values.nbytes + (0 if self.indices is None else self.indices.nbytes)

    @property
    def entry_bytes(self) -> int:
        """Bytes of the vector if it were stored as entries; counts the non-zero values of a dense one."""
        nnz = self.nnz
        if self.is_dense:
            work.count(values=self.span)
            nnz = int(np.count_nonzero(self.values))
        return nnz * (index_dtype(self.length).itemsize + self.dtype.itemsize)

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
        """The ``count`` entries of largest magnitude, and all others."""
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
        """The entries at whose index the other vector has no entry.

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
        """How many blocks of ``block`` positions have an entry, or a value that is not zero.

        >>> SparseVector(8, [1, 2, 5], np.ones(3)).count_blocks(2)
        3
        """
        work.count(values=self.nnz)
        if self.indices is None:
            return len(kernels.nonzero_blocks(self.values, block))
        number = self.indices // block
        return int(np.count_nonzero(number[1:] != number[:-1])) + bool(self.nnz)

    def whole(self) -> SparseVector:
        """The same entries, with the whole vector as their range."""
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
            return self.as_sparse() if self.entry_bytes < self.nbytes else self
        return self.as_dense() if self.nbytes > self.span * self.dtype.itemsize else self

    def decoded(self) -> SparseVector:
        """The same vector without the coded frame that it came in, whose memory can then be reused."""
        return self if self.coded is None else self.with_values(self.values, self.packed)

    def own(self) -> SparseVector:
        """The same vector as users get it: its numbers, and nothing of the messages that they came in.

        An array that is a view of a much larger one is copied, so that the larger one can be given back.
        """
        room = 2 * self.nbytes
        indices = None if self.indices is None else _without_surplus(self.indices, room)
        values = _without_surplus(self.values, room)
        if indices is self.indices and values is self.values and self.coded is self.packed is None:
            return self
        return SparseVector.piece(self.length, self.start, self.stop, indices, values)

    def detached(self) -> SparseVector:
        """The piece as a vector of its own: as long as its range, counted from 0."""
        indices = self.indices
        if indices is not None:
            indices = (indices - indices.dtype.type(self.start)).astype(index_dtype(self.span), copy=False)
        return SparseVector.piece(self.span, 0, self.span, indices, self.values)

    def with_values(self, values: Array, packed: Packed | None = None) -> SparseVector:
        """Other values at the same indices."""
        vector = SparseVector.piece(self.length, self.start, self.stop, self.indices, values)
        vector.packed = packed
        return vector

    def divided_by(self, number: int) -> SparseVector:
        """Each value divided by the number, and rounded once to its dtype.

        >>> SparseVector(8, [1, 5], np.array([2.0, -1.0])).divided_by(4).values
        array([ 0.5 , -0.25])
        """
        return self.with_values((self.values / number).astype(self.dtype, copy=False))

    def __repr__(self) -> str:
        where = "" if self.span == self.length else f", range=[{self.start}, {self.stop})"
        stored = "dense" if self.is_dense else f"nnz={self.nnz}"
        return f"SparseVector(length={self.length}{where}, {stored}, {self.dtype.name})"


def _without_surplus(array: Array, room: int) -> Array:
    """The array; a copy if it is a view of an array that has more than ``room`` bytes."""
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return array.copy() if whole.nbytes > room else array


def index_dtype(length: int) -> np.dtype[Any]:
    """The dtype of indices: u32 if every index of such a vector fits, else u64."""
    return np.dtype(np.uint32 if length <= 2**32 else np.uint64)


def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which values are added up: half types have too few bits for sums."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _checked_length(length: int) -> int:
    if not isinstance(length, int | np.integer) or isinstance(length, bool) or not 0 <= length < 2**63:
        raise InputError(f"length is {length!r}; it must be an integer of 0 or more")
    return int(length)


def _checked_values(values: npt.ArrayLike) -> Array:
    array = np.asarray(values)
    if not _is_value_dtype(array.dtype):
        raise InputError(f"values have dtype {array.dtype}; supported are {', '.join(VALUE_DTYPES)}")
    if array.ndim != 1:
        raise InputError(f"values have shape {array.shape}; a vector has one dimension: use .ravel()")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return _in_row(array, array.dtype)


@functools.cache  # numpy takes microseconds to make the name of a dtype
def _is_value_dtype(dtype: np.dtype[Any]) -> bool:
    return dtype.name in VALUE_DTYPES


def _in_row(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array contiguous and aligned, as kernels need it; a copy only if it is not so already."""
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
