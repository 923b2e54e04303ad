"""Inputs for all ranks: edge shapes with exactly predictable sums, and hypothesis strategies."""

from __future__ import annotations

import functools
import inspect
import itertools

import numpy as np
from hypothesis import strategies as st

from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype

SIZES = [*range(1, 10), 16, 33]
FLOATS = ("float32", "float64", "float16", "bfloat16")

# The largest number of ranks P for which 2**0 + ... + 2**(P-1) and every partial sum is exact.
_DOUBLING_RANKS = {"float32": 24, "float64": 53, "float16": 11, "bfloat16": 8, "int32": 31, "int64": 63}
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
assert _DOUBLING_RANKS.keys() == set(VALUE_DTYPES)


def in_one_test(**choices):
    """As ``pytest.mark.parametrize``, but all combinations of the choices are one test.

    For what takes a few milliseconds: to pytest, a test of its own costs more than that.  A failure names the
    combination.
    """

    def decorate(test):
        @functools.wraps(test)
        def run(*args, **kwargs):
            for values in itertools.product(*choices.values()):
                combination = dict(zip(choices, values, strict=True))
                try:
                    test(*args, **kwargs, **combination)
                except Exception as error:
                    raise AssertionError(f"with {combination}: {error}") from error

        signature = inspect.signature(test)
        others = [p for name, p in signature.parameters.items() if name not in choices]
        run.__signature__ = signature.replace(parameters=others)
        return run

    return decorate


def contribution(rank: int, size: int, dtype: str) -> int:
    """2**rank, so that the bits of a wrong sum name the wrong ranks; small numbers if that overflows."""
    return 2**rank if size <= _DOUBLING_RANKS[dtype] else rank % 4 + 1


def read_only(vector: SparseVector) -> SparseVector:
    """The same vector in arrays that cannot be written to."""
    arrays = [vector.values.copy()] + ([] if vector.indices is None else [vector.indices.copy()])
    for array in arrays:
        array.flags.writeable = False
    values, indices = arrays[0], None if vector.indices is None else arrays[1]
    return SparseVector.piece(vector.length, vector.start, vector.stop, indices, values)


def entries(length: int, indices, value: float, dtype: str) -> SparseVector:
    indices = list(indices)
    return SparseVector(length, indices, np.full(len(indices), value).astype(value_dtype(dtype)))


def _constant(support):
    """A shape in which rank r has its contribution at each index; ``support`` gives length and indices."""

    def shape(size, dtype):
        vectors = []
        for rank in range(size):
            length, indices = support(rank, size)
            vectors.append(entries(length, indices, contribution(rank, size, dtype), dtype))
        return vectors

    return shape


def _dense_everywhere(size, dtype):
    return [v.as_dense() for v in EDGE_SHAPES["full"](size, dtype)]


def _one_rank_dense(size, dtype):
    *others, last = EDGE_SHAPES["equal_supports"](size, dtype)
    return [*others, entries(last.length, range(last.length), 2, dtype).as_dense()]


def _cancelling(size, dtype):
    """All vectors are full, and all sums but one are zero: pieces become dense and then sparse again."""
    length = 48
    vectors = []
    for rank in range(size):
        value = -(size - 1) if rank == 0 else 1
        array = np.full(length, value if size > 1 else 0)
        array[7] = contribution(rank, size, dtype)
        vectors.append(SparseVector.from_dense(array.astype(value_dtype(dtype))))
    return vectors


# name -> (size, dtype) -> one vector for each rank
EDGE_SHAPES = {
    "length_0": _constant(lambda rank, size: (0, [])),
    "length_1": _constant(lambda rank, size: (1, [0])),
    "length_1_on_the_last_rank": _constant(lambda rank, size: (1, [0] if rank == size - 1 else [])),
    "shorter_than_ranks": _constant(lambda rank, size: (max(1, size - 1), [rank % max(1, size - 1)])),
    "no_entries": _constant(lambda rank, size: (50, [])),
    "one_rank_has_all": _constant(lambda rank, size: (50, range(0, 50, 3) if rank == size // 2 else [])),
    "full": _constant(lambda rank, size: (37, range(37))),
    "dense": _dense_everywhere,
    "equal_supports": _constant(lambda rank, size: (200, range(3, 200, 19))),
    "disjoint": _constant(lambda rank, size: (12 * size, range(rank, 12 * size, 4 * size))),
    "skewed_to_one_range": _constant(lambda rank, size: (40 * size, range(rank % 7, 40, 5))),
    "one_rank_dense": _one_rank_dense,
    "turns_dense": _constant(lambda rank, size: (60, range(rank % 3, 60, 3))),
    "turns_dense_in_one_range": _constant(lambda rank, size: (20 * size, range(rank % 2, 18, 2))),
    "turns_dense_and_sparse_again": _cancelling,
}
# Too long to be stored densely, for algorithms that never make a piece dense themselves.
LONG_SHAPES = {
    "u64_equal": _constant(lambda rank, size: (2**40, [0, 2**32 - 1, 2**32, 2**40 - 1])),
    "u64_disjoint": _constant(lambda rank, size: (2**40, [7 * rank, 2**33 + rank])),
    "longest_u32": _constant(lambda rank, size: (2**32, [rank, 2**31 + rank, 2**32 - 1])),
}


def floats(dtype: str) -> st.SearchStrategy[float]:
    """Finite numbers of one dtype, small enough that no sum of 33 overflows."""
    width = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}[dtype]
    top = {"float16": 1000.0, "bfloat16": 2.0**100, "float32": 2.0**100, "float64": 2.0**900}[dtype]
    if dtype == "bfloat16":
        return st.floats(-top, top, width=32).map(lambda x: float(value_dtype(dtype).type(x)))
    return st.floats(-top, top, width=width)


SPECIAL = st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.0, -1.0])


@st.composite
def sparse_vectors(draw, length: int, dtype: str, elements=None) -> SparseVector:
    """A vector with any support, as entries or stored densely."""
    elements = elements if elements is not None else _elements(dtype)
    if draw(st.booleans()):
        support = sorted(draw(st.sets(st.integers(0, length - 1)))) if length else []
    else:  # consecutive indices, which overlap with those of other ranks and are dense in their range
        start = draw(st.integers(0, length))
        support = list(range(start, draw(st.integers(start, length))))
    values = draw(st.lists(elements, min_size=len(support), max_size=len(support)))
    vector = SparseVector(length, support, np.array(values, np.float64).astype(value_dtype(dtype)))
    if dtype.startswith("int"):
        vector = SparseVector(length, support, np.array(values, dtype))
    return read_only(vector.as_dense() if draw(st.booleans()) else vector)


def _elements(dtype: str):
    return st.integers(-1000, 1000) if dtype.startswith("int") else floats(dtype)


@st.composite
def rank_vectors(draw, dtype: str, sizes=None, elements=None) -> list[SparseVector]:
    """One vector for each rank."""
    length = draw(st.integers(0, 40))
    size = draw(st.integers(1, 9) if sizes is None else sizes)
    return [draw(sparse_vectors(length, dtype, elements)) for _ in range(size)]
