"""Rows of a sparse matrix."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.checks import Indices, Values, Words
from sparsewire.kernels.reference.arithmetic import quiet

__all__ = [
    "row_columns",
    "row_products",
    "row_sums",
]

Numbers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


def row_columns(
    starts: Numbers,
    indices: Indices,
    rows: Numbers,
    width: int,
    marks: Words,
    before: Indices,
    columns: Indices,
    positions: Indices,
) -> int:
    entries, _ = _entries_of(starts, rows)
    distinct, positions[:] = np.unique(indices[entries], return_inverse=True)
    if len(distinct) and distinct[-1] >= width:
        raise ValueError("row_columns: a column beyond the width")
    columns[: len(distinct)] = distinct
    return len(distinct)


@quiet
def row_products(
    starts: Numbers,
    values: Values,
    rows: Numbers,
    positions: Indices,
    weights: Doubles,
    outputs: int,
    products: Doubles,
) -> None:
    if len(positions) and positions.max() >= len(weights) // outputs:
        raise ValueError("row_products: too few weights")
    entries, places = _entries_of(starts, rows)
    terms = values[entries, None].astype(np.float64) * weights.reshape(-1, outputs)[positions]
    products[:] = 0.0
    np.add.at(products.reshape(-1, outputs), places, terms)


@quiet
def row_sums(
    starts: Numbers,
    values: Values,
    rows: Numbers,
    positions: Indices,
    factors: Doubles,
    outputs: int,
    sums: Doubles,
) -> None:
    if len(positions) and positions.max() >= len(sums) // outputs:
        raise ValueError("row_sums: too few sums")
    entries, places = _entries_of(starts, rows)
    terms = values[entries, None].astype(np.float64) * factors.reshape(-1, outputs)[places]
    np.add.at(sums.reshape(-1, outputs), positions, terms)


def _entries_of(starts: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Of the chosen rows: the entries, and for each of them the place of its row among the chosen."""
    counts = starts[rows + 1] - starts[rows]
    places = np.repeat(np.arange(len(rows)), counts)
    before = np.cumsum(counts) - counts
    return (starts[rows] - before)[places] + np.arange(len(places)), places
