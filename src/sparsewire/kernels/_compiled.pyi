"""The extension module of csrc/bindings.cpp.  bfloat16 values come as uint16."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Step = tuple[int, int, int]  # position, count, ties

def select(
    x: npt.NDArray[Any],
    threshold: int,
    offset: int,
    indices: npt.NDArray[Any],
    values: npt.NDArray[Any],
    step: Step,
) -> Step: ...
def accumulate_select(
    residual: npt.NDArray[Any],
    gradient: npt.NDArray[Any],
    threshold: int,
    indices: npt.NDArray[Any],
    values: npt.NDArray[Any],
    step: Step,
    velocity: npt.NDArray[Any] | None,
    momentum: float,
) -> Step: ...
def threshold_for_k(x: npt.NDArray[Any], k: int) -> tuple[int, int]: ...
def select_buckets(
    x: npt.NDArray[Any], k: int, bucket: int, indices: npt.NDArray[Any], values: npt.NDArray[Any]
) -> int: ...
def accumulate_select_buckets(
    residual: npt.NDArray[Any],
    gradient: npt.NDArray[Any],
    k: int,
    bucket: int,
    indices: npt.NDArray[Any],
    values: npt.NDArray[Any],
) -> int: ...
def block_norms(x: npt.NDArray[Any], block: int, norms: npt.NDArray[np.float64]) -> None: ...
def accumulate_block_norms(
    residual: npt.NDArray[Any], gradient: npt.NDArray[Any], block: int, norms: npt.NDArray[np.float64]
) -> None: ...
def nonzero_blocks(x: npt.NDArray[Any], block: int, numbers: npt.NDArray[np.int64]) -> int: ...
def add_blocks(
    total: npt.NDArray[Any], rows: npt.NDArray[np.int64], values: npt.NDArray[Any], block: int
) -> None: ...
def gather_blocks(
    x: npt.NDArray[Any], numbers: npt.NDArray[np.int64], block: int, out: npt.NDArray[Any]
) -> None: ...
def scatter_blocks(
    x: npt.NDArray[Any], numbers: npt.NDArray[np.int64], block: int, values: npt.NDArray[Any]
) -> None: ...
def histogram(x: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> None: ...
def partition(
    indices: npt.NDArray[Any],
    values: npt.NDArray[Any],
    threshold: int,
    ties: int,
    large_indices: npt.NDArray[Any],
    large_values: npt.NDArray[Any],
    rest_indices: npt.NDArray[Any],
    rest_values: npt.NDArray[Any],
) -> int: ...
def without(
    indices: npt.NDArray[Any],
    values: npt.NDArray[Any],
    others: npt.NDArray[Any],
    out_indices: npt.NDArray[Any],
    out_values: npt.NDArray[Any],
) -> int: ...
def merge(
    operation: str,
    indices: Sequence[npt.NDArray[Any]],
    values: Sequence[npt.NDArray[Any]],
    out_indices: npt.NDArray[Any],
    out_values: npt.NDArray[Any],
) -> int: ...
def scatter_add(
    dense: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any], offset: int
) -> None: ...
def scatter(
    dense: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any], offset: int
) -> None: ...
def spread(
    dense: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any], offset: int
) -> None: ...
def row_columns(
    starts: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    width: int,
    marks: npt.NDArray[np.uint64],
    before: npt.NDArray[Any],
    columns: npt.NDArray[Any],
    positions: npt.NDArray[Any],
) -> int: ...
def row_products(
    starts: npt.NDArray[np.int64],
    values: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    positions: npt.NDArray[Any],
    weights: npt.NDArray[np.float64],
    outputs: int,
    products: npt.NDArray[np.float64],
) -> None: ...
def row_sums(
    starts: npt.NDArray[np.int64],
    values: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    positions: npt.NDArray[Any],
    factors: npt.NDArray[np.float64],
    outputs: int,
    sums: npt.NDArray[np.float64],
) -> None: ...
def split_at(
    indices: npt.NDArray[Any], cuts: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> None: ...
def first_invalid(indices: npt.NDArray[Any], first: int, last: int) -> int: ...
def checksum(data: npt.NDArray[np.uint8], seed: int) -> int: ...
def narrow(values: npt.NDArray[np.float32], out: npt.NDArray[Any]) -> None: ...
def widen(values: npt.NDArray[Any], out: npt.NDArray[np.float32]) -> None: ...
def quantize(
    values: npt.NDArray[np.float32],
    positions: int | npt.NDArray[Any],
    key: int | None,
    bits: int,
    bucket: int,
    norm: str,
    scales: npt.NDArray[np.float32],
    codes: npt.NDArray[np.uint8],
) -> None: ...
def dequantize(
    scales: npt.NDArray[np.float32],
    codes: npt.NDArray[np.uint8],
    bits: int,
    bucket: int,
    out: npt.NDArray[np.float32],
) -> None: ...
def encode_elias_fano(
    indices: npt.NDArray[Any], start: int, span: int, words: npt.NDArray[np.uint64]
) -> None: ...
def decode_elias_fano(
    words: npt.NDArray[np.uint64], start: int, span: int, indices: npt.NDArray[Any]
) -> bool: ...
def encode_bitmap(
    indices: npt.NDArray[Any], start: int, span: int, words: npt.NDArray[np.uint64]
) -> None: ...
def decode_bitmap(
    words: npt.NDArray[np.uint64], start: int, span: int, indices: npt.NDArray[Any]
) -> bool: ...
def encode_tiles(indices: npt.NDArray[Any], start: int, span: int, words: npt.NDArray[np.uint64]) -> bool: ...
def decode_tiles(words: npt.NDArray[np.uint64], start: int, span: int, indices: npt.NDArray[Any]) -> bool: ...
def count_tiles(indices: npt.NDArray[Any], start: int) -> int: ...
def parse_libsvm(
    text: npt.NDArray[np.uint8],
    first: int,
    every: int,
    lowest: int,
    highest: int,
    labels: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    values: npt.NDArray[Any],
) -> tuple[int, int, int, int, int, bool, int, int, int]: ...
def available_isas() -> list[str]: ...
def active_isa() -> str: ...
def last_isa() -> str: ...
def force_isa(name: str) -> bool: ...
