"""Runs of entries with increasing indices."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.checks import Entries, Indices, Values
from sparsewire.kernels.reference.arithmetic import quiet, wide

__all__ = [
    "merge",
    "scatter",
    "scatter_add",
    "split_at",
    "spread",
    "without",
]

_COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
# -0.0 is the neutral element of the sum: -0.0 + x is x, the sign of a zero included.
_ABSENT = {"sum": -0.0, "max": 0.0, "min": 0.0}


@quiet
def merge(operation: str, runs: Sequence[Entries], out_indices: Indices, out_values: Values) -> int:
    indices = np.unique(np.concatenate([run[0] for run in runs]))
    rows = np.full((len(runs), len(indices)), _ABSENT[operation]).astype(wide(out_values).dtype)
    for row, (run_indices, run_values) in zip(rows, runs, strict=True):
        row[np.searchsorted(indices, run_indices)] = wide(run_values)
    total = rows[0]
    for row in rows[1:]:  # not reduce, which may add in another order
        total = _COMBINE[operation](total, row)
    out_indices[: len(indices)] = indices
    out_values[: len(indices)] = total if operation == "sum" else total + total.dtype.type(0)
    return len(indices)


def without(
    indices: Indices, values: Values, others: Indices, out_indices: Indices, out_values: Values
) -> int:
    kept = np.flatnonzero(~np.isin(indices, others))
    out_indices[: len(kept)], out_values[: len(kept)] = indices[kept], values[kept]
    return len(kept)


@quiet
def scatter_add(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    positions = indices - indices.dtype.type(offset)
    dense[positions] = wide(dense[positions]) + wide(values)


def scatter(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    dense[indices - indices.dtype.type(offset)] = values


def spread(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    dense[:] = 0
    scatter(dense, indices, values, offset)


def split_at(indices: Indices, cuts: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> None:
    # Not np.searchsorted: it would copy all indices to the common dtype of indices and cuts.
    positions[:] = [bisect_left(indices, cut) for cut in cuts]
