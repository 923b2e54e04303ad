"""The kernels of csrc/, with the signatures of reference.py: makes room for results and trims them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import _compiled, memory
from sparsewire.kernels.libsvm import Parsed, Room, Wanted
from sparsewire.kernels.magnitude import CLASSES

__all__ = [
    "accumulate_block_norms",
    "accumulate_select",
    "accumulate_select_buckets",
    "add_blocks",
    "block_norms",
    "checksum",
    "count_tiles",
    "decode_bitmap",
    "decode_elias_fano",
    "decode_tiles",
    "dequantize",
    "encode_bitmap",
    "encode_elias_fano",
    "encode_tiles",
    "first_invalid",
    "gather_blocks",
    "histogram",
    "merge",
    "narrow",
    "nonzero_blocks",
    "parse_libsvm",
    "partition",
    "quantize",
    "row_columns",
    "row_products",
    "row_sums",
    "scatter",
    "scatter_add",
    "scatter_blocks",
    "select",
    "select_buckets",
    "split_at",
    "spread",
    "threshold_for_k",
    "widen",
    "without",
]

Indices = npt.NDArray[Any]
Values = npt.NDArray[Any]
Entries = tuple[Indices, Values]
Words = npt.NDArray[np.uint64]
Blocks = npt.NDArray[np.int64]


def accumulate_select(
    residual: Values,
    gradient: Values,
    bits: int,
    ties: int,
    index_dtype: np.dtype[Any],
    velocity: Values | None,
    momentum: float,
) -> Entries:
    raw_residual, raw_gradient = _raw(residual), _raw(gradient)
    raw_velocity = None if velocity is None else _raw(velocity)

    def continue_from(step: _compiled.Step, indices: Indices, values: Values) -> _compiled.Step:
        return _compiled.accumulate_select(
            raw_residual, raw_gradient, bits, indices, values, step, raw_velocity, momentum
        )

    return _growing(continue_from, len(residual), ties, index_dtype, residual.dtype)


def select(x: Values, bits: int, ties: int, offset: int, index_dtype: np.dtype[Any]) -> Entries:
    raw_x = _raw(x)

    def continue_from(step: _compiled.Step, indices: Indices, values: Values) -> _compiled.Step:
        return _compiled.select(raw_x, bits, offset, indices, values, step)

    return _growing(continue_from, len(x), ties, index_dtype, x.dtype)


def threshold_for_k(x: Values, k: int) -> tuple[int, int]:
    return _compiled.threshold_for_k(_raw(x), k)


def select_buckets(x: Values, k: int, bucket: int, out_indices: Indices, out_values: Values) -> int:
    return _compiled.select_buckets(_raw(x), k, bucket, out_indices, _raw(out_values))


def accumulate_select_buckets(
    residual: Values, gradient: Values, k: int, bucket: int, out_indices: Indices, out_values: Values
) -> int:
    return _compiled.accumulate_select_buckets(
        _raw(residual), _raw(gradient), k, bucket, out_indices, _raw(out_values)
    )


def block_norms(x: Values, block: int, norms: npt.NDArray[np.float64]) -> None:
    _compiled.block_norms(_raw(x), block, norms)


def accumulate_block_norms(
    residual: Values, gradient: Values, block: int, norms: npt.NDArray[np.float64]
) -> None:
    _compiled.accumulate_block_norms(_raw(residual), _raw(gradient), block, norms)


def nonzero_blocks(x: Values, block: int, numbers: Blocks) -> int:
    return _compiled.nonzero_blocks(_raw(x), block, numbers)


def add_blocks(total: Values, rows: Blocks, data: Values, block: int) -> None:
    _compiled.add_blocks(total, rows, _raw(data), block)


def gather_blocks(x: Values, blocks: Blocks, block: int, out: Values) -> None:
    _compiled.gather_blocks(_raw(x), blocks, block, _raw(out))


def scatter_blocks(x: Values, blocks: Blocks, block: int, data: Values) -> None:
    _compiled.scatter_blocks(_raw(x), blocks, block, _raw(data))


def histogram(x: Values) -> npt.NDArray[np.int64]:
    counts = np.empty(CLASSES, np.int64)
    _compiled.histogram(_raw(x), counts)
    return counts


def partition(
    indices: Indices,
    values: Values,
    bits: int,
    ties: int,
    large_indices: Indices,
    large_values: Values,
    rest_indices: Indices,
    rest_values: Values,
) -> int:
    raw_large, raw_rest = _raw(large_values), _raw(rest_values)
    return _compiled.partition(
        indices, _raw(values), bits, ties, large_indices, raw_large, rest_indices, raw_rest
    )


def without(
    indices: Indices, values: Values, others: Indices, out_indices: Indices, out_values: Values
) -> int:
    return _compiled.without(indices, _raw(values), others, out_indices, _raw(out_values))


def merge(operation: str, runs: Sequence[Entries], out_indices: Indices, out_values: Values) -> int:
    run_indices, run_values = [run[0] for run in runs], [_raw(run[1]) for run in runs]
    return _compiled.merge(operation, run_indices, run_values, out_indices, _raw(out_values))


def scatter_add(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    _compiled.scatter_add(_raw(dense), indices, _raw(values), offset)


def scatter(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    _compiled.scatter(_raw(dense), indices, _raw(values), offset)


def spread(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    _compiled.spread(_raw(dense), indices, _raw(values), offset)


# These make no results of their own.
row_columns, row_products, row_sums = _compiled.row_columns, _compiled.row_products, _compiled.row_sums


def split_at(indices: Indices, cuts: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    positions = np.empty(len(cuts), np.int64)
    _compiled.split_at(indices, cuts, positions)
    return positions


def first_invalid(indices: Indices, first: int, last: int) -> int:
    return _compiled.first_invalid(indices, first, last)


def checksum(data: npt.NDArray[np.uint8], seed: int) -> int:
    return _compiled.checksum(data, seed)


def narrow(values: Values, out: Values) -> None:
    _compiled.narrow(values, _raw(out))


def widen(values: Values, out: Values) -> None:
    _compiled.widen(_raw(values), out)


def quantize(
    values: Values,
    positions: int | Indices,
    key: int | None,
    bits: int,
    bucket: int,
    norm: str,
    scales: Values,
    codes: npt.NDArray[np.uint8],
) -> None:
    _compiled.quantize(values, positions, key, bits, bucket, norm, scales, codes)


def dequantize(scales: Values, codes: npt.NDArray[np.uint8], bits: int, bucket: int, out: Values) -> None:
    _compiled.dequantize(scales, codes, bits, bucket, out)


def encode_elias_fano(indices: Indices, start: int, span: int, words: Words) -> None:
    _compiled.encode_elias_fano(indices, start, span, words)


def decode_elias_fano(words: Words, start: int, span: int, indices: Indices) -> bool:
    return _compiled.decode_elias_fano(words, start, span, indices)


def encode_bitmap(indices: Indices, start: int, span: int, words: Words) -> None:
    _compiled.encode_bitmap(indices, start, span, words)


def decode_bitmap(words: Words, start: int, span: int, indices: Indices) -> bool:
    return _compiled.decode_bitmap(words, start, span, indices)


def encode_tiles(indices: Indices, start: int, span: int, words: Words) -> bool:
    return _compiled.encode_tiles(indices, start, span, words)


def decode_tiles(words: Words, start: int, span: int, indices: Indices) -> bool:
    return _compiled.decode_tiles(words, start, span, indices)


def count_tiles(indices: Indices, start: int) -> int:
    return _compiled.count_tiles(indices, start)


def parse_libsvm(text: npt.NDArray[np.uint8], wanted: Wanted, room: Room) -> Parsed:
    return Parsed(*_compiled.parse_libsvm(text, *wanted, *room))


def _raw(values: Values) -> Values:
    """The array itself; bfloat16, which the binding does not know, as uint16."""
    return values if values.dtype.kind in "fi" else values.view(np.uint16)


def _growing(
    continue_from: Callable[[_compiled.Step, Indices, Values], _compiled.Step],
    n: int,
    ties: int,
    index_dtype: np.dtype[Any],
    value_dtype: np.dtype[Any],
) -> Entries:
    """Run a pass over n values that stops when its output is full, with more room each time."""
    # From 0.9 to 1.8 % density nothing is too small, nor so large that the entries are copied out of it.
    capacity = min(n, 1024 + n // 56)
    indices, values = memory.empty(capacity, index_dtype), memory.empty(capacity, value_dtype)
    step = continue_from((0, 0, min(ties, n)), indices, _raw(values))
    while step[0] < n:
        capacity = min(n, 4 * capacity)
        indices, values = _grown(indices, capacity), _grown(values, capacity)
        step = continue_from(step, indices, _raw(values))
    return memory.used(indices, step[1]), memory.used(values, step[1])


def _grown(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    bigger = memory.empty(capacity, array.dtype)
    bigger[: len(array)] = array
    return bigger
