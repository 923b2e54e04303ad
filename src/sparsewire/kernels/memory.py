"""Large arrays whose memory is kept for the next one.

The operating system clears each page that it gives to a process, when the page is first touched.  For arrays
that live for one collective this can take longer than merging them.  So the memory of a large array is not
given back when the array is deleted, but used for the next array of its size.

Memory that nobody asks for is given back after some seconds.  Otherwise a process would keep, of every size,
as many blocks as were ever in use at once, and would grow with each such record.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["empty", "empty_entries", "used", "used_entries"]

SMALL_BYTES = 1 << 16  # below this the C library keeps the memory itself
SMALL_COUNT = SMALL_BYTES // 8  # so many values of the largest dtype are small
MAX_KEPT_BYTES = 1 << 28  # at most this much waits for reuse
IDLE_S = 10.0  # and at most about this long, which is more than a step of most programs

_Entries = tuple[npt.NDArray[Any], npt.NDArray[Any]]

# Bytes -> blocks of that size and since when each is idle.  The last one is taken first, so the first one is
# idle for longest.
_kept: defaultdict[int, deque[tuple[float, npt.NDArray[np.uint8]]]] = defaultdict(deque)
_kept_bytes = 0
_next_tidy = 0.0


def empty(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like ``np.empty``; the memory returns here when the array and all its views are gone.

    >>> empty(3, "int32").shape
    (3,)
    """
    if count < SMALL_COUNT:
        return np.empty(count, dtype)
    kind = np.dtype(dtype)
    nbytes = count * kind.itemsize
    if nbytes < SMALL_BYTES:
        return np.empty(count, kind)
    return np.asarray(_Lease(_size_class(nbytes)))[:nbytes].view(kind)


def used(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """The first ``count`` of an array; a copy if most of it is unused, so that its memory can be used again.

    >>> used(np.arange(4), 3).base is None, used(np.arange(4), 1).base is None
    (False, True)
    """
    if count == len(array):
        return array
    if 2 * count >= len(array):
        return array[:count]
    copy = empty(count, array.dtype)
    copy[:] = array[:count]
    return copy


def empty_entries(count: int, index_dtype: npt.DTypeLike, dtype: npt.DTypeLike) -> _Entries:
    """Room for so many entries."""
    return empty(count, index_dtype), empty(count, dtype)


def used_entries(room: _Entries, count: int) -> _Entries:
    """The first ``count`` entries of a room, as by `used`."""
    return used(room[0], count), used(room[1], count)


def _size_class(nbytes: int) -> int:
    """The next larger of 4, 5, 6 or 7 times a power of two: at most a fourth of the memory is unused."""
    step = 1 << max(0, nbytes.bit_length() - 3)
    return -(-nbytes // step) * step


class _Lease:
    """Owns a block of memory until the last array over it is deleted."""

    def __init__(self, nbytes: int) -> None:
        global _kept_bytes
        try:  # Not "if there is one": another thread may take it in between.
            _, self._block = _kept[nbytes].pop()
            _kept_bytes -= nbytes
        except IndexError:
            self._block = np.empty(nbytes, np.uint8)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._block.__array_interface__

    def __del__(self) -> None:
        global _kept_bytes
        block = getattr(self, "_block", None)  # there is none if allocation failed
        if block is not None and _kept_bytes + block.nbytes <= MAX_KEPT_BYTES:
            now = time.monotonic()
            _kept[block.nbytes].append((now, block))
            _kept_bytes += block.nbytes
            if now > _next_tidy:
                _give_back(now)


def _give_back(now: float) -> None:
    """Let go of blocks that are idle for too long."""
    global _kept_bytes, _next_tidy
    _next_tidy = now + IDLE_S / 4
    for nbytes, blocks in [*_kept.items()]:
        with suppress(IndexError):  # there is none, or another thread has taken the last one
            while (longest := blocks.popleft())[0] <= now - IDLE_S:
                _kept_bytes -= nbytes
            blocks.appendleft(longest)
