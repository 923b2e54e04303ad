"""Rows of a sparse matrix."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.checks import Indices, Values, Words
from sparsewire.kernels.reference.arithmetic import quiet

__all__ = [
    "dual_ascent",
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


@quiet
def dual_ascent(
    starts: Numbers,
    values: Values,
    rows: Numbers,
    positions: Indices,
    loss: str,
    shares: Doubles,
    squares: Doubles,
    targets: Doubles,
    sigma: Doubles,
    bias: float,
    variables: Doubles,
    weights: Doubles,
    intercepts: Doubles,
    margins: Doubles,
) -> None:
    outputs = len(sigma)
    if len(positions) and positions.max() >= len(weights) // outputs:
        raise ValueError("dual_ascent: too few weights")
    by_row, of_rows, by_position = (array.reshape(-1, outputs) for array in (variables, targets, weights))
    for row in rows[shares[rows] != 0]:
        entries = slice(starts[row], starts[row + 1])
        places, row_values = positions[entries], values[entries, None].astype(np.float64)
        margins[:outputs] = intercepts
        for term in row_values * by_position[places]:  # one after the other
            margins[:outputs] += term
        before = by_row[row].copy()
        steps = sigma * shares[row]
        q = steps * (squares[row] + bias)
        of_outputs = zip(before, of_rows[row], margins[:outputs], q, strict=True)
        by_row[row] = [_stepped(loss, *map(float, numbers)) for numbers in of_outputs]
        factors = steps * (by_row[row] - before)
        intercepts += bias * factors
        if factors.any():
            np.add.at(by_position, places, row_values * factors)


def _stepped(loss: str, before: float, target: float, margin: float, q: float) -> float:
    """The variable after its step, by Python's floats: numpy's exp and log may have other bits."""
    if loss == "squared":
        return before + (target - margin - before) / (1.0 + q)
    step: Callable[[float, float, float], float] = {
        "logistic": _logistic_step, "hinge": _hinge_step, "squared_hinge": _squared_hinge_step
    }[loss]  # fmt: skip
    return target * step(target * before, target * margin, q)


def _logistic_step(before: float, z: float, q: float) -> float:
    low, high = -z - q * (1.0 - before), -z + q * before
    u = math.log(before / (1.0 - before)) if 0.0 < before < 1.0 else -z
    u = min(max(u, low), high)
    a = _sigmoid(u)
    for _ in range(50):
        excess = u + z + q * (a - before)
        low, high = (low, u) if excess > 0.0 else (u, high)
        after = u - excess / (1.0 + q * a * (1.0 - a))
        if not low < after < high:
            after = 0.5 * (low + high)
        move, u = abs(after - u), after
        a = _sigmoid(u)
        if move <= 1e-9:
            break
    return a


def _sigmoid(u: float) -> float:
    return 1.0 / (1.0 + math.exp(-u)) if u > -709.0 else 0.0


def _hinge_step(before: float, z: float, q: float) -> float:
    if z == 1.0:
        return before
    way = (1.0 - z) / q if q else math.copysign(math.inf, 1.0 - z)
    return min(max(before + way, 0.0), 1.0)


def _squared_hinge_step(before: float, z: float, q: float) -> float:
    return max((1.0 - z + q * before) / (0.5 + q), 0.0)


def _entries_of(starts: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Of the chosen rows: the entries, and for each of them the place of its row among the chosen."""
    counts = starts[rows + 1] - starts[rows]
    places = np.repeat(np.arange(len(rows)), counts)
    before = np.cumsum(counts) - counts
    return (starts[rows] - before)[places] + np.arange(len(places)), places
