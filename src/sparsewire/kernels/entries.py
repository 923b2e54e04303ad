"""Runs of entries with increasing indices.

merge_sum    the sum of runs, added in the order of the runs
merge_max    the largest values; a run that lacks an index counts as zero there
merge_min    the smallest values
without      the entries whose indices another run lacks
scatter_add  add entries to a dense range
scatter      store entries in a dense range
spread       store entries in a dense range, and zeros between them
split_at     where ranges of indices begin in a run
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import backend, checks, memory
from sparsewire.kernels.checks import Entries, Indices, Values

__all__ = [
    "merge_max",
    "merge_min",
    "merge_sum",
    "scatter",
    "scatter_add",
    "split_at",
    "spread",
    "without",
]


def merge_sum(runs: Sequence[Entries], out: Entries | None = None) -> Entries:
    """The sum of runs of entries, each with strictly increasing indices: one entry for each index of any run.

    The values of an index are added in the order of the runs.  An explicit zero, or a sum that is zero, keeps
    its entry.  The result is new, or the beginning of ``out``, which must have room for the entries of all
    runs.

    >>> a = np.array([1, 5], np.uint32), np.array([1.0, 2.0])
    >>> b = np.array([5, 9], np.uint32), np.array([-2.0, 4.0])
    >>> merge_sum([a, b])
    (array([1, 5, 9], dtype=uint32), array([1., 0., 4.]))
    """
    return _merge("sum", runs, out)


def merge_max(runs: Sequence[Entries], out: Entries | None = None) -> Entries:
    """The largest value of each index of any run; a run that lacks the index counts as zero.

    NaN counts as larger than any number, and a result that is zero is 0.0, never -0.0.  The rest is as in
    `merge_sum`.

    >>> a = np.array([1, 5], np.uint32), np.array([-1.0, 2.0])
    >>> b = np.array([5, 9], np.uint32), np.array([-2.0, 4.0])
    >>> merge_max([a, b])
    (array([1, 5, 9], dtype=uint32), array([0., 2., 4.]))
    """
    return _merge("max", runs, out)


def merge_min(runs: Sequence[Entries], out: Entries | None = None) -> Entries:
    """The smallest value of each index of any run; NaN counts as smaller than any number."""
    return _merge("min", runs, out)


def without(indices: Indices, values: Values, others: Indices) -> Entries:
    """The entries whose index is not among `others`; indices and others are strictly increasing.

    >>> without(np.array([1, 5, 9], np.uint32), np.array([1.0, 2.0, 3.0]), np.array([0, 5], np.uint32))
    (array([1, 9], dtype=uint32), array([1., 3.]))
    """
    checks.entries(indices, values)
    checks.indices(others, "others")
    checks.same_dtype(indices, others, "indices and others")
    room = memory.empty_entries(len(indices), indices.dtype, values.dtype)
    return memory.used_entries(room, backend.active.without(indices, values, others, *room))


def scatter_add(dense: Values, indices: Indices, values: Values, offset: int = 0) -> None:
    """dense[indices - offset] += values.

    Indices must be strictly increasing, which `first_invalid` finds out.  Only the first and the last are
    compared with the range of `dense`, which is untouched if one of them lies outside.

    >>> dense = np.ones(3, np.float32)
    >>> scatter_add(dense, np.array([10, 12], np.uint32), np.array([5, 6], np.float32), offset=10)
    >>> dense
    array([6., 1., 7.], dtype=float32)
    """
    if _check_scatter(dense, indices, values, offset):
        backend.active.scatter_add(dense, indices, values, offset)


def scatter(dense: Values, indices: Indices, values: Values, offset: int = 0) -> None:
    """dense[indices - offset] = values, under the conditions of `scatter_add`.

    >>> dense = np.zeros(3, np.float32)
    >>> scatter(dense, np.array([0, 2], np.uint32), np.array([5, 6], np.float32))
    >>> dense
    array([5., 0., 6.], dtype=float32)
    """
    if _check_scatter(dense, indices, values, offset):
        backend.active.scatter(dense, indices, values, offset)


def spread(dense: Values, indices: Indices, values: Values, offset: int = 0) -> None:
    """Store the entries as `scatter` does, and zeros everywhere else.

    >>> dense = np.ones(3, np.float32)
    >>> spread(dense, np.array([2], np.uint32), np.array([6], np.float32))
    >>> dense
    array([0., 0., 6.], dtype=float32)
    """
    _check_scatter(dense, indices, values, offset)
    backend.active.spread(dense, indices, values, offset)


def split_at(indices: Indices, cuts: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """For each cut, the position of the first index that is not below it.

    >>> split_at(np.array([1, 5, 9], np.uint32), [0, 5, 6, 2**40])
    array([0, 1, 2, 3])
    """
    checks.indices(indices, "indices")
    numbers = list(map(operator.index, cuts))
    if numbers and not (min(numbers) >= 0 and max(numbers) < 2**64):
        raise ValueError(f"cuts must lie in [0, 2^64), got {numbers}")
    positions: npt.NDArray[np.int64] = memory.empty(len(numbers), np.int64)
    backend.active.split_at(indices, np.array(numbers, np.uint64), positions)
    return positions


def _merge(operation: str, runs: Sequence[Entries], out: Entries | None) -> Entries:
    if len(runs) == 0:
        raise ValueError(f"merge_{operation} needs at least one run: without one, the dtypes are unknown")
    first_indices, first_values = runs[0]
    most = 0
    for indices, values in runs:
        checks.entries(indices, values)
        checks.same_dtype(indices, first_indices, "indices of all runs")
        checks.same_dtype(values, first_values, "values of all runs")
        most += len(indices)
    if out is None:
        room = memory.empty_entries(most, first_indices.dtype, first_values.dtype)
        return memory.used_entries(room, backend.active.merge(operation, runs, *room))
    indices, values = out
    checks.entries(indices, values)
    checks.same_dtype(indices, first_indices, "indices of runs and out")
    checks.same_dtype(values, first_values, "values of runs and out")
    checks.writeable(indices, "out")
    checks.writeable(values, "out")
    if len(indices) < most:
        raise ValueError(f"out has room for {len(indices)} entries, and there may be {most}")
    count = backend.active.merge(operation, runs, indices, values)
    return indices[:count], values[:count]


def _check_scatter(dense: Values, indices: Indices, values: Values, offset: int) -> bool:
    """Whether there are entries; if so, the first and the last one lie in the dense range."""
    checks.values(dense, "dense")
    checks.writeable(dense, "dense")
    checks.entries(indices, values)
    checks.same_dtype(dense, values, "dense range and values")
    checks.not_negative(offset, "offset")
    if len(indices) == 0:
        return False
    first, last, stop = indices.item(0), indices.item(-1), offset + len(dense)
    if not offset <= first <= last < stop:
        raise ValueError(f"indices {first} to {last} do not lie in the dense range [{offset}, {stop})")
    return True
