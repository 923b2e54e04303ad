"""Whether data is what it should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.checks import Indices

__all__ = [
    "checksum",
    "first_invalid",
]


def first_invalid(indices: Indices, first: int, last: int) -> int:
    bad = (indices < first) | (indices > last)
    bad[1:] |= indices[1:] <= indices[:-1]
    return int(bad.argmax()) if bad.any() else -1


def checksum(data: npt.NDArray[Any], seed: int) -> int:
    """Eight lanes of Fletcher sums over 64-bit words: per word a += w, b += a, modulo 2^64."""
    rows = -(-data.nbytes // 64)
    words = np.frombuffer(data.tobytes().ljust(64 * rows, b"\0"), "<u8").reshape(rows, 8)
    a = words.sum(axis=0, dtype=np.uint64)
    b = (words * np.arange(rows, 0, -1, dtype=np.uint64)[:, None]).sum(axis=0, dtype=np.uint64)
    folded = seed ^ data.nbytes
    for lane_sum in [*a.tolist(), *b.tolist()]:
        # The odd constant is 2^64 / golden ratio; the shift lets high bits reach the low ones.
        folded = (folded ^ lane_sum) * 0x9E3779B97F4A7C15 % 2**64
        folded ^= folded >> 32
    return folded
