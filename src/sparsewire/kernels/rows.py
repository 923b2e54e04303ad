"""Rows of a sparse matrix, and vectors that hold only the columns which chosen rows have.

dual_ascent   a pass of dual coordinate ascent over chosen rows
row_columns   the columns that chosen rows have
row_products  chosen rows times weights of these columns
row_sums      factors times chosen rows
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import backend, checks, memory
from sparsewire.kernels.checks import Indices, Values

__all__ = [
    "dual_ascent",
    "row_columns",
    "row_products",
    "row_sums",
]

Starts = npt.NDArray[np.int64]  # where each row begins, and where the last one ends
Positions = npt.NDArray[np.uint32]
Doubles = npt.NDArray[np.float64]

DUAL_LOSSES = ("logistic", "hinge", "squared_hinge", "squared")


def row_columns(
    starts: Starts, indices: Indices, rows: npt.NDArray[np.int64], width: int
) -> tuple[Indices, Positions]:
    """The columns that chosen rows of a sparse matrix have, increasing, and each entry's position among them.

    Row r is the entries ``starts[r]`` to ``starts[r + 1]`` of the matrix, which has ``width`` columns.  The
    second array says for every entry of the chosen rows, one row after the other, where its column is in the
    first.

    >>> starts, indices = np.array([0, 2, 3, 5]), np.array([3, 8, 5, 3, 5], np.uint32)
    >>> row_columns(starts, indices, np.array([2, 0]), 10)
    (array([3, 5, 8], dtype=uint32), array([0, 1, 0, 2], dtype=uint32))
    """
    checks.indices(indices, "indices")
    entries = _check_rows(starts, rows, len(indices))
    words = -(-checks.not_negative(width, "width") // 64)
    marks, before = memory.empty(words, np.uint64), memory.empty(words, np.uint32)
    columns, positions = memory.empty(entries, indices.dtype), memory.empty(entries, np.uint32)
    count = backend.active.row_columns(starts, indices, rows, width, marks, before, columns, positions)
    return memory.used(columns, count), positions


def row_products(
    starts: Starts,
    values: Values,
    rows: npt.NDArray[np.int64],
    positions: Positions,
    weights: npt.NDArray[np.float64],
    outputs: int = 1,
) -> npt.NDArray[np.float64]:
    """Chosen rows times weights, by row and output; ``positions`` are those of ``row_columns``.

    The weights are by column and output, for the columns that the rows have.  Sums are made in float64, in
    the order of the entries.

    >>> starts, values = np.array([0, 2, 3, 5]), np.array([1, 2, 3, 4, 5], np.float32)
    >>> rows, positions = np.array([2, 0]), np.array([0, 1, 0, 2], np.uint32)
    >>> row_products(starts, values, rows, positions, np.array([1.0, 10.0, 100.0]))
    array([ 54., 201.])
    """
    _check_matrix(starts, values, rows, positions, outputs)
    checks.exact_dtype(weights, np.float64, "weights")
    if len(weights) % outputs:
        raise ValueError(f"{len(weights)} weights are not {outputs} for each column")
    products = memory.empty(len(rows) * outputs, np.float64)
    backend.active.row_products(starts, values, rows, positions, weights, outputs, products)
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
    checks.exact_dtype(factors, np.float64, "factors")
    if len(factors) != len(rows) * outputs:
        raise ValueError(f"{len(factors)} factors are not {outputs} for each of {len(rows)} rows")
    sums = memory.empty(checks.not_negative(columns, "columns") * outputs, np.float64)
    sums[:] = 0.0
    backend.active.row_sums(starts, values, rows, positions, factors, outputs, sums)
    return sums


def dual_ascent(
    starts: Starts,
    values: Values,
    rows: npt.NDArray[np.int64],
    positions: Positions,
    loss: str,
    *,
    shares: Doubles,
    squares: Doubles,
    targets: Doubles,
    sigma: Doubles,
    bias: float,
    variables: Doubles,
    weights: Doubles,
    intercepts: Doubles,
) -> None:
    """Visit the chosen rows in order, and move each row's dual variables to the best for the current weights.

    ``positions`` has for every entry of the matrix, chosen or not, the place of its weights.  By row are
    ``shares``, with which changes count in the weights, and ``squares``, the squared norms.  ``targets`` and
    ``variables`` are by row and output.  Changes count ``sigma`` times, by output.  Every row has one more
    entry, whose square is ``bias`` and whose weights are the intercepts.

    Variables, weights and intercepts are changed in place.  A row of share 0 is left out.

    >>> variables, weights, intercepts = np.zeros(1), np.zeros(2), np.zeros(1)
    >>> row = np.array([0, 2]), np.array([3.0, 4.0]), np.array([0]), np.array([0, 1], np.uint32)
    >>> facts = {"shares": np.array([0.04]), "squares": np.array([25.0]), "targets": np.array([10.0])}
    >>> state = {"variables": variables, "weights": weights, "intercepts": intercepts}
    >>> dual_ascent(*row, "squared", **facts, sigma=np.ones(1), bias=0.0, **state)
    >>> variables, weights
    (array([5.]), array([0.6, 0.8]))
    """
    count, outputs = max(0, len(starts) - 1), len(sigma)
    _check_values(values)
    checks.exact_dtype(positions, np.uint32, "positions")
    _check_rows(starts, rows, len(values))
    if len(positions) != len(values):
        raise ValueError(f"there are {len(values)} entries and {len(positions)} positions")
    if loss not in DUAL_LOSSES:
        raise ValueError(f"unknown loss {loss!r}; known are {', '.join(DUAL_LOSSES)}")
    checks.at_least_one(outputs, "there must be at least one output")
    lengths = {"shares": (shares, count), "squares": (squares, count), "sigma": (sigma, outputs)}
    lengths |= {"targets": (targets, count * outputs), "variables": (variables, count * outputs)}
    lengths |= {"intercepts": (intercepts, outputs), "weights": (weights, len(weights))}
    for name, (array, length) in lengths.items():
        checks.exact_dtype(array, np.float64, name)
        if len(array) != length:
            raise ValueError(f"{name} must have {length} numbers, not {len(array)}")
    for name, array in {"variables": variables, "weights": weights, "intercepts": intercepts}.items():
        checks.writeable(array, name)
    if len(weights) % outputs:
        raise ValueError(f"{len(weights)} weights are not {outputs} for each position")
    margins = memory.empty(outputs, np.float64)
    backend.active.dual_ascent(
        starts, values, rows, positions, loss, shares, squares, targets, sigma, bias,
        variables, weights, intercepts, margins,
    )  # fmt: skip


def _check_rows(starts: Starts, rows: npt.NDArray[np.int64], entries: int) -> int:
    """How many entries the chosen rows have; the matrix has ``entries``."""
    checks.exact_dtype(starts, np.int64, "starts")
    checks.exact_dtype(rows, np.int64, "rows")
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
    _check_values(values)
    checks.exact_dtype(positions, np.uint32, "positions")
    if (entries := _check_rows(starts, rows, len(values))) != len(positions):
        raise ValueError(f"the rows have {entries} entries, and there are {len(positions)} positions")
    checks.at_least_one(outputs, "there must be at least one output")


def _check_values(values: Values) -> None:
    checks.array(values, "values")
    if values.dtype not in (np.float32, np.float64):
        raise TypeError(f"the values of a matrix must be float32 or float64, not {values.dtype}")
