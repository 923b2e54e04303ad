"""Blocks of consecutive values.

block_norms             the Euclidean norm of every block
accumulate_block_norms  residual += gradient, and the norms of its blocks    one pass
nonzero_blocks          which blocks are not all zero
add_blocks              add blocks into chosen blocks of an array
gather_blocks           chosen blocks, one after the other
scatter_blocks          store blocks into chosen blocks of an array
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import backend, checks, memory
from sparsewire.kernels.checks import Values

__all__ = [
    "accumulate_block_norms",
    "add_blocks",
    "block_norms",
    "gather_blocks",
    "nonzero_blocks",
    "scatter_blocks",
]

Blocks = npt.NDArray[np.int64]  # numbers of blocks, counted from 0


def block_norms(x: Values, block: int) -> npt.NDArray[np.float64]:
    """The Euclidean norm of every `block` consecutive values; the last block may be shorter.

    Squares are added in float64 and nothing is scaled: the norm of float64 values from 1e154 on is infinite.

    >>> block_norms(np.array([3, 4, 0, 5, 7], np.float32), 2)
    array([5., 5., 7.])
    """
    checks.values(x, "x")
    block, norms = _room_for_norms(len(x), block)
    backend.active.block_norms(x, block, norms)
    return norms


def accumulate_block_norms(residual: Values, gradient: Values, block: int) -> npt.NDArray[np.float64]:
    """Add the gradient to the residual, whose `block_norms` are returned, in one pass.

    >>> residual = np.array([1, 1, 0, 5], np.float32)
    >>> accumulate_block_norms(residual, np.array([2, 3, 0, 0], np.float32), 2)
    array([5., 5.])
    >>> residual
    array([3., 4., 0., 5.], dtype=float32)
    """
    checks.accumulation(residual, gradient)
    block, norms = _room_for_norms(len(residual), block)
    backend.active.accumulate_block_norms(residual, gradient, block, norms)
    return norms


def nonzero_blocks(x: Values, block: int) -> Blocks:
    """The numbers of the blocks of `block` consecutive values that are not all zero; the last may be shorter.

    -0.0 is zero, denormals and NaN are not.  A block is read up to the first value that is not zero.

    >>> nonzero_blocks(np.array([0, 0, 0, 5, -0.0, 0, np.nan], np.float32), 2)
    array([1, 3])
    """
    checks.values(x, "x")
    block = _block_length(len(x), block)
    numbers = memory.empty(-(-len(x) // block), np.int64)
    count = backend.active.nonzero_blocks(x, block, numbers)
    return memory.used(numbers, count)


def add_blocks(total: Values, rows: Blocks, data: Values, block: int) -> None:
    """total[rows[i] * block + j] += data[i * block + j], for every j of a block.

    Rows must be strictly increasing.  The total is untouched if they are not, or if one of them lies outside.
    The last block of the total may be shorter: what data has beyond it is not added.  Total and data have the
    same dtype, except that half types are added to a total of float32.

    >>> total = np.ones(5, np.float32)
    >>> add_blocks(total, np.array([0, 2]), np.array([1, 2, 3, 0], np.float16), 2)
    >>> total
    array([2., 3., 1., 1., 4.], dtype=float32)
    """
    checks.values(total, "total")
    checks.writeable(total, "total")
    checks.values(data, "data")
    wide = np.dtype(np.float32) if data.dtype.itemsize == 2 else data.dtype
    if total.dtype != wide:
        raise TypeError(f"{data.dtype} values are added to a total of {wide}, not of {total.dtype}")
    existing = _check_blocks(rows, len(total), block)
    _check_data(data, rows, block)
    # As unsigned numbers, the negative ones are the largest.
    invalid = backend.active.first_invalid(rows.view(np.uint64), 0, max(existing, 1) - 1)
    if invalid >= 0:
        raise ValueError(
            f"rows must be strictly increasing in [0, {existing}): "
            f"the one at position {invalid} is {rows[invalid]}"
        )
    if len(rows) > 0:
        backend.active.add_blocks(total, rows, data, block)


def gather_blocks(x: Values, blocks: Blocks, block: int) -> Values:
    """The blocks of `block` values with these numbers, one after the other, in any order.

    If the last block of x is shorter, zeros follow it.

    >>> gather_blocks(np.array([1, 2, 3, 4, 5], np.float32), np.array([2, 0]), 2)
    array([5., 0., 1., 2.], dtype=float32)
    """
    checks.values(x, "x")
    _check_among(blocks, _check_blocks(blocks, len(x), block))
    gathered = memory.empty(len(blocks) * block, x.dtype)
    if len(blocks) > 0:
        backend.active.gather_blocks(x, blocks, block, gathered)
    return gathered


def scatter_blocks(x: Values, blocks: Blocks, block: int, data: Values) -> None:
    """Store data, laid out as by `gather_blocks`, into the blocks of x with these numbers, in any order.

    x is untouched if one of them does not exist.  What data has beyond a shorter last block is not stored.
    Of a block that is named twice, the last data stays.

    >>> x = np.zeros(5, np.float32)
    >>> scatter_blocks(x, np.array([2, 0]), 2, np.array([5, 0, 1, 2], np.float32))
    >>> x
    array([1., 2., 0., 0., 5.], dtype=float32)
    """
    checks.values(x, "x")
    checks.writeable(x, "x")
    checks.values(data, "data")
    checks.same_dtype(x, data, "x and data")
    _check_among(blocks, _check_blocks(blocks, len(x), block))
    _check_data(data, blocks, block)
    if len(blocks) > 0:
        backend.active.scatter_blocks(x, blocks, block, data)


def _room_for_norms(count: int, block: int) -> tuple[int, npt.NDArray[np.float64]]:
    """The length of a block, and an array for the norms."""
    block = _block_length(count, block)
    return block, memory.empty(-(-count // block), np.float64)


def _block_length(count: int, block: int) -> int:
    """The length of a block, at most the number of values, so that it fits a machine word."""
    return min(_check_block(block), count or 1)


def _check_block(block: int) -> int:
    return checks.at_least_one(block, "a block holds at least one value")


def _check_blocks(blocks: Blocks, length: int, block: int) -> int:
    """How many blocks an array of that length has; the caller compares the numbers of blocks with it."""
    checks.exact_dtype(blocks, np.int64, "numbers of blocks")
    return -(-length // _check_block(block))


def _check_among(blocks: Blocks, existing: int) -> None:
    # As unsigned numbers, the negative ones are the largest.
    if len(blocks) > 0 and blocks.view(np.uint64).max() >= existing:
        raise ValueError(f"there are {existing} blocks, not those from {blocks.min()} to {blocks.max()}")


def _check_data(data: Values, blocks: Blocks, block: int) -> None:
    if len(data) != len(blocks) * block:
        raise ValueError(f"{len(blocks)} blocks of {block} values are not {len(data)} values")
