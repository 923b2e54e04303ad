"""Increasing indices as few bits.

    encode_elias_fano  good for any indices
    encode_bitmap      good for many indices
    encode_tiles       good for indices in clusters
    count_tiles        how many tiles the indices lie in
    elias_fano_words   how many words `encode_elias_fano` makes

Each code has its decoder.  Words that come from elsewhere may be any: a decoder never writes outside its
result, and returns None for words that encode no such indices.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import backend, checks, memory
from sparsewire.kernels.checks import UINT64, Indices, Words

__all__ = [
    "count_tiles",
    "decode_bitmap",
    "decode_elias_fano",
    "decode_tiles",
    "elias_fano_words",
    "encode_bitmap",
    "encode_elias_fano",
    "encode_tiles",
]


def elias_fano_words(count: int, span: int) -> int:
    """How many words `encode_elias_fano` makes of so many indices in a range of `span` positions.

    >>> elias_fano_words(167_772, 2**24)  # 8.6 bits for each
    22447
    """
    count, span = operator.index(count), operator.index(span)
    if not 0 <= count <= span:
        raise ValueError(f"{count} indices do not fit into {span} positions")
    if count == 0:
        return 0
    low = (span // count).bit_length() - 1
    return _words_for(count * low) + _words_for(count + ((span - 1) >> low))


def encode_elias_fano(indices: Indices, start: int, span: int) -> Words:
    """Strictly increasing indices in [start, start + span) in about 2 + log2(span / count) bits each.

    With r = index - start and low = floor(log2(span / count)): the low bits of every r one after the other,
    then from the next word on bit (r >> low) + j set for the j-th index.  Bit b of an array of words is bit
    b % 64 of word b // 64.

    >>> encode_elias_fano(np.array([11, 13, 18], np.uint32), 10, 10)  # low = 1; bits 0, 2 and 6 above
    array([ 3, 69], dtype=uint64)
    """
    _check_support(indices, start, span)
    words: Words = memory.empty(elias_fano_words(len(indices), span), np.uint64)
    backend.active.encode_elias_fano(indices, start, span, words)
    return words


def decode_elias_fano(
    words: Words, count: int, start: int, span: int, index_dtype: npt.DTypeLike = np.uint32
) -> Indices | None:
    """The indices that were encoded; None if the words, which may be any, encode no such indices.

    >>> decode_elias_fano(np.array([3, 69], np.uint64), 3, 10, 10)
    array([11, 13, 18], dtype=uint32)
    >>> decode_elias_fano(np.array([3, 69], np.uint64), 2, 10, 10) is None
    True
    """
    dtype = _check_code(words, count, start, span, index_dtype)
    if count > span or len(words) != elias_fano_words(count, span):
        return None
    indices: Indices = memory.empty(count, dtype)
    return indices if backend.active.decode_elias_fano(words, start, span, indices) else None


def encode_bitmap(indices: Indices, start: int, span: int) -> Words:
    """Strictly increasing indices in [start, start + span), one bit per position: bit index - start is set.

    >>> encode_bitmap(np.array([10, 12], np.uint32), 10, 64)
    array([5], dtype=uint64)
    """
    _check_support(indices, start, span)
    words: Words = memory.empty(_words_for(span), np.uint64)
    backend.active.encode_bitmap(indices, start, span, words)
    return words


def decode_bitmap(
    words: Words, count: int, start: int, span: int, index_dtype: npt.DTypeLike = np.uint32
) -> Indices | None:
    """The indices of a bitmap, as from `decode_elias_fano`.

    >>> decode_bitmap(np.array([5], np.uint64), 2, 10, 64)
    array([10, 12], dtype=uint32)
    """
    dtype = _check_code(words, count, start, span, index_dtype)
    if count > span or len(words) != _words_for(span):
        return None
    indices: Indices = memory.empty(count, dtype)
    return indices if backend.active.decode_bitmap(words, start, span, indices) else None


def count_tiles(indices: Indices, start: int) -> int:
    """How many tiles of 64 positions have an index.  The first tile begins at `start`, and indices increase.

    >>> count_tiles(np.array([10, 73, 74], np.uint32), 10)
    2
    """
    checks.indices(indices, "indices")
    checks.not_negative(start, "start")
    if len(indices) == 0:
        return 0
    if start > indices[0]:
        raise ValueError(f"the first tile begins at {start}, behind the first index, {indices[0]}")
    return backend.active.count_tiles(indices, start)


def encode_tiles(indices: Indices, start: int, span: int, tiles: int) -> Words:
    """A bitmap of the words that are not zero in the bitmap of the indices, and then these words.

    ``tiles`` is what `count_tiles` returns.

    >>> encode_tiles(np.array([0, 128, 129], np.uint32), 0, 1000, tiles=2)
    array([5, 1, 3], dtype=uint64)
    """
    _check_support(indices, start, span)
    if not 0 <= tiles <= len(indices):
        raise ValueError(f"{len(indices)} indices do not lie in {tiles} tiles")
    words: Words = memory.empty(_words_for(_words_for(span)) + tiles, np.uint64)
    if not backend.active.encode_tiles(indices, start, span, words):
        raise ValueError(f"the indices lie in {count_tiles(indices, start)} tiles, not in {tiles}")
    return words


def decode_tiles(
    words: Words, count: int, start: int, span: int, index_dtype: npt.DTypeLike = np.uint32
) -> Indices | None:
    """The indices of tiles, as from `decode_elias_fano`.

    >>> decode_tiles(np.array([5, 1, 3], np.uint64), 3, 0, 1000)
    array([  0, 128, 129], dtype=uint32)
    """
    dtype = _check_code(words, count, start, span, index_dtype)
    if count > 64 * len(words):  # so that no memory is asked for
        return None
    indices: Indices = memory.empty(count, dtype)
    return indices if backend.active.decode_tiles(words, start, span, indices) else None


def _check_support(indices: Indices, start: int, span: int) -> None:
    """Refuse indices that do not increase or lie outside: an encoder would write outside its words."""
    checks.indices(indices, "indices")
    stop = _stop(start, span)
    checks.index_dtype_for(indices.dtype, stop)
    # No index is in an empty range.
    invalid = backend.active.first_invalid(indices, start, stop - 1) if span else -(len(indices) == 0)
    if invalid >= 0:
        raise ValueError(
            f"indices must be strictly increasing in [{start}, {stop}): "
            f"the one at position {invalid} is {indices[invalid]}"
        )


def _check_code(words: Words, count: int, start: int, span: int, index_dtype: npt.DTypeLike) -> np.dtype[Any]:
    checks.exact_dtype(words, UINT64, "words")
    checks.not_negative(count, "count")
    return checks.index_dtype_for(index_dtype, _stop(start, span))


def _stop(start: int, span: int) -> int:
    """Where the range ends, which is at most 2^63: up to there nothing overflows in the kernels."""
    stop = checks.not_negative(start, "start") + checks.not_negative(span, "span")
    if stop > 2**63:
        raise ValueError(f"indices can be encoded up to 2^63, not up to {stop}")
    return stop


def _words_for(bits: int) -> int:
    return -(-bits // 64)
