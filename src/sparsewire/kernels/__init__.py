"""The loops that decide the speed, in the best version this machine runs.

    accumulate_select   residual += gradient; take out what is above a threshold       one pass
    select              the entries above a threshold; dense_to_sparse: the non-zeros
    threshold_for_k     the threshold that selects exactly k entries
    select_buckets      the k largest of every bucket; accumulate_select_buckets: as accumulate_select
    block_norms         Euclidean norms of blocks; accumulate_block_norms: after residual += gradient
    nonzero_blocks      which blocks are not all zero
    add_blocks          add blocks into chosen blocks of an array
    gather_blocks       chosen blocks one after the other; scatter_blocks: back to their places
    histogram           how many values are in each class of magnitude
    partition           the entries of a run above a threshold, and the others
    without             the entries of a run whose indices another one lacks
    merge_sum           sum of sorted runs, added in run order; merge_max, merge_min: absent is zero
    scatter_add         add (scatter: store) entries into a dense range; spread: and zeros between them
    split_at            where index ranges begin in a run
    first_invalid       first index out of order or out of range
    checksum            64-bit Fletcher sums in eight lanes
    narrow, widen       float32 to float16 or bfloat16, and back
    quantize            float32 to 2, 4 or 8 bits, rounded at random (QSGD); dequantize: back
    row_columns         the columns that chosen rows of a sparse matrix have
    row_products        chosen rows times weights of these columns; row_sums: factors times chosen rows
    parse_libsvm        lines of LIBSVM's text format as the arrays of a sparse matrix
    encode_elias_fano   indices as few bits; encode_bitmap, encode_tiles: where many or clustered; decode_...

Arrays are one-dimensional, contiguous and aligned; nothing is ever copied silently, so a strided array or
another dtype is a TypeError.  Indices are uint32 or uint64; values float32, float64, float16, bfloat16
(ml_dtypes'), int32 or int64.  Integers wrap around.  Half types are added in float32 and rounded once.

Versions are named "reference" (numpy), "scalar", "avx2" and "avx512"; all return the same bits, except for
the payload of a NaN.  SPARSEWIRE_ISA forces one at import.
"""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import magnitude, memory, reference
from sparsewire.kernels.libsvm import LARGEST_INDEX, Parsed, Room, Wanted
from sparsewire.kernels.magnitude import Number

__all__ = [
    "accumulate_block_norms",
    "accumulate_select",
    "accumulate_select_buckets",
    "active_isa",
    "add_blocks",
    "available_isas",
    "block_norms",
    "checksum",
    "count_tiles",
    "decode_bitmap",
    "decode_elias_fano",
    "decode_tiles",
    "dense_to_sparse",
    "dequantize",
    "elias_fano_words",
    "encode_bitmap",
    "encode_elias_fano",
    "encode_tiles",
    "first_invalid",
    "gather_blocks",
    "histogram",
    "libsvm_room",
    "merge_max",
    "merge_min",
    "merge_sum",
    "narrow",
    "nonzero_blocks",
    "parse_libsvm",
    "partition",
    "quantize",
    "row_columns",
    "row_products",
    "row_sums",
    "scatter",
    "scatter_add",
    "scatter_blocks",
    "select",
    "select_buckets",
    "split_at",
    "spread",
    "threshold_for_k",
    "use_isa",
    "widen",
    "without",
]

Indices = npt.NDArray[Any]
Values = npt.NDArray[Any]
Entries = tuple[Indices, Values]
Words = npt.NDArray[np.uint64]
Starts = npt.NDArray[np.int64]  # of the rows of a matrix, and where the last one ends
Positions = npt.NDArray[np.uint32]
Blocks = npt.NDArray[np.int64]  # their numbers, counted from 0

_INDEX_DTYPES = (np.dtype(np.uint32), np.dtype(np.uint64))
_ALL_LINES = Wanted()
# bfloat16 joins when the first such array shows up, so that ml_dtypes is not imported for nothing.
_VALUE_DTYPES = {np.dtype(t) for t in (np.float32, np.float64, np.float16, np.int32, np.int64)}


def accumulate_select(
    residual: Values,
    gradient: Values,
    threshold: Number,
    ties: int = 0,
    *,
    index_dtype: npt.DTypeLike = np.uint32,
    velocity: Values | None = None,
    momentum: float = 0.0,
) -> Entries:
    """Add the gradient to the residual and move the large entries out of it, in one pass.

    Moved are the entries whose magnitude exceeds the threshold, and the first `ties` whose magnitude equals
    it, in index order; the residual is zero where they were.  What was moved plus what stays is residual +
    gradient, to the bit.

    With a velocity, that becomes momentum * velocity + gradient and is added in place of the gradient.  It
    stays where entries were moved out.  Momentum, product and sum are each rounded to the dtype.

    >>> residual = np.array([0.5, 0, -2, 0], np.float32)
    >>> accumulate_select(residual, np.array([1, 0, -1, 0.5], np.float32), 1)
    (array([0, 2], dtype=uint32), array([ 1.5, -3. ], dtype=float32))
    >>> residual
    array([0. , 0. , 0. , 0.5], dtype=float32)
    """
    _check_accumulation(residual, gradient)
    dtype = _index_dtype(index_dtype, len(residual))
    bits, ties = magnitude.to_bits(threshold, ties, residual.dtype)
    if velocity is not None:
        _check_velocity(velocity, residual)
        momentum = float(velocity.dtype.type(momentum))
    entries: Entries = _kernels.accumulate_select(residual, gradient, bits, ties, dtype, velocity, momentum)
    return entries


def select(
    x: Values,
    threshold: Number,
    ties: int = 0,
    *,
    offset: int = 0,
    index_dtype: npt.DTypeLike = np.uint32,
) -> Entries:
    """The entries of x whose magnitude exceeds the threshold, and the first `ties` that equal it.

    An entry's index is its position plus `offset`.

    >>> select(np.array([1, -3, 2, 2], np.float32), 2, ties=1, offset=10)
    (array([11, 12], dtype=uint32), array([-3.,  2.], dtype=float32))
    """
    _check_values(x, "x")
    dtype = _index_dtype(index_dtype, _not_negative(offset, "offset") + len(x))
    bits, ties = magnitude.to_bits(threshold, ties, x.dtype)
    entries: Entries = _kernels.select(x, bits, ties, offset, dtype)
    return entries


def dense_to_sparse(x: Values, *, offset: int = 0, index_dtype: npt.DTypeLike = np.uint32) -> Entries:
    """The entries of x that are not zero; -0.0 is zero, denormals and NaN are not.

    >>> dense_to_sparse(np.array([0.0, 7.0, -0.0, np.nan]))
    (array([1, 3], dtype=uint32), array([ 7., nan]))
    """
    return select(x, 0, offset=offset, index_dtype=index_dtype)


def threshold_for_k(x: Values, k: int) -> tuple[float | int, int]:
    """The threshold and ties with which `select` takes exactly the k largest magnitudes of x.

    The k-th largest magnitude is exact, and among equals the lowest index wins.  All NaN count as equal, and
    as larger than infinity: when the k-th largest is a NaN the threshold is nan, and the ties are k.

    >>> threshold_for_k(np.array([1, -3, 2, 2], np.float32), 2)
    (2.0, 1)
    """
    _check_values(x, "x")
    k = operator.index(k)
    if not 1 <= k <= len(x):
        raise ValueError(f"k must be between 1 and the number of values: k is {k}, there are {len(x)} values")
    bits, ties = _kernels.threshold_for_k(x, k)
    return magnitude.from_bits(bits, x.dtype), ties


def select_buckets(
    x: Values, k: int, bucket: int = 512, *, index_dtype: npt.DTypeLike = np.uint32
) -> Entries:
    """Of every `bucket` consecutive values the entries of the k largest magnitudes, in index order.

    Among equals the lowest index wins; zeros are never taken.  The last bucket may be shorter.  All NaN count
    as equal, and as larger than infinity.

    >>> select_buckets(np.array([1, -3, 2, 2, 0, 0, 5], np.float32), 2, bucket=4)
    (array([1, 2, 6], dtype=uint32), array([-3.,  2.,  5.], dtype=float32))
    """
    _check_values(x, "x")
    k, bucket, (indices, values) = _room_for_buckets(x, k, bucket, index_dtype)
    count: int = _kernels.select_buckets(x, k, bucket, indices, values)
    return memory.used(indices, count), memory.used(values, count)


def accumulate_select_buckets(
    residual: Values, gradient: Values, k: int, bucket: int = 512, *, index_dtype: npt.DTypeLike = np.uint32
) -> Entries:
    """Add the gradient to the residual and move out of it what `select_buckets` takes, in one pass.

    >>> residual = np.array([0.5, 0, -2, 0], np.float32)
    >>> accumulate_select_buckets(residual, np.array([1, 0, -1, 0.5], np.float32), 1, bucket=2)
    (array([0, 2], dtype=uint32), array([ 1.5, -3. ], dtype=float32))
    >>> residual
    array([0. , 0. , 0. , 0.5], dtype=float32)
    """
    _check_accumulation(residual, gradient)
    k, bucket, (indices, values) = _room_for_buckets(residual, k, bucket, index_dtype)
    count: int = _kernels.accumulate_select_buckets(residual, gradient, k, bucket, indices, values)
    return memory.used(indices, count), memory.used(values, count)


def block_norms(x: Values, block: int) -> npt.NDArray[np.float64]:
    """The Euclidean norm of every `block` consecutive values; the last block may be shorter.

    Squares are added in float64 and nothing is scaled: the norm of float64 values from 1e154 on is infinite.

    >>> block_norms(np.array([3, 4, 0, 5, 7], np.float32), 2)
    array([5., 5., 7.])
    """
    _check_values(x, "x")
    block, norms = _room_for_norms(len(x), block)
    _kernels.block_norms(x, block, norms)
    return norms


def accumulate_block_norms(residual: Values, gradient: Values, block: int) -> npt.NDArray[np.float64]:
    """Add the gradient to the residual, whose `block_norms` are returned, in one pass.

    >>> residual = np.array([1, 1, 0, 5], np.float32)
    >>> accumulate_block_norms(residual, np.array([2, 3, 0, 0], np.float32), 2)
    array([5., 5.])
    >>> residual
    array([3., 4., 0., 5.], dtype=float32)
    """
    _check_accumulation(residual, gradient)
    block, norms = _room_for_norms(len(residual), block)
    _kernels.accumulate_block_norms(residual, gradient, block, norms)
    return norms


def nonzero_blocks(x: Values, block: int) -> Blocks:
    """The numbers of the blocks of `block` consecutive values that are not all zero; the last may be shorter.

    -0.0 is zero, denormals and NaN are not.  A block is read up to the first value that is not zero.

    >>> nonzero_blocks(np.array([0, 0, 0, 5, -0.0, 0, np.nan], np.float32), 2)
    array([1, 3])
    """
    _check_values(x, "x")
    block = _block_length(len(x), block)
    numbers = memory.empty(-(-len(x) // block), np.int64)
    count: int = _kernels.nonzero_blocks(x, block, numbers)
    return memory.used(numbers, count)


def add_blocks(total: Values, rows: Blocks, data: Values, block: int) -> None:
    """total[rows[i] * block + j] += data[i * block + j], for every j of a block.

    Rows must be strictly increasing: the total is untouched if they are not, or if one lies outside.  Its
    last block may be shorter: what data has beyond it is not added.  Both have one dtype, except that half
    types are added to a total of float32.

    >>> total = np.ones(5, np.float32)
    >>> add_blocks(total, np.array([0, 2]), np.array([1, 2, 3, 0], np.float16), 2)
    >>> total
    array([2., 3., 1., 1., 4.], dtype=float32)
    """
    _check_values(total, "total")
    _check_writeable(total, "total")
    _check_values(data, "data")
    wide = np.dtype(np.float32) if data.dtype.itemsize == 2 else data.dtype
    if total.dtype != wide:
        raise TypeError(f"{data.dtype} values are added to a total of {wide}, not of {total.dtype}")
    existing = _check_blocks(rows, len(total), block)
    _check_data(data, rows, block)
    invalid = first_invalid(rows.view(np.uint64), 0, existing)
    if invalid >= 0:
        raise ValueError(
            f"rows must be strictly increasing in [0, {existing}): "
            f"the one at position {invalid} is {rows[invalid]}"
        )
    if len(rows) > 0:
        _kernels.add_blocks(total, rows, data, block)


def gather_blocks(x: Values, blocks: Blocks, block: int) -> Values:
    """The blocks of `block` values with these numbers, one after the other, in any order.

    If the last block of x is shorter, zeros follow it.

    >>> gather_blocks(np.array([1, 2, 3, 4, 5], np.float32), np.array([2, 0]), 2)
    array([5., 0., 1., 2.], dtype=float32)
    """
    _check_values(x, "x")
    _check_among(blocks, _check_blocks(blocks, len(x), block))
    gathered = memory.empty(len(blocks) * block, x.dtype)
    if len(blocks) > 0:
        _kernels.gather_blocks(x, blocks, block, gathered)
    return gathered


def scatter_blocks(x: Values, blocks: Blocks, block: int, data: Values) -> None:
    """Store data, laid out as by `gather_blocks`, into the blocks of x with these numbers, in any order.

    x is untouched if one of them does not exist.  What data has beyond a shorter last block is not stored.
    Of a block that is named twice, the last data stays.

    >>> x = np.zeros(5, np.float32)
    >>> scatter_blocks(x, np.array([2, 0]), 2, np.array([5, 0, 1, 2], np.float32))
    >>> x
    array([1., 2., 0., 0., 5.], dtype=float32)
    """
    _check_values(x, "x")
    _check_writeable(x, "x")
    _check_values(data, "data")
    _check_same_dtype(x, data, "x and data")
    _check_among(blocks, _check_blocks(blocks, len(x), block))
    _check_data(data, blocks, block)
    if len(blocks) > 0:
        _kernels.scatter_blocks(x, blocks, block, data)


def histogram(x: Values) -> npt.NDArray[np.int64]:
    """How many values are in each of 4096 classes of magnitude, 16 to a factor of two.

    A value's class is the first 12 bits, after the sign, of the value as a float32, to which it is rounded.
    So classes are in the order of magnitudes, and `magnitude.class_floor` is where one begins.  Zeros are in
    class 0, with the smallest numbers; infinities in class 4080, and NaN in the last one.

    >>> np.flatnonzero(histogram(np.array([1.0, -1.05, 1.1, 2.0])))
    array([2032, 2033, 2048])
    """
    _check_values(x, "x")
    counts: npt.NDArray[np.int64] = _kernels.histogram(x)
    return counts


def partition(indices: Indices, values: Values, threshold: Number, ties: int = 0) -> tuple[Entries, Entries]:
    """The entries that `select` would take, by magnitude of their values, and the others; both in order.

    >>> partition(np.array([3, 5, 9], np.uint32), np.array([1.0, -4.0, 2.0]), 1.5)[1]
    (array([3], dtype=uint32), array([1.]))
    """
    _check_entries(indices, values)
    bits, ties = magnitude.to_bits(threshold, ties, values.dtype)
    large, rest = (
        (memory.empty(len(indices), indices.dtype), memory.empty(len(values), values.dtype)) for _ in range(2)
    )
    count: int = _kernels.partition(indices, values, bits, ties, *large, *rest)
    others = len(indices) - count
    return (
        (memory.used(large[0], count), memory.used(large[1], count)),
        (memory.used(rest[0], others), memory.used(rest[1], others)),
    )


def without(indices: Indices, values: Values, others: Indices) -> Entries:
    """The entries whose index is not among `others`; both strictly increasing.

    >>> without(np.array([1, 5, 9], np.uint32), np.array([1.0, 2.0, 3.0]), np.array([0, 5], np.uint32))
    (array([1, 9], dtype=uint32), array([1., 3.]))
    """
    _check_entries(indices, values)
    _check_indices(others, "others")
    _check_same_dtype(indices, others, "indices and others")
    out = memory.empty(len(indices), indices.dtype), memory.empty(len(values), values.dtype)
    count: int = _kernels.without(indices, values, others, *out)
    return memory.used(out[0], count), memory.used(out[1], count)


def merge_sum(runs: Sequence[Entries], out: Entries | None = None) -> Entries:
    """The sum of runs of entries, each with strictly increasing indices: one entry per index of any run.

    The values of an index are added in the order of the runs.  An explicit zero, or a sum that is zero, keeps
    its entry.  The result is the beginning of ``out``, which must have room for the entries of all runs, or
    new arrays.

    >>> a = np.array([1, 5], np.uint32), np.array([1.0, 2.0])
    >>> b = np.array([5, 9], np.uint32), np.array([-2.0, 4.0])
    >>> merge_sum([a, b])
    (array([1, 5, 9], dtype=uint32), array([1., 0., 4.]))
    """
    return _merge("sum", runs, out)


def merge_max(runs: Sequence[Entries], out: Entries | None = None) -> Entries:
    """As `merge_sum`, with the largest of each index's values; a run that lacks the index counts as zero.

    NaN wins over numbers, and a result that is zero is 0.0, never -0.0.

    >>> a = np.array([1, 5], np.uint32), np.array([-1.0, 2.0])
    >>> b = np.array([5, 9], np.uint32), np.array([-2.0, 4.0])
    >>> merge_max([a, b])
    (array([1, 5, 9], dtype=uint32), array([0., 2., 4.]))
    """
    return _merge("max", runs, out)


def merge_min(runs: Sequence[Entries], out: Entries | None = None) -> Entries:
    """As `merge_max`, with the smallest."""
    return _merge("min", runs, out)


def scatter_add(dense: Values, indices: Indices, values: Values, offset: int = 0) -> None:
    """dense[indices - offset] += values.

    Indices must be strictly increasing (`first_invalid` tells): only the first and the last are compared with
    the range of `dense`, and it is untouched if one of them lies outside.

    >>> dense = np.ones(3, np.float32)
    >>> scatter_add(dense, np.array([10, 12], np.uint32), np.array([5, 6], np.float32), offset=10)
    >>> dense
    array([6., 1., 7.], dtype=float32)
    """
    if _check_scatter(dense, indices, values, offset):
        _kernels.scatter_add(dense, indices, values, offset)


def scatter(dense: Values, indices: Indices, values: Values, offset: int = 0) -> None:
    """dense[indices - offset] = values.  The same conditions as `scatter_add`.

    >>> dense = np.zeros(3, np.float32)
    >>> scatter(dense, np.array([0, 2], np.uint32), np.array([5, 6], np.float32))
    >>> dense
    array([5., 0., 6.], dtype=float32)
    """
    if _check_scatter(dense, indices, values, offset):
        _kernels.scatter(dense, indices, values, offset)


def spread(dense: Values, indices: Indices, values: Values, offset: int = 0) -> None:
    """As `scatter`, and zeros everywhere else.

    >>> dense = np.ones(3, np.float32)
    >>> spread(dense, np.array([2], np.uint32), np.array([6], np.float32))
    >>> dense
    array([0., 0., 6.], dtype=float32)
    """
    _check_scatter(dense, indices, values, offset)
    _kernels.spread(dense, indices, values, offset)


def split_at(indices: Indices, cuts: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """For each cut, the position of the first index that is not below it.

    >>> split_at(np.array([1, 5, 9], np.uint32), [0, 5, 6, 2**40])
    array([0, 1, 2, 3])
    """
    _check_indices(indices, "indices")
    positions: npt.NDArray[np.int64] = _kernels.split_at(indices, _unsigned_cuts(cuts))
    return positions


def first_invalid(indices: Indices, start: int, stop: int) -> int:
    """The position of the first index not above its predecessor or not in [start, stop); -1 if there is none.

    >>> first_invalid(np.array([1, 5, 5], np.uint32), 0, 10)
    2
    """
    _check_indices(indices, "indices")
    first, last = _not_negative(start, "start"), min(_not_negative(stop, "stop"), 2**64) - 1
    if first > last:  # no index is in an empty range
        return 0 if len(indices) else -1
    position: int = _kernels.first_invalid(indices, first, last)
    return position


def checksum(data: npt.NDArray[Any], seed: int = 0) -> int:
    """A 64-bit number that changes when the bytes of a contiguous array, their count, or the seed do.

    >>> x = np.arange(4, dtype=np.uint32)
    >>> checksum(x) == checksum(x, seed=1)
    False
    """
    if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
        raise TypeError("data must be a contiguous numpy array")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must fit 64 bits, got {seed}")
    number: int = _kernels.checksum(data.reshape(-1).view(np.uint8), seed)
    return number


def narrow(values: Values, dtype: npt.DTypeLike) -> Values:
    """float32 values as float16 or bfloat16, rounded to nearest, ties to even.

    What is too large becomes infinity, and NaN stays NaN.

    >>> narrow(np.array([1.5, 1 / 3, 1e6], np.float32), np.float16)
    array([1.5   , 0.3333,    inf], dtype=float16)
    """
    _check_dtype(values, np.float32, "values")
    out = memory.empty(len(values), _half_dtype(np.dtype(dtype)))
    _kernels.narrow(values, out)
    return out


def widen(values: Values, out: Values | None = None) -> npt.NDArray[np.float32]:
    """float16 or bfloat16 values as float32, which holds them all; in ``out``, or in a new array.

    >>> widen(np.array([1.5, -2], np.float16))
    array([ 1.5, -2. ], dtype=float32)
    """
    _check_array(values, "values")
    _half_dtype(values.dtype)
    wide = _room(out, len(values), np.dtype(np.float32))
    _kernels.widen(values, wide)
    return wide


def quantize(
    values: Values,
    bits: int,
    *,
    positions: Indices | int = 0,
    key: int | None = 0,
    bucket: int = 1024,
    norm: str = "max",
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Scales of buckets, and codes of `bits` bits that stand for float32 values in units of their scale.

    QSGD (Alistarh et al., NeurIPS 2017, section 3.1).  Every `bucket` consecutive values share a scale, which
    is their largest magnitude, or their 2-norm.  With bits of 2, 4 or 8 there are s = 1, 7 or 127 levels of
    each sign; a value becomes one of the two levels around it, at random, so that its mean is right.  Zeros
    stay zeros.  What is not finite becomes NaN, and disturbs no other value.

    The random number of a value depends on `key` and on its position only, which is in `positions`, or
    counts from there.  Without a key the nearest level is taken, and the smaller one of two that are as near.
    Codes are packed, with the first value in the lowest bits.

    >>> quantize(np.array([7, 0, -3, np.inf], np.float32), 4)
    (array([7.], dtype=float32), array([  7, 141], dtype=uint8))
    """
    _check_dtype(values, np.float32, "values")
    bits, bucket = _check_format(bits, bucket)
    if norm not in ("max", "2"):
        raise ValueError(f"norm must be 'max' or '2', not {norm!r}")
    if key is not None and not 0 <= operator.index(key) < 2**32:
        raise ValueError(f"key must fit 32 bits, got {key}")
    count, bucket = len(values), min(bucket, len(values) or 1)
    scales = memory.empty(-(-count // bucket), np.float32)
    codes = memory.empty(-(-count * bits // 8), np.uint8)
    places = _check_positions(positions, count)
    _kernels.quantize(values, places, key, bits, bucket, norm, scales, codes)
    return scales, codes


def dequantize(
    scales: Values,
    codes: npt.NDArray[np.uint8],
    count: int,
    bits: int,
    bucket: int = 1024,
    out: Values | None = None,
) -> npt.NDArray[np.float32]:
    """The values that `quantize` chose: scale * (level / s).  Any numbers are valid scales and codes.

    They are written to ``out``, or to a new array.

    >>> dequantize(np.array([7], np.float32), np.array([7, 141], np.uint8), 4, 4)
    array([ 7.,  0., -3., nan], dtype=float32)
    """
    _check_dtype(scales, np.float32, "scales")
    _check_dtype(codes, np.uint8, "codes")
    bits, bucket = _check_format(bits, bucket)
    count = _not_negative(count, "count")
    expected, got = (-(-count // bucket), -(-count * bits // 8)), (len(scales), len(codes))
    if got != expected:
        raise ValueError(
            f"{count} values of {bits} bits in buckets of {bucket} have {expected[0]} scales and "
            f"{expected[1]} bytes of codes, got {got[0]} and {got[1]}"
        )
    values = _room(out, count, np.dtype(np.float32))
    _kernels.dequantize(scales, codes, bits, min(bucket, count or 1), values)
    return values


def elias_fano_words(count: int, span: int) -> int:
    """How many words `encode_elias_fano` makes of so many indices in a range of `span` positions.

    >>> elias_fano_words(167_772, 2**24)  # 8.6 bits for each
    22447
    """
    count, span = operator.index(count), operator.index(span)
    if not 0 <= count <= span:
        raise ValueError(f"{count} indices do not fit into {span} positions")
    if count == 0:
        return 0
    low = (span // count).bit_length() - 1
    return _words_for(count * low) + _words_for(count + ((span - 1) >> low))


def encode_elias_fano(indices: Indices, start: int, span: int) -> Words:
    """Strictly increasing indices in [start, start + span) in about 2 + log2(span / count) bits each.

    With r = index - start and low = floor(log2(span / count)): the low bits of every r one after the other,
    then from the next word on bit (r >> low) + j set for the j-th index.  Bit b of an array of words is bit
    b % 64 of word b // 64.

    >>> encode_elias_fano(np.array([11, 13, 18], np.uint32), 10, 10)  # low = 1; bits 0, 2 and 6 above
    array([ 3, 69], dtype=uint64)
    """
    _check_support(indices, start, span)
    words: Words = memory.empty(elias_fano_words(len(indices), span), np.uint64)
    _kernels.encode_elias_fano(indices, start, span, words)
    return words


def decode_elias_fano(
    words: Words,
    count: int,
    start: int,
    span: int,
    index_dtype: npt.DTypeLike = np.uint32,
    out: Indices | None = None,
) -> Indices | None:
    """The indices that were encoded; None if the words, which may be any, encode no such indices.

    They are written to ``out``, or to a new array.

    >>> decode_elias_fano(np.array([3, 69], np.uint64), 3, 10, 10)
    array([11, 13, 18], dtype=uint32)
    >>> decode_elias_fano(np.array([3, 69], np.uint64), 2, 10, 10) is None
    True
    """
    dtype = _check_code(words, count, start, span, index_dtype)
    if count > span or len(words) != elias_fano_words(count, span):
        return None
    indices = _room(out, count, dtype)
    return indices if _kernels.decode_elias_fano(words, start, span, indices) else None


def encode_bitmap(indices: Indices, start: int, span: int) -> Words:
    """Strictly increasing indices in [start, start + span), one bit per position: bit index - start is set.

    >>> encode_bitmap(np.array([10, 12], np.uint32), 10, 64)
    array([5], dtype=uint64)
    """
    _check_support(indices, start, span)
    words: Words = memory.empty(_words_for(span), np.uint64)
    _kernels.encode_bitmap(indices, start, span, words)
    return words


def decode_bitmap(
    words: Words,
    count: int,
    start: int,
    span: int,
    index_dtype: npt.DTypeLike = np.uint32,
    out: Indices | None = None,
) -> Indices | None:
    """As `decode_elias_fano`, of such words.

    >>> decode_bitmap(np.array([5], np.uint64), 2, 10, 64)
    array([10, 12], dtype=uint32)
    """
    dtype = _check_code(words, count, start, span, index_dtype)
    if count > span or len(words) != _words_for(span):
        return None
    indices = _room(out, count, dtype)
    return indices if _kernels.decode_bitmap(words, start, span, indices) else None


def count_tiles(indices: Indices, start: int) -> int:
    """In how many tiles of 64 positions, the first of which begins at `start`, increasing indices lie.

    >>> count_tiles(np.array([10, 73, 74], np.uint32), 10)
    2
    """
    _check_indices(indices, "indices")
    _not_negative(start, "start")
    if len(indices) == 0:
        return 0
    if start > indices[0]:
        raise ValueError(f"the first tile begins at {start}, behind the first index, {indices[0]}")
    tiles: int = _kernels.count_tiles(indices, start)
    return tiles


def encode_tiles(indices: Indices, start: int, span: int, tiles: int) -> Words:
    """The bitmap without its words that are zero, behind a bitmap of those that are not.

    ``tiles`` is what `count_tiles` says.

    >>> encode_tiles(np.array([0, 128, 129], np.uint32), 0, 1000, tiles=2)
    array([5, 1, 3], dtype=uint64)
    """
    _check_support(indices, start, span)
    if not 0 <= tiles <= len(indices):
        raise ValueError(f"{len(indices)} indices do not lie in {tiles} tiles")
    words: Words = memory.empty(_words_for(_words_for(span)) + tiles, np.uint64)
    if not _kernels.encode_tiles(indices, start, span, words):
        raise ValueError(f"the indices lie in {count_tiles(indices, start)} tiles, not in {tiles}")
    return words


def decode_tiles(
    words: Words,
    count: int,
    start: int,
    span: int,
    index_dtype: npt.DTypeLike = np.uint32,
    out: Indices | None = None,
) -> Indices | None:
    """As `decode_elias_fano`, of such words.

    >>> decode_tiles(np.array([5, 1, 3], np.uint64), 3, 0, 1000)
    array([  0, 128, 129], dtype=uint32)
    """
    dtype = _check_code(words, count, start, span, index_dtype)
    if count > 64 * len(words):  # before there is memory for them
        return None
    indices = _room(out, count, dtype)
    return indices if _kernels.decode_tiles(words, start, span, indices) else None


def libsvm_room(nbytes: int, index_dtype: npt.DTypeLike, dtype: npt.DTypeLike) -> Room:
    """Room for the rows of any text of so many bytes; untouched, it takes no memory."""
    rows, entries = _not_negative(nbytes, "nbytes") // 2, nbytes // 4
    # Not from `memory`, which would keep it: it is needed once for each file, not for each collective.
    return Room(
        np.empty(rows, np.float64),
        np.empty(rows, np.int64),
        np.empty(entries, index_dtype),
        np.empty(entries, dtype),
    )


def parse_libsvm(text: npt.NDArray[np.uint8], room: Room, wanted: Wanted = _ALL_LINES) -> Parsed:
    """The rows of a text of whole lines, ``label [qid:N] index:value ... [# comment]``, stored in the room.

    Every line ends with a newline; those without a word are no rows.  Numbers are decimal and finite: a value
    is the nearest float64, and if the room has float32 that is rounded once more.  Explicit zeros stay.
    Indices increase strictly within a row, and are stored as they are: from 0 or from 1 on.  At the first
    malformed line it ends, and what is wrong is in the result.

    >>> text = np.frombuffer(b"+1 3:0.5 7:1\\n# a comment\\n-1 qid:4 2:1e3\\n", np.uint8)
    >>> room = libsvm_room(len(text), np.int32, np.float32)
    >>> parse_libsvm(text, room)[:6]
    (2, 3, 3, 2, 7, True)
    >>> room.labels[:2], room.counts[:2], room.indices[:3]
    (array([ 1., -1.]), array([2, 1]), array([3, 7, 2], dtype=int32))
    """
    _check_dtype(text, np.uint8, "text")
    _check_libsvm_room(room, len(text))
    if len(text) > 0 and text[-1] != ord("\n"):
        raise ValueError("the last line of the text must end with a newline")
    if wanted.first < 0 or wanted.every < 1 or not 0 <= wanted.lowest <= wanted.highest <= LARGEST_INDEX:
        raise ValueError(f"there are no such lines or indices: {wanted}")
    parsed: Parsed = _kernels.parse_libsvm(text, wanted, room)
    return parsed


def available_isas() -> tuple[str, ...]:
    """The versions that run on this machine, slowest first."""
    return _ISAS


def active_isa() -> str:
    """The version that the next call uses."""
    return _active


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Use another version inside the block, in all threads.

    >>> with use_isa("reference"):
    ...     active_isa()
    'reference'
    """
    previous = active_isa()
    _force(name)
    try:
        yield
    finally:
        _force(previous)


def _force(name: str) -> None:
    global _kernels, _active
    if name not in _ISAS:
        raise ValueError(f"no kernels named {name!r} here; there are {', '.join(_ISAS)}")
    if name == "reference":
        _kernels = reference
    else:
        _kernels = compiled
        _compiled.force_isa(name)
    _active = name


def row_columns(
    starts: Starts, indices: Indices, rows: npt.NDArray[np.int64], width: int
) -> tuple[Indices, Positions]:
    """The columns that chosen rows of a sparse matrix have, increasing, and where each entry's is among them.

    Row r is the entries ``starts[r]`` to ``starts[r + 1]`` of the matrix, which has ``width`` columns.  The
    second array has an element for every entry of the chosen rows, one row after the other.

    >>> starts, indices = np.array([0, 2, 3, 5]), np.array([3, 8, 5, 3, 5], np.uint32)
    >>> row_columns(starts, indices, np.array([2, 0]), 10)
    (array([3, 5, 8], dtype=uint32), array([0, 1, 0, 2], dtype=uint32))
    """
    _check_indices(indices, "indices")
    entries = _check_rows(starts, rows, len(indices))
    words = _words_for(_not_negative(width, "width"))
    marks, before = memory.empty(words, np.uint64), memory.empty(words, np.uint32)
    columns, positions = memory.empty(entries, indices.dtype), memory.empty(entries, np.uint32)
    count: int = _kernels.row_columns(starts, indices, rows, width, marks, before, columns, positions)
    return memory.used(columns, count), positions


def row_products(
    starts: Starts,
    values: Values,
    rows: npt.NDArray[np.int64],
    positions: Positions,
    weights: npt.NDArray[np.float64],
    outputs: int = 1,
) -> npt.NDArray[np.float64]:
    """Chosen rows times weights, by row and output; ``positions`` are what ``row_columns`` said.

    The weights are by column, of those that the rows have, and output.  Sums are made in float64, in the
    order of the entries.

    >>> starts, values = np.array([0, 2, 3, 5]), np.array([1, 2, 3, 4, 5], np.float32)
    >>> rows, positions = np.array([2, 0]), np.array([0, 1, 0, 2], np.uint32)
    >>> row_products(starts, values, rows, positions, np.array([1.0, 10.0, 100.0]))
    array([ 54., 201.])
    """
    _check_matrix(starts, values, rows, positions, outputs)
    _check_dtype(weights, np.float64, "weights")
    if len(weights) % outputs:
        raise ValueError(f"{len(weights)} weights are not {outputs} for each column")
    products = memory.empty(len(rows) * outputs, np.float64)
    _kernels.row_products(starts, values, rows, positions, weights, outputs, products)
    return products


def row_sums(
    starts: Starts,
    values: Values,
    rows: npt.NDArray[np.int64],
    positions: Positions,
    factors: npt.NDArray[np.float64],
    columns: int,
    outputs: int = 1,
) -> npt.NDArray[np.float64]:
    """The sum of chosen rows, each times its factor, by column and output: ``row_products`` the other way.

    >>> starts, values = np.array([0, 2, 3, 5]), np.array([1, 2, 3, 4, 5], np.float32)
    >>> rows, positions = np.array([2, 0]), np.array([0, 1, 0, 2], np.uint32)
    >>> row_sums(starts, values, rows, positions, np.array([1.0, 10.0]), columns=3)
    array([14.,  5., 20.])
    """
    _check_matrix(starts, values, rows, positions, outputs)
    _check_dtype(factors, np.float64, "factors")
    if len(factors) != len(rows) * outputs:
        raise ValueError(f"{len(factors)} factors are not {outputs} for each of {len(rows)} rows")
    sums = memory.empty(_not_negative(columns, "columns") * outputs, np.float64)
    sums[:] = 0.0
    _kernels.row_sums(starts, values, rows, positions, factors, outputs, sums)
    return sums


def _merge(operation: str, runs: Sequence[Entries], out: Entries | None) -> Entries:
    if len(runs) == 0:
        raise ValueError(f"merge_{operation} needs at least one run: without one, the dtypes are unknown")
    first_indices, first_values = runs[0]
    for indices, values in runs:
        _check_entries(indices, values)
        _check_same_dtype(indices, first_indices, "indices of all runs")
        _check_same_dtype(values, first_values, "values of all runs")
    room = sum(len(indices) for indices, _ in runs)
    if out is None:
        indices, values = memory.empty(room, first_indices.dtype), memory.empty(room, first_values.dtype)
    else:
        indices, values = out
        _check_entries(indices, values)
        _check_same_dtype(indices, first_indices, "indices of runs and out")
        _check_same_dtype(values, first_values, "values of runs and out")
        _check_writeable(indices, "out")
        _check_writeable(values, "out")
        if len(indices) < room:
            raise ValueError(f"out has room for {len(indices)} entries, and there may be {room}")
    count: int = _kernels.merge(operation, runs, indices, values)
    if out is None:
        return memory.used(indices, count), memory.used(values, count)
    return indices[:count], values[:count]


def _check_values(array: Values, name: str) -> None:
    _check_array(array, name)
    if array.dtype not in _VALUE_DTYPES:
        if array.dtype.name != "bfloat16":
            known = "float32, float64, float16, bfloat16, int32 or int64"
            raise TypeError(f"{name} must be {known}, not {array.dtype}")
        _VALUE_DTYPES.add(array.dtype)


def _check_indices(array: Indices, name: str) -> None:
    _check_array(array, name)
    if array.dtype not in _INDEX_DTYPES:
        raise TypeError(f"{name} must be uint32 or uint64, not {array.dtype}")


def _check_array(array: npt.NDArray[Any], name: str) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, not {type(array).__name__}")
    flags = array.flags
    if array.ndim != 1 or not (flags.c_contiguous and flags.aligned):
        raise TypeError(
            f"{name} must be one-dimensional, contiguous and aligned: "
            f"shape {array.shape}, strides {array.strides}, address {array.ctypes.data:#x}"
        )


def _check_dtype(array: npt.NDArray[Any], dtype: npt.DTypeLike, name: str) -> None:
    _check_array(array, name)
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype)}, not {array.dtype}")


def _half_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.name not in ("float16", "bfloat16") or not dtype.isnative:
        raise TypeError(f"narrow values are float16 or bfloat16, not {dtype}")
    return dtype


def _check_format(bits: int, bucket: int) -> tuple[int, int]:
    if operator.index(bits) not in (2, 4, 8):
        raise ValueError(f"bits must be 2, 4 or 8, got {bits}")
    if operator.index(bucket) < 1:
        raise ValueError(f"a bucket holds at least one value, got {bucket}")
    return operator.index(bits), operator.index(bucket)


def _check_positions(positions: Indices | int, count: int) -> Indices | int:
    if isinstance(positions, np.ndarray):
        _check_indices(positions, "positions")
        if len(positions) != count:
            raise ValueError(f"positions and values differ in length: {len(positions)} and {count}")
        return positions
    if _not_negative(positions, "positions") + max(count, 1) > 2**64:
        raise ValueError(f"positions must fit 64 bits: there are {count} from {positions} on")
    return operator.index(positions)


def _check_entries(indices: Indices, values: Values) -> None:
    _check_indices(indices, "indices")
    _check_values(values, "values")
    if len(indices) != len(values):
        raise ValueError(f"indices and values differ in length: {len(indices)} and {len(values)}")


def _check_accumulation(residual: Values, gradient: Values) -> None:
    _check_values(residual, "residual")
    _check_values(gradient, "gradient")
    _check_same_dtype(residual, gradient, "residual and gradient")
    if len(residual) != len(gradient):
        raise ValueError(f"residual and gradient differ in length: {len(residual)} and {len(gradient)}")
    _check_writeable(residual, "residual")


def _check_velocity(velocity: Values, residual: Values) -> None:
    _check_values(velocity, "velocity")
    _check_same_dtype(residual, velocity, "residual and velocity")
    if velocity.dtype.kind == "i":
        raise TypeError(f"a velocity has floating-point values, not {velocity.dtype}")
    if len(velocity) != len(residual):
        raise ValueError(f"residual and velocity differ in length: {len(residual)} and {len(velocity)}")
    _check_writeable(velocity, "velocity")


def _check_rows(starts: Starts, rows: npt.NDArray[np.int64], entries: int) -> int:
    """How many entries the chosen rows have; the matrix has ``entries``."""
    _check_dtype(starts, np.int64, "starts")
    _check_dtype(rows, np.int64, "rows")
    if len(rows) == 0:
        return 0
    if not (rows.min() >= 0 and rows.max() < len(starts) - 1):
        raise ValueError(f"rows must be in [0, {max(0, len(starts) - 1)}), got {rows.min()} to {rows.max()}")
    first, last = starts[rows], starts[rows + 1]
    if first.min() < 0 or last.max() > entries or (first > last).any():
        raise ValueError(f"starts must be increasing from 0 to the number of entries, {entries}")
    return int((last - first).sum())


def _check_matrix(
    starts: Starts, values: Values, rows: npt.NDArray[np.int64], positions: Positions, outputs: int
) -> None:
    _check_array(values, "values")
    if values.dtype not in (np.float32, np.float64):
        raise TypeError(f"the values of a matrix must be float32 or float64, not {values.dtype}")
    _check_dtype(positions, np.uint32, "positions")
    if (entries := _check_rows(starts, rows, len(values))) != len(positions):
        raise ValueError(f"the rows have {entries} entries, and there are {len(positions)} positions")
    if operator.index(outputs) < 1:
        raise ValueError(f"there must be at least one output, got {outputs}")


def _check_same_dtype(a: npt.NDArray[Any], b: npt.NDArray[Any], names: str) -> None:
    if a.dtype != b.dtype:
        raise TypeError(f"the {names} must have one dtype, got {a.dtype} and {b.dtype}")


def _check_writeable(array: Values, name: str) -> None:
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")


def _room(out: npt.NDArray[Any] | None, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """``out``, checked, or a new array."""
    if out is None:
        return memory.empty(count, dtype)
    _check_array(out, "out")
    _check_writeable(out, "out")
    if out.dtype != dtype:
        raise TypeError(f"out must be {dtype}, not {out.dtype}")
    if len(out) != count:
        raise ValueError(f"out has room for {len(out)} and there are {count}")
    return out


def _room_for_buckets(x: Values, k: int, bucket: int, index_dtype: npt.DTypeLike) -> tuple[int, int, Entries]:
    """k and the length of a bucket, at most as many as there are values, and room for the entries."""
    if not 1 <= operator.index(k) < operator.index(bucket):
        raise ValueError(
            f"k must be at least 1 and less than a bucket: k is {k}, a bucket has {bucket} values"
        )
    dtype = _index_dtype(index_dtype, len(x))
    bucket = min(operator.index(bucket), len(x) or 1)
    k = min(operator.index(k), bucket)
    room = min(len(x), k * -(-len(x) // bucket))
    return k, bucket, (memory.empty(room, dtype), memory.empty(room, x.dtype))


def _room_for_norms(count: int, block: int) -> tuple[int, npt.NDArray[np.float64]]:
    """The length of a block, and an array for the norms."""
    block = _block_length(count, block)
    return block, memory.empty(-(-count // block), np.float64)


def _block_length(count: int, block: int) -> int:
    """At most that of all values, so that it fits a machine word."""
    return min(_check_block(block), count or 1)


def _check_block(block: int) -> int:
    if operator.index(block) < 1:
        raise ValueError(f"a block holds at least one value, got {block}")
    return operator.index(block)


def _check_blocks(blocks: Blocks, length: int, block: int) -> int:
    """How many blocks an array of that length has; the caller compares the numbers with it."""
    _check_dtype(blocks, np.int64, "numbers of blocks")
    return -(-length // _check_block(block))


def _check_among(blocks: Blocks, existing: int) -> None:
    # As unsigned numbers, of which the negative ones are the largest.
    if len(blocks) > 0 and blocks.view(np.uint64).max() >= existing:
        raise ValueError(f"there are {existing} blocks, not those from {blocks.min()} to {blocks.max()}")


def _check_data(data: Values, blocks: Blocks, block: int) -> None:
    if len(data) != len(blocks) * block:
        raise ValueError(f"{len(blocks)} blocks of {block} values are not {len(data)} values")


def _check_libsvm_room(room: Room, nbytes: int) -> None:
    for name, array, dtypes, needed in (
        ("labels", room.labels, ("float64",), nbytes // 2),
        ("counts", room.counts, ("int64",), nbytes // 2),
        ("indices", room.indices, ("int32", "int64"), nbytes // 4),
        ("values", room.values, ("float32", "float64"), nbytes // 4),
    ):
        _check_array(array, name)
        _check_writeable(array, name)
        if array.dtype.name not in dtypes or not array.dtype.isnative:
            raise TypeError(f"{name} must be {' or '.join(dtypes)}, not {array.dtype}")
        if len(array) < needed:
            raise ValueError(f"{nbytes} bytes of text may need room for {needed} {name}, got {len(array)}")


def _check_scatter(dense: Values, indices: Indices, values: Values, offset: int) -> bool:
    """True if there is anything to do."""
    _check_values(dense, "dense")
    _check_writeable(dense, "dense")
    _check_entries(indices, values)
    _check_same_dtype(dense, values, "dense range and values")
    _not_negative(offset, "offset")
    if len(indices) == 0:
        return False
    first, last, stop = int(indices[0]), int(indices[-1]), offset + len(dense)
    if not offset <= first <= last < stop:
        raise ValueError(f"indices {first} to {last} do not lie in the dense range [{offset}, {stop})")
    return True


def _check_support(indices: Indices, start: int, span: int) -> None:
    """Refuse indices that are not strictly increasing in the range: an encoder would write elsewhere."""
    _check_indices(indices, "indices")
    stop = _check_range(start, span, indices.dtype)
    invalid = first_invalid(indices, start, stop)
    if invalid >= 0:
        raise ValueError(
            f"indices must be strictly increasing in [{start}, {stop}): "
            f"the one at position {invalid} is {indices[invalid]}"
        )


def _check_code(words: Words, count: int, start: int, span: int, index_dtype: npt.DTypeLike) -> np.dtype[Any]:
    _check_array(words, "words")
    if words.dtype != np.uint64:
        raise TypeError(f"words must be uint64, not {words.dtype}")
    _not_negative(count, "count")
    dtype = np.dtype(index_dtype)
    _check_range(start, span, dtype)
    return dtype


def _check_range(start: int, span: int, index_dtype: np.dtype[Any]) -> int:
    """Where the range ends.  At 2^63 at the latest: up to there the kernels need not mind overflow."""
    stop = _not_negative(start, "start") + _not_negative(span, "span")
    _index_dtype(index_dtype, stop)
    if stop > 2**63:
        raise ValueError(f"indices can be encoded up to 2^63, not up to {stop}")
    return stop


def _words_for(bits: int) -> int:
    return -(-bits // 64)


def _index_dtype(index_dtype: npt.DTypeLike, stop: int) -> np.dtype[Any]:
    dtype = np.dtype(index_dtype)
    if dtype not in _INDEX_DTYPES:
        raise TypeError(f"index_dtype must be uint32 or uint64, not {dtype}")
    if stop > 2 ** (8 * dtype.itemsize):
        raise ValueError(f"{dtype} cannot hold indices up to {stop - 1}")
    return dtype


def _not_negative(number: int, name: str) -> int:
    if operator.index(number) < 0:
        raise ValueError(f"{name} must not be negative, got {number}")
    return operator.index(number)


def _unsigned_cuts(cuts: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    # Number by number: numpy makes floats of a list that has a number from 2^63 on.
    numbers = [operator.index(cut) for cut in cuts]
    if min(numbers, default=0) < 0 or max(numbers, default=0) >= 2**64:
        raise ValueError(f"cuts must lie in [0, 2^64), got {numbers}")
    return np.array(numbers, np.uint64)


_kernels: Any
_active: str
_ISAS: tuple[str, ...]
try:
    from sparsewire.kernels import _compiled, compiled
except ImportError as reason:
    _ISAS = ("reference",)
    if os.environ.get("SPARSEWIRE_ISA") != "reference":
        warnings.warn(
            f"sparsewire was installed without its compiled kernels: sums and selections are slow ({reason})",
            RuntimeWarning,
            stacklevel=2,
        )
else:
    _ISAS = ("reference", *_compiled.available_isas())
_force(os.environ.get("SPARSEWIRE_ISA") or _ISAS[-1])
