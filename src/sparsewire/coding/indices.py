"""The indices of a piece as bytes, in one of four forms.

    COO          every index as it is: there is nothing to compute
    ELIAS_FANO   the low bits of each index, and the distances of the high ones in unary: within 0.56 bits per
                 index of the information limit for any indices of that density
    BITMAP       a bit for every position: smallest if more than about every fourth position has an entry
    TILES        a bit for every 64 positions, and the bitmap where that bit is set: for entries in clusters,
                 such as the rows of an embedding

The smallest is taken, unless coding would take longer than sending the bytes that it saves.  This is decided
by the *price* of an index: the number of bytes that the link moves while one index is coded and decoded.  The
price is 0 if only bytes count, and more than the bytes of an index if the link is as fast as memory.

P. Elias, JACM 1974; R. Fano, MIT Project MAC memo 61, 1971.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsewire import kernels

__all__ = [
    "BITMAP",
    "COO",
    "ELIAS_FANO",
    "TILES",
    "Form",
    "best_form",
    "best_form_by_count",
    "decode_indices",
    "encode_indices",
    "form_bytes",
]

COO, ELIAS_FANO, BITMAP, TILES = 1, 4, 5, 6  # as the wire format numbers them
TILE = 64  # positions: the bits of a word
# A call of the kernels from Python takes as long as coding so many indices.
CALL_INDICES = 4096

Indices = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]


class Form(NamedTuple):
    """How indices are written, and how many bytes that takes."""

    code: int
    nbytes: int
    tiles: int = 0  # the number of tiles that are not empty, if the code is TILES


def best_form(indices: Indices, start: int, stop: int, price: float = 0.0) -> Form:
    """The form in which to write these indices, which lie in [start, stop).

    >>> best_form(np.arange(0, 64_000, 100, dtype=np.uint32), 0, 64_000)
    Form(code=4, nbytes=688, tiles=0)
    >>> best_form(np.arange(640, dtype=np.uint32), 0, 64_000)
    Form(code=6, nbytes=208, tiles=10)
    """
    count, span, itemsize = len(indices), stop - start, indices.itemsize
    best = best_form_by_count(count, span, itemsize, price)
    fewest = form_bytes(TILES, count, span, itemsize, tiles=-(-count // TILE))
    if _pays(fewest, count, itemsize, price) and fewest < best.nbytes:
        tiles = kernels.count_tiles(indices, start)
        tiled = form_bytes(TILES, count, span, itemsize, tiles)
        if tiled < best.nbytes and _pays(tiled, count, itemsize, price):
            return Form(TILES, tiled, tiles)
    return best


def best_form_by_count(count: int, span: int, itemsize: int, price: float = 0.0) -> Form:
    """The form of indices of which only the number is known; tiles are not considered."""
    if _pays(0, count, itemsize, price):  # otherwise no code is small enough
        sizes = {code: form_bytes(code, count, span, itemsize) for code in (ELIAS_FANO, BITMAP)}
        code = min(sizes, key=sizes.__getitem__)
        if _pays(sizes[code], count, itemsize, price):
            return Form(code, sizes[code])
    return Form(COO, -(-count * itemsize // 8) * 8)


def form_bytes(code: int, count: int, span: int, itemsize: int, tiles: int = 0) -> int:
    """Bytes of indices in a form, without the padding that plain indices may need behind them."""
    if code == ELIAS_FANO:
        return 8 * kernels.elias_fano_words(count, span)
    if code == BITMAP:
        return 8 * -(-span // 64)
    if code == TILES:
        return 8 * (-(-span // TILE**2) + tiles)
    return count * itemsize


def encode_indices(indices: Indices, start: int, stop: int, form: Form) -> Indices:
    """The indices in this form, as an array."""
    if form.code == ELIAS_FANO:
        return kernels.encode_elias_fano(indices, start, stop - start)
    if form.code == BITMAP:
        return kernels.encode_bitmap(indices, start, stop - start)
    if form.code == TILES:
        return kernels.encode_tiles(indices, start, stop - start, form.tiles)
    return indices


def decode_indices(
    code: int, words: Words, count: int, start: int, stop: int, dtype: np.dtype[Any]
) -> Indices | None:
    """The indices that were encoded; None if the words do not code ``count`` indices in [start, stop)."""
    decoders = {
        ELIAS_FANO: kernels.decode_elias_fano,
        BITMAP: kernels.decode_bitmap,
        TILES: kernels.decode_tiles,
    }
    return decoders[code](words, count, start, stop - start, dtype)


def _pays(coded: int, count: int, itemsize: int, price: float) -> bool:
    """Is coding to ``coded`` bytes faster than sending the indices as they are?"""
    return count * itemsize - coded > price * (count + CALL_INDICES)
