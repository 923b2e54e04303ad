"""Blocks of consecutive values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.checks import Values
from sparsewire.kernels.magnitude import magnitudes
from sparsewire.kernels.reference.arithmetic import in_rows, quiet, sums_of_squares, wide

__all__ = [
    "accumulate_block_norms",
    "add_blocks",
    "block_norms",
    "gather_blocks",
    "nonzero_blocks",
    "scatter_blocks",
]

Blocks = npt.NDArray[np.int64]


@quiet
def block_norms(x: Values, block: int, norms: npt.NDArray[np.float64]) -> None:
    norms[:] = np.sqrt(sums_of_squares(in_rows(x, block)))


@quiet
def accumulate_block_norms(
    residual: Values, gradient: Values, block: int, norms: npt.NDArray[np.float64]
) -> None:
    residual[:] = wide(residual) + wide(gradient)
    block_norms(residual, block, norms)


def nonzero_blocks(x: Values, block: int, numbers: Blocks) -> int:
    found = np.flatnonzero(in_rows(magnitudes(x), block).any(axis=1))
    numbers[: len(found)] = found
    return len(found)


@quiet
def add_blocks(total: Values, rows: Blocks, data: Values, block: int) -> None:
    for row, values in zip(rows.tolist(), wide(data).reshape(len(rows), block), strict=True):
        part = total[row * block : (row + 1) * block]
        part += values[: len(part)]


def gather_blocks(x: Values, blocks: Blocks, block: int, out: Values) -> None:
    out[:] = 0
    for number, row in zip(blocks.tolist(), out.reshape(len(blocks), block), strict=True):
        part = x[number * block : (number + 1) * block]
        row[: len(part)] = part


def scatter_blocks(x: Values, blocks: Blocks, block: int, data: Values) -> None:
    for number, row in zip(blocks.tolist(), data.reshape(len(blocks), block), strict=True):
        part = x[number * block : (number + 1) * block]
        part[:] = row[: len(part)]
