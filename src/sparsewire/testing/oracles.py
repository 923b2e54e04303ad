"""What algorithms must return, in plain dense numpy, and how to run them and compare the bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sparsewire.drivers import local
from sparsewire.drivers.protocols import Traffic
from sparsewire.steps import Steps
from sparsewire.vector import Array, SparseVector

__all__ = ["ORACLES", "dense", "run_local", "same_bits"]

T = TypeVar("T")


def run_local(
    run: Callable[[int, int, SparseVector], Steps[T]], inputs: Sequence[SparseVector], seed: int = 0
) -> tuple[list[T], list[Traffic]]:
    """Every rank's result and traffic; ``inputs[r]`` is rank r's vector, ``seed`` draws the delivery order.

    >>> from sparsewire import ALGORITHMS
    >>> ones = SparseVector(4, [1, 3], np.ones(2))
    >>> results, traffic = run_local(ALGORITHMS["split_allgather"].run, [ones, ones])
    >>> results[0].to_dense(), traffic[0].messages_sent
    (array([0., 2., 0., 2.]), 2)
    """
    return local.run([run(rank, len(inputs), vector) for rank, vector in enumerate(inputs)], seed)


def dense(vector: SparseVector) -> Array:
    """The vector's numbers as an array of at least 64 bits each, without help from the library.

    >>> dense(SparseVector(3, [1], np.array([7], dtype="int32")))
    array([0, 7, 0])
    """
    values = vector.values.astype(_exact_dtype(vector.dtype))
    if vector.indices is None:
        return values
    array = np.zeros(vector.stop - vector.start, values.dtype)
    array[vector.indices.astype(np.int64) - vector.start] = values
    return array


def _exact_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Wide enough that adding a few numbers of ``dtype`` rounds less than ``dtype`` itself does."""
    if dtype.kind == "i":
        return np.dtype(np.int64)
    return np.dtype(np.longdouble if dtype.itemsize == 8 else np.float64)


def _reduced(inputs: Sequence[SparseVector], op: str = "sum") -> Array:
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    total = dense(inputs[0])
    with np.errstate(invalid="ignore", over="ignore"):
        for vector in inputs[1:]:
            total = combine(total, dense(vector))
    return total


# What every rank must hold in the end, as a dense array in a wider type; same keys as ALGORITHMS.
ORACLES: dict[str, Callable[..., Array]] = {
    "recursive_doubling": _reduced,
    "allgather_sum": _reduced,
    "split_allgather": _reduced,
    "balanced": _reduced,
    "omnireduce": _reduced,
    "sparse_ring": _reduced,
    "hybrid": _reduced,
    "dense_ring": _reduced,
    "dense_halving_doubling": _reduced,
}


def same_bits(a: SparseVector, b: SparseVector) -> bool:
    """Is everything alike: range, form, dtypes, and the bits of every index and value?

    >>> v = SparseVector(2, [0, 1], np.array([1.0, 2.0]))
    >>> same_bits(v, v), same_bits(v, v.as_dense())
    (True, False)
    """
    return _bits(a) == _bits(b)


def _bits(vector: SparseVector) -> tuple[Any, ...]:
    where = vector.length, vector.start, vector.stop
    values = vector.dtype.name, vector.values.tobytes()
    if vector.indices is None:
        return *where, *values
    return *where, *values, vector.indices.dtype.name, vector.indices.tobytes()
