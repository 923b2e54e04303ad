"""Every kernel in plain numpy: the specification, and what runs where no compiler was at hand.

Arguments were checked by `sparsewire.kernels`; thresholds arrive as magnitude bits (see magnitude.py).
Half types are added and multiplied in float32, and each result is rounded once.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.libsvm import Expected, Parsed, Room, Wanted
from sparsewire.kernels.magnitude import CLASSES, classes, magnitudes

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
Numbers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
# -0.0 is the neutral element of the sum: -0.0 + x is x, the sign of a zero included.
_ABSENT = {"sum": -0.0, "max": 0.0, "min": 0.0}

# inf - inf and sums that overflow are values like others: the kernels never warn.
_quiet = np.errstate(over="ignore", invalid="ignore")


@_quiet
def accumulate_select(
    residual: Values,
    gradient: Values,
    bits: int,
    ties: int,
    index_dtype: np.dtype[Any],
    velocity: Values | None,
    momentum: float,
) -> Entries:
    if velocity is not None:
        velocity[:] = _wide(velocity) * momentum  # rounded to the dtype here, and with the sum once more
        velocity[:] = _wide(velocity) + _wide(gradient)
        gradient = velocity
    residual[:] = _wide(residual) + _wide(gradient)
    indices, values = select(residual, bits, ties, 0, index_dtype)
    residual[indices] = 0
    return indices, values


def select(x: Values, bits: int, ties: int, offset: int, index_dtype: np.dtype[Any]) -> Entries:
    positions = np.flatnonzero(_chosen(x, bits, ties))
    first = offset % 2 ** (8 * index_dtype.itemsize)  # an empty range may begin behind the last index
    return positions.astype(index_dtype) + index_dtype.type(first), x[positions]


def _chosen(x: Values, bits: int, ties: int) -> npt.NDArray[np.bool_]:
    """Which are above the threshold, or among the first so many that equal it?"""
    magnitude = magnitudes(x)
    chosen = magnitude > bits
    chosen[np.flatnonzero(magnitude == bits)[:ties]] = True
    return chosen


def threshold_for_k(x: Values, k: int) -> tuple[int, int]:
    magnitude = magnitudes(x)
    kth = np.partition(magnitude, len(x) - k)[len(x) - k]
    return int(kth), k - int(np.count_nonzero(magnitude > kth))


def select_buckets(x: Values, k: int, bucket: int, out_indices: Indices, out_values: Values) -> int:
    rows = _rows(magnitudes(x), bucket)
    largest_first = np.argsort(~rows, axis=1, kind="stable")  # ~ turns the order round
    first = bucket * np.arange(len(rows))
    positions = np.sort((first[:, None] + largest_first[:, :k]).reshape(-1))
    positions = positions[rows.reshape(-1)[positions] != 0]
    out_indices[: len(positions)], out_values[: len(positions)] = positions, x[positions]
    return len(positions)


@_quiet
def accumulate_select_buckets(
    residual: Values, gradient: Values, k: int, bucket: int, out_indices: Indices, out_values: Values
) -> int:
    residual[:] = _wide(residual) + _wide(gradient)
    count = select_buckets(residual, k, bucket, out_indices, out_values)
    residual[out_indices[:count]] = 0
    return count


@_quiet
def block_norms(x: Values, block: int, norms: npt.NDArray[np.float64]) -> None:
    norms[:] = np.sqrt(_sums_of_squares(_rows(x, block)))


@_quiet
def accumulate_block_norms(
    residual: Values, gradient: Values, block: int, norms: npt.NDArray[np.float64]
) -> None:
    residual[:] = _wide(residual) + _wide(gradient)
    block_norms(residual, block, norms)


def nonzero_blocks(x: Values, block: int, numbers: Blocks) -> int:
    found = np.flatnonzero(_rows(magnitudes(x), block).any(axis=1))
    numbers[: len(found)] = found
    return len(found)


@_quiet
def add_blocks(total: Values, rows: Blocks, data: Values, block: int) -> None:
    for row, values in zip(rows.tolist(), _wide(data).reshape(len(rows), block), strict=True):
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


def histogram(x: Values) -> npt.NDArray[np.int64]:
    return np.bincount(classes(x), minlength=CLASSES).astype(np.int64)


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
    is_large = _chosen(values, bits, ties)
    count = int(np.count_nonzero(is_large))
    others = len(indices) - count
    large_indices[:count], large_values[:count] = indices[is_large], values[is_large]
    rest_indices[:others], rest_values[:others] = indices[~is_large], values[~is_large]
    return count


def without(
    indices: Indices, values: Values, others: Indices, out_indices: Indices, out_values: Values
) -> int:
    kept = np.flatnonzero(~np.isin(indices, others))
    out_indices[: len(kept)], out_values[: len(kept)] = indices[kept], values[kept]
    return len(kept)


@_quiet
def merge(operation: str, runs: Sequence[Entries], out_indices: Indices, out_values: Values) -> int:
    indices = np.unique(np.concatenate([run[0] for run in runs]))
    rows = np.full((len(runs), len(indices)), _ABSENT[operation]).astype(_wide(out_values).dtype)
    for row, (run_indices, run_values) in zip(rows, runs, strict=True):
        row[np.searchsorted(indices, run_indices)] = _wide(run_values)
    total = rows[0]
    for row in rows[1:]:  # not reduce, which may add in another order
        total = _COMBINE[operation](total, row)
    out_indices[: len(indices)] = indices
    out_values[: len(indices)] = total if operation == "sum" else total + total.dtype.type(0)
    return len(indices)


@_quiet
def scatter_add(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    positions = indices - indices.dtype.type(offset)
    dense[positions] = _wide(dense[positions]) + _wide(values)


def scatter(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    dense[indices - indices.dtype.type(offset)] = values


def spread(dense: Values, indices: Indices, values: Values, offset: int) -> None:
    dense[:] = 0
    scatter(dense, indices, values, offset)


def _entries_of(starts: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Of the chosen rows: the entries, and for each of them the place of its row among the chosen."""
    counts = starts[rows + 1] - starts[rows]
    places = np.repeat(np.arange(len(rows)), counts)
    before = np.cumsum(counts) - counts
    return (starts[rows] - before)[places] + np.arange(len(places)), places


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


@_quiet
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


@_quiet
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


def split_at(indices: Indices, cuts: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    # Not np.searchsorted: it would copy all indices to the common dtype of indices and cuts.
    return np.array([bisect_left(indices, cut) for cut in cuts], np.int64)


def first_invalid(indices: Indices, first: int, last: int) -> int:
    bad = (indices < first) | (indices > last)
    bad[1:] |= indices[1:] <= indices[:-1]
    return int(bad.argmax()) if bad.any() else -1


def checksum(data: npt.NDArray[np.uint8], seed: int) -> int:
    """Eight lanes of Fletcher sums over 64-bit words: per word a += w, b += a, modulo 2^64."""
    rows = -(-len(data) // 64)
    words = np.frombuffer(data.tobytes().ljust(64 * rows, b"\0"), "<u8").reshape(rows, 8)
    a = words.sum(axis=0, dtype=np.uint64)
    b = (words * np.arange(rows, 0, -1, dtype=np.uint64)[:, None]).sum(axis=0, dtype=np.uint64)
    folded = seed ^ len(data)
    for lane_sum in [*a.tolist(), *b.tolist()]:
        # The odd constant is 2^64 / golden ratio; the shift lets high bits reach the low ones.
        folded = (folded ^ lane_sum) * 0x9E3779B97F4A7C15 % 2**64
        folded ^= folded >> 32
    return folded


@_quiet
def narrow(values: Values, out: Values) -> None:
    out[:] = values.astype(out.dtype)


@_quiet
def widen(values: Values, out: Values) -> None:
    out[:] = values


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
    """QSGD: each |x| / scale * s becomes one of the two whole numbers around it, so that its mean is right.

    Values that are not finite have no part in a norm, and the code that no level has.
    """
    n, s = len(values), (1 << (bits - 1)) - 1
    is_finite = np.isfinite(values)
    size = np.where(is_finite, np.abs(values), np.float32(0))
    scales[:] = (_max_norms if norm == "max" else _two_norms)(_rows(size, bucket))
    scale = np.repeat(scales, bucket)[:n]
    # Where the scale is zero, so is every finite value.
    q = size / np.where(scale == 0, np.float32(1), scale) * np.float32(s)
    lower, u = np.floor(q), np.full(n, 0.5, np.float32)
    if key is not None:
        if isinstance(positions, int):
            positions = np.uint64(positions) + np.arange(n, dtype=np.uint64)
        u = (_philox(positions, key) >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
    level = np.copysign(lower + (u < q - lower), values)
    _pack(np.where(is_finite, level, -s - 1).astype(np.int8), bits, codes)


@_quiet
def dequantize(scales: Values, codes: npt.NDArray[np.uint8], bits: int, bucket: int, out: Values) -> None:
    n, s = len(out), (1 << (bits - 1)) - 1
    level = _unpack(codes, bits)[:n]
    value = np.repeat(scales, bucket)[:n] * (level.astype(np.float32) / np.float32(s))
    out[:] = np.where(level == -s - 1, np.float32(np.nan), value)


def _rows(values: Values, width: int) -> Values:
    """The values in rows of that width, the last one filled up with zeros."""
    rows = np.zeros((-(-len(values) // width), width), values.dtype)
    rows.reshape(-1)[: len(values)] = values
    return rows


def _max_norms(buckets: Values) -> Values:
    norms: Values = buckets.max(axis=1)
    return norms


def _two_norms(buckets: Values) -> Values:
    return np.minimum(np.sqrt(_sums_of_squares(buckets)), np.finfo(np.float32).max)


def _sums_of_squares(rows: Values) -> Values:
    """Squares are added in float64: value j to lane j % 8, then the upper half of the lanes to the lower."""
    lanes = np.zeros((len(rows), 8))
    for begin in range(0, rows.shape[1], 8):
        part = rows[:, begin : begin + 8].astype(np.float64)
        lanes[:, : part.shape[1]] += part * part
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def _philox(counters: Indices, key: int) -> npt.NDArray[np.uint64]:
    """The first output word of Philox2x32-10 for each counter (Salmon et al., SC'11)."""
    half, lower_half = np.uint64(32), np.uint64(2**32 - 1)
    low, high = counters.astype(np.uint64) & lower_half, counters.astype(np.uint64) >> half
    for round_number in range(10):
        round_key = np.uint64((key + round_number * 0x9E3779B9) % 2**32)
        product = low * np.uint64(0xD256D193)
        low, high = product >> half ^ round_key ^ high, product & lower_half
    return low


def _pack(levels: npt.NDArray[np.int8], bits: int, codes: npt.NDArray[np.uint8]) -> None:
    by_byte = _rows(levels.view(np.uint8) & np.uint8(2**bits - 1), 8 // bits)
    codes[:] = np.bitwise_or.reduce(by_byte << _shifts(bits), axis=1)


def _unpack(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.int8]:
    # Shifted to the top of a byte and, as signed numbers, down again: that extends the sign.
    by_byte = (codes[:, None] << (np.uint8(8 - bits) - _shifts(bits))).view(np.int8) >> np.int8(8 - bits)
    return by_byte.reshape(-1)


def _shifts(bits: int) -> npt.NDArray[np.uint8]:
    """Where in a byte its codes begin."""
    return np.arange(0, 8, bits, dtype=np.uint8)


def encode_elias_fano(indices: Indices, start: int, span: int, words: Words) -> None:
    """The low bits of every r = index - start, then from the next word on bit (r >> low) + j for the j-th."""
    low, lower_words = _elias_fano(len(indices), span)
    r, low_bits = _relative(indices, start), np.arange(low, dtype=np.uint64)
    words[:lower_words] = _words_of(((r[:, None] >> low_bits) & np.uint64(1)).reshape(-1), lower_words)
    upper = (r >> np.uint64(low)) + np.arange(len(r), dtype=np.uint64)
    words[lower_words:] = _words_with(upper, len(words) - lower_words)


def decode_elias_fano(words: Words, start: int, span: int, indices: Indices) -> bool:
    low, lower_words = _elias_fano(len(indices), span)
    upper = np.flatnonzero(_bits_of(words[lower_words:]))
    if len(upper) != len(indices) or (upper >= len(indices) + ((span - 1) >> low)).any():
        return False
    lower_bits = _bits_of(words[:lower_words])[: len(indices) * low].reshape(len(indices), low)
    lower = (lower_bits.astype(np.uint64) << np.arange(low, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    r = (upper - np.arange(len(upper))).astype(np.uint64) << np.uint64(low) | lower
    return _store_support(r, start, span, indices)


def encode_bitmap(indices: Indices, start: int, span: int, words: Words) -> None:
    words[:] = _words_with(_relative(indices, start), len(words))


def decode_bitmap(words: Words, start: int, span: int, indices: Indices) -> bool:
    return _store_support(np.flatnonzero(_bits_of(words)).astype(np.uint64), start, span, indices)


def encode_tiles(indices: Indices, start: int, span: int, words: Words) -> bool:
    """A bitmap of the words that are not zero in the bitmap of the indices, then these words."""
    bitmap = _words_with(_relative(indices, start), _words_for(span))
    tiles = np.flatnonzero(bitmap)
    before = _words_for(len(bitmap))
    if len(words) != before + len(tiles):
        return False
    words[:before], words[before:] = _words_with(tiles, before), bitmap[tiles]
    return True


def decode_tiles(words: Words, start: int, span: int, indices: Indices) -> bool:
    before = _words_for(_words_for(span))
    tiles, kept = np.flatnonzero(_bits_of(words[:before])), words[before:]
    if len(words) < before or len(tiles) != len(kept) or not kept.all():
        return False
    in_tile = np.flatnonzero(_bits_of(kept))
    return _store_support((64 * tiles[in_tile // 64] + in_tile % 64).astype(np.uint64), start, span, indices)


def count_tiles(indices: Indices, start: int) -> int:
    return len(np.unique(_relative(indices, start) // np.uint64(64)))


def _relative(indices: Indices, start: int) -> npt.NDArray[np.uint64]:
    return indices.astype(np.uint64) - np.uint64(start)


def _elias_fano(count: int, span: int) -> tuple[int, int]:
    """How many low bits an index has, and how many words those of all indices."""
    low = (span // count).bit_length() - 1 if count else 0
    return low, _words_for(count * low)


def _words_for(bits: int) -> int:
    return -(-bits // 64)


def _words_of(bits: npt.NDArray[Any], count: int) -> Words:
    packed = np.packbits(bits.astype(bool), bitorder="little")
    return np.frombuffer(packed.tobytes().ljust(8 * count, b"\0"), "<u8")


def _words_with(positions: npt.NDArray[Any], count: int) -> Words:
    bits = np.zeros(64 * count, bool)
    bits[positions] = True
    return _words_of(bits, count)


def _bits_of(words: Words) -> npt.NDArray[np.uint8]:
    return np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")


def _store_support(r: npt.NDArray[np.uint64], start: int, span: int, indices: Indices) -> bool:
    """Store start + r if that is as many indices as there is room, increasing and in the span."""
    if len(r) != len(indices) or (len(r) > 0 and (r[-1] >= span or (r[1:] <= r[:-1]).any())):
        return False
    indices[:] = r + np.uint64(start)
    return True


def parse_libsvm(text: npt.NDArray[np.uint8], wanted: Wanted, room: Room) -> Parsed:
    parsed, begin = Parsed(), 0
    for number, line in enumerate(text.tobytes().split(b"\n")[:-1]):
        parsed = parsed._replace(lines=number + 1)
        words = list(_WORD.finditer(line.partition(b"#")[0]))
        if words and number >= wanted.first and (number - wanted.first) % wanted.every == 0:
            try:
                parsed = _read_row(words, wanted, parsed, room)
            except _MalformedError as malformed:
                word = begin + malformed.position
                return parsed._replace(expected=malformed.expected, line=begin, word=word)
        begin += len(line) + 1
    return parsed


_WORD = re.compile(rb"[^ \t\r]+")
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_QUERY = re.compile(rb"qid:[0-9]+")
_ENTRY = re.compile(rb"([0-9]+):(.*)", re.DOTALL)


class _MalformedError(Exception):
    def __init__(self, expected: Expected, word: re.Match[bytes]) -> None:
        self.expected, self.position = expected, word.start()


def _read_row(words: list[re.Match[bytes]], wanted: Wanted, parsed: Parsed, room: Room) -> Parsed:
    """Store the row behind those that were parsed."""
    label_word, *others = words
    no_label = Expected.ONE_LABEL if b"," in label_word[0] else Expected.LABEL
    label = _read_number(label_word[0], room.labels.dtype, no_label, label_word)
    has_query = bool(others) and others[0][0].startswith(b"qid:")
    if has_query and not _QUERY.fullmatch(others[0][0]):
        raise _MalformedError(Expected.QUERY, others[0])
    indices: list[int] = []
    values: list[float] = []
    for word in others[has_query:]:
        entry = _ENTRY.fullmatch(word[0])
        if entry is None:
            raise _MalformedError(Expected.ENTRY, word)
        indices.append(_read_index(entry[1], wanted, indices, room.indices.dtype, word))
        values.append(_read_number(entry[2], room.values.dtype, Expected.VALUE, word))
    stop = parsed.entries + len(indices)
    room.labels[parsed.rows], room.counts[parsed.rows] = label, len(indices)
    room.indices[parsed.entries : stop], room.values[parsed.entries : stop] = indices, values
    return parsed._replace(
        rows=parsed.rows + 1,
        entries=stop,
        smallest=min([*indices[:1], parsed.smallest]),
        largest=max([*indices[-1:], parsed.largest]),
        has_query=parsed.has_query or has_query,
    )


def _read_index(
    digits: bytes, wanted: Wanted, before: list[int], dtype: np.dtype[Any], word: re.Match[bytes]
) -> int:
    significant = digits.lstrip(b"0") or b"0"
    # Python refuses to convert thousands of digits; 19 are enough for any dtype.
    if len(significant) > 19 or int(significant) > min(wanted.highest, np.iinfo(dtype).max):
        raise _MalformedError(Expected.INDEX_UP_TO_HIGHEST, word)
    index = int(significant)
    if index < wanted.lowest:
        raise _MalformedError(Expected.INDEX_FROM_LOWEST, word)
    if before and index <= before[-1]:
        raise _MalformedError(Expected.LARGER_INDEX, word)
    return index


@_quiet
def _read_number(text: bytes, dtype: np.dtype[Any], wanted: Expected, word: re.Match[bytes]) -> float:
    if _NOT_FINITE.fullmatch(text):
        raise _MalformedError(Expected.FINITE_NUMBER, word)
    if not _NUMBER.fullmatch(text):
        raise _MalformedError(wanted, word)
    number = float(dtype.type(float(text)))
    if abs(number) == float("inf"):
        raise _MalformedError(Expected.SMALLER_NUMBER, word)
    return number


def _wide(values: Values) -> Values:
    """The dtype that sums are made in."""
    return values.astype(np.float32) if values.dtype.itemsize == 2 else values
