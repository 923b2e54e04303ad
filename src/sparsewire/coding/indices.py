"""The support of a piece, which is the set of its indices, as bytes.

    COO          every index as it is: nothing to compute
    ELIAS_FANO   the low bits of each index, and the distances of the high ones in unary: within 0.56 bits per
                 index of the information limit for any support of that density
    BITMAP       a bit for every position: smallest from about every fourth position on
    TILES        a bit for every 64 positions, and the bitmap where that bit is set: for entries in clusters,
                 such as the rows of an embedding

The smallest is taken, unless coding would take longer than sending the bytes that it saves.  The unit for
this is the *price* of an index: as many bytes as the link moves while one index is coded and decoded.  It is
0 where only bytes count, and more than an index has where the link is as fast as memory.

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
    "decode",
    "encode",
    "form",
    "form_by_formula",
    "nbytes",
]

COO, ELIAS_FANO, BITMAP, TILES = 1, 4, 5, 6  # as the wire format numbers them
TILE = 64  # positions: the bits of a word
# From Python, a call of the kernels takes as long as so many indices.
CALL_INDICES = 4096

Indices = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]


class Form(NamedTuple):
    """How a support is written, and how many bytes that takes."""

    code: int
    nbytes: int
    tiles: int = 0  # those that are not empty, if it is written in tiles


def form(indices: Indices, start: int, stop: int, price: float = 0.0) -> Form:
    """The form in which to write these indices, which lie in [start, stop).

    >>> form(np.arange(0, 64_000, 100, dtype=np.uint32), 0, 64_000)
    Form(code=4, nbytes=688, tiles=0)
    >>> form(np.arange(640, dtype=np.uint32), 0, 64_000)
    Form(code=6, nbytes=208, tiles=10)
    """
    count, span, itemsize = len(indices), stop - start, indices.itemsize
    best = form_by_formula(count, span, itemsize, price)
    fewest = nbytes(TILES, count, span, itemsize, tiles=-(-count // TILE))
    if _pays(fewest, count, itemsize, price) and fewest < best.nbytes:
        tiles = kernels.count_tiles(indices, start)
        tiled = nbytes(TILES, count, span, itemsize, tiles)
        if tiled < best.nbytes and _pays(tiled, count, itemsize, price):
            return Form(TILES, tiled, tiles)
    return best


def form_by_formula(count: int, span: int, itemsize: int, price: float = 0.0) -> Form:
    """The form of a support of which only the number of indices is known; tiles are not considered."""
    if _pays(0, count, itemsize, price):  # or else no code is small enough
        sizes = {code: nbytes(code, count, span, itemsize) for code in (ELIAS_FANO, BITMAP)}
        code = min(sizes, key=sizes.__getitem__)
        if _pays(sizes[code], count, itemsize, price):
            return Form(code, sizes[code])
    return Form(COO, -(-count * itemsize // 8) * 8)


def nbytes(code: int, count: int, span: int, itemsize: int, tiles: int = 0) -> int:
    """Bytes of a support in a form; plain indices may need padding behind them."""
    if code == ELIAS_FANO:
        return 8 * kernels.elias_fano_words(count, span)
    if code == BITMAP:
        return 8 * -(-span // 64)
    if code == TILES:
        return 8 * (-(-span // TILE**2) + tiles)
    return count * itemsize


def encode(indices: Indices, start: int, stop: int, form: Form) -> Indices:
    """The support in this form, as an array."""
    if form.code == ELIAS_FANO:
        return kernels.encode_elias_fano(indices, start, stop - start)
    if form.code == BITMAP:
        return kernels.encode_bitmap(indices, start, stop - start)
    if form.code == TILES:
        return kernels.encode_tiles(indices, start, stop - start, form.tiles)
    return indices


def decode(
    code: int,
    words: Words,
    count: int,
    start: int,
    stop: int,
    dtype: np.dtype[Any],
    out: Indices | None = None,
) -> Indices | None:
    """The indices that were encoded, in ``out`` or in a new array; None if the words code no such indices."""
    decoders = {
        ELIAS_FANO: kernels.decode_elias_fano,
        BITMAP: kernels.decode_bitmap,
        TILES: kernels.decode_tiles,
    }
    return decoders[code](words, count, start, stop - start, dtype, out)


def _pays(coded: int, count: int, itemsize: int, price: float) -> bool:
    """Is coding to so many bytes faster than sending the indices as they are?"""
    return count * itemsize - coded > price * (count + CALL_INDICES)
