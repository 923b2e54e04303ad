"""How the reference adds: half types in float32, squares in a fixed order, and never a warning."""

from __future__ import annotations

import numpy as np

from sparsewire.kernels.checks import Values

__all__ = [
    "in_rows",
    "quiet",
    "sums_of_squares",
    "wide",
]

# inf - inf and sums that overflow are values like others: no kernel warns of them.
quiet = np.errstate(over="ignore", invalid="ignore")


def wide(values: Values) -> Values:
    """The values in the dtype in which sums are made."""
    return values.astype(np.float32) if values.dtype.itemsize == 2 else values


def in_rows(values: Values, width: int) -> Values:
    """The values in rows of that width; zeros fill the last row."""
    rows = np.zeros((-(-len(values) // width), width), values.dtype)
    rows.reshape(-1)[: len(values)] = values
    return rows


def sums_of_squares(rows: Values) -> Values:
    """Squares are added in float64: value j to lane j % 8, then the upper half of the lanes to the lower."""
    lanes = np.zeros((len(rows), 8))
    for begin in range(0, rows.shape[1], 8):
        part = rows[:, begin : begin + 8].astype(np.float64)
        lanes[:, : part.shape[1]] += part * part
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]
