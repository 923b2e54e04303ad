"""Increasing indices as few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.checks import Indices, Words

__all__ = [
    "count_tiles",
    "decode_bitmap",
    "decode_elias_fano",
    "decode_tiles",
    "encode_bitmap",
    "encode_elias_fano",
    "encode_tiles",
]


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
