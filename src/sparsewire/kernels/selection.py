"""The entries of largest magnitude.

accumulate_select          residual += gradient; the entries above a threshold are moved out of it    one pass
select                     the entries above a threshold
dense_to_sparse            the entries that are not zero
threshold_for_k            the threshold that selects exactly k entries
select_buckets             the k largest of every bucket
accumulate_select_buckets  residual += gradient; the k largest of every bucket are moved out of it    one pass
histogram                  how many values are in each class of magnitude
partition                  the entries of a run above a threshold, and the others
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import backend, checks, magnitude, memory
from sparsewire.kernels.checks import Entries, Indices, Values
from sparsewire.kernels.magnitude import Number
from sparsewire.kernels.reference.selection import Step

__all__ = [
    "accumulate_select",
    "accumulate_select_buckets",
    "dense_to_sparse",
    "histogram",
    "partition",
    "select",
    "select_buckets",
    "threshold_for_k",
]


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

    An entry is moved if its magnitude exceeds the threshold, and so are the first `ties` entries whose
    magnitude equals it, in index order.  The residual is zero where they were.  The moved entries plus what
    stays are residual + gradient, to the bit.

    With a velocity, the velocity becomes momentum * velocity + gradient, and is added in place of the
    gradient.  It is kept where entries were moved out.  Momentum, product and sum are each rounded to the
    dtype.

    >>> residual = np.array([0.5, 0, -2, 0], np.float32)
    >>> accumulate_select(residual, np.array([1, 0, -1, 0.5], np.float32), 1)
    (array([0, 2], dtype=uint32), array([ 1.5, -3. ], dtype=float32))
    >>> residual
    array([0. , 0. , 0. , 0.5], dtype=float32)
    """
    checks.accumulation(residual, gradient)
    dtype = checks.index_dtype_for(index_dtype, len(residual))
    bits, ties = magnitude.to_bits(threshold, ties, residual.dtype)
    if velocity is not None:
        _check_velocity(velocity, residual)
        momentum = float(velocity.dtype.type(momentum))

    def go_on(step: Step, indices: Indices, values: Values) -> Step:
        return backend.active.accumulate_select(
            residual, gradient, bits, indices, values, step, velocity, momentum
        )

    return _with_growing_room(go_on, len(residual), ties, dtype, residual.dtype)


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
    checks.values(x, "x")
    offset = checks.not_negative(offset, "offset")
    dtype = checks.index_dtype_for(index_dtype, offset + len(x))
    bits, ties = magnitude.to_bits(threshold, ties, x.dtype)

    def go_on(step: Step, indices: Indices, values: Values) -> Step:
        return backend.active.select(x, bits, offset, indices, values, step)

    return _with_growing_room(go_on, len(x), ties, dtype, x.dtype)


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
    checks.values(x, "x")
    k = operator.index(k)
    if not 1 <= k <= len(x):
        raise ValueError(f"k must be between 1 and the number of values: k is {k}, there are {len(x)} values")
    bits, ties = backend.active.threshold_for_k(x, k)
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
    checks.values(x, "x")
    k, bucket, room = _room_for_buckets(x, k, bucket, index_dtype)
    return memory.used_entries(room, backend.active.select_buckets(x, k, bucket, *room))


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
    checks.accumulation(residual, gradient)
    k, bucket, room = _room_for_buckets(residual, k, bucket, index_dtype)
    count = backend.active.accumulate_select_buckets(residual, gradient, k, bucket, *room)
    return memory.used_entries(room, count)


def histogram(x: Values) -> npt.NDArray[np.int64]:
    """How many values are in each of 4096 classes of magnitude, 16 to a factor of two.

    A value is rounded to float32, and its class is the first 12 bits after the sign.  So classes are in the
    order of magnitudes, and `magnitude.class_floor` says where one begins.  Zeros are in class 0, with the
    smallest numbers; infinities are in class 4080, and NaN in the last class.

    >>> np.flatnonzero(histogram(np.array([1.0, -1.05, 1.1, 2.0])))
    array([2032, 2033, 2048])
    """
    checks.values(x, "x")
    counts: npt.NDArray[np.int64] = memory.empty(magnitude.CLASSES, np.int64)
    backend.active.histogram(x, counts)
    return counts


def partition(indices: Indices, values: Values, threshold: Number, ties: int = 0) -> tuple[Entries, Entries]:
    """The entries whose values `select` would take, and the other entries; both in order.

    >>> partition(np.array([3, 5, 9], np.uint32), np.array([1.0, -4.0, 2.0]), 1.5)[1]
    (array([3], dtype=uint32), array([1.]))
    """
    checks.entries(indices, values)
    bits, ties = magnitude.to_bits(threshold, ties, values.dtype)
    large, rest = (memory.empty_entries(len(indices), indices.dtype, values.dtype) for _ in range(2))
    count = backend.active.partition(indices, values, bits, ties, *large, *rest)
    return memory.used_entries(large, count), memory.used_entries(rest, len(indices) - count)


def _check_velocity(velocity: Values, residual: Values) -> None:
    checks.values(velocity, "velocity")
    checks.same_dtype(residual, velocity, "residual and velocity")
    if velocity.dtype.kind == "i":
        raise TypeError(f"a velocity has floating-point values, not {velocity.dtype}")
    if len(velocity) != len(residual):
        raise ValueError(f"residual and velocity differ in length: {len(residual)} and {len(velocity)}")
    checks.writeable(velocity, "velocity")


def _room_for_buckets(x: Values, k: int, bucket: int, index_dtype: npt.DTypeLike) -> tuple[int, int, Entries]:
    """k and the length of a bucket, both at most the number of values, and room for the entries."""
    k, bucket = operator.index(k), operator.index(bucket)
    if not 1 <= k < bucket:
        raise ValueError(
            f"k must be at least 1 and less than a bucket: k is {k}, a bucket has {bucket} values"
        )
    dtype = checks.index_dtype_for(index_dtype, len(x))
    bucket = min(bucket, len(x) or 1)
    k = min(k, bucket)
    most = min(len(x), k * -(-len(x) // bucket))
    return k, bucket, memory.empty_entries(most, dtype, x.dtype)


def _with_growing_room(
    go_on: Callable[[Step, Indices, Values], Step],
    n: int,
    ties: int,
    index_dtype: np.dtype[Any],
    value_dtype: np.dtype[Any],
) -> Entries:
    """The entries of a pass over n values, which stops whenever its room is full and then gets more room."""
    # From 0.9 to 1.8 % density the room is large enough, and not so large that the entries are copied out of
    # it.
    capacity = min(n, 1024 + n // 56)
    room = memory.empty_entries(capacity, index_dtype, value_dtype)
    step = go_on((0, 0, min(ties, n)), *room)
    while step[0] < n:
        filled, capacity = capacity, min(n, 4 * capacity)
        larger = memory.empty_entries(capacity, index_dtype, value_dtype)
        larger[0][:filled], larger[1][:filled] = room
        room = larger
        step = go_on(step, *room)
    return memory.used_entries(room, step[1])
