"""Decoding takes at most so much memory for each byte that came: the bound of docs/wire-format.md."""

import tracemalloc

import numpy as np
import pytest

from sparsewire.coding import frame as wire
from sparsewire.coding.call import Envelope
from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import QSGD, HalfFloat, TwoLevels
from sparsewire.errors import WireError
from sparsewire.kernels import memory
from sparsewire.vector import SparseVector

MOST = 128
COUNT, LONG = 40_000, 2**33


def entries(indices, length, start=0):
    return SparseVector(length, indices, np.ones(len(indices))).range(start, length)


# Every form, as full as it can be; the last ones have indices of 8 bytes.
PIECES = {
    "dense": SparseVector.from_dense(np.ones(COUNT)),
    "bitmap": entries(np.arange(COUNT), COUNT),
    "bitmap of u64": entries(np.arange(LONG - COUNT, LONG), LONG, LONG - COUNT),
    "tiles": entries(np.arange(COUNT), 2**22),
    "elias_fano": entries(3 * np.arange(COUNT), LONG),
}
PRECISIONS = [QSGD(2, 2**31), QSGD(2, 1), TwoLevels(2**31), TwoLevels(COUNT // 2 + 1), HalfFloat("float16")]


@pytest.mark.parametrize("precision", [None, *PRECISIONS], ids=str)
@pytest.mark.parametrize("form", PIECES)
def test_memory_is_bounded_by_the_bytes_that_come(monkeypatch, form, precision):
    monkeypatch.setattr(memory, "MAX_KEPT_BYTES", 0)
    piece = PIECES[form] if precision is None else rounded(PIECES[form], precision, (0, 0, 0))
    data = np.frombuffer(b"".join(bytes(b) for b in wire.encode(piece, Envelope())), np.uint8).copy()
    memory._kept.clear()
    tracemalloc.start()
    try:
        wire.decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MOST * len(data)


def test_a_list_has_an_end():
    codes, nothing = wire._Codes(wire.DENSE, 1), (0, 0, 0, 0)
    longest = wire._header(codes, Envelope(), nothing, 0, wire.MOST_PIECES - 1)
    assert wire._Header.parse(longest).following == wire.MOST_PIECES - 1
    with pytest.raises(WireError, match="a list has at most 65,536"):
        wire._Header.parse(wire._header(codes, Envelope(), nothing, 0, wire.MOST_PIECES))


def test_an_abort_has_an_end():
    shape = (2**20 + 8, 0, 2**20 + 8, 2**20 + 8)
    with pytest.raises(WireError, match="an abort message of 1,048,584 bytes"):
        wire._Header.parse(wire._header(wire._Codes(wire.ABORT, 0), Envelope(), shape, 0, wire.SINGLE))
