"""Whether data is what it should be."""

from __future__ import annotations

import math
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
    """The words are cut into runs of equal length, of which each CRC is computed by itself, all in step."""
    content = data.tobytes()
    steps = math.isqrt(len(content) // 8)
    lanes = len(content) // 8 // max(1, steps)
    words = np.frombuffer(content, "<u8", lanes * steps).reshape(lanes, steps)
    runs = np.zeros(lanes, np.uint64)
    for step in range(steps):
        runs = _after_words(runs ^ words[:, step])
    state, behind = seed ^ ALL_ONES, _power_of_x(64 * steps)
    for run in runs.tolist():
        state = _product(state, behind) ^ run
    for byte in content[words.nbytes :]:
        state = state >> 8 ^ int(TABLES[0, (state ^ byte) & 255])
    return state ^ ALL_ONES


def _times_x(word: int) -> int:
    return word >> 1 ^ (POLYNOMIAL if word & 1 else 0)


def _product(a: int, b: int) -> int:
    """Of two remainders.  Bit i of a word stands for x^(63 - i)."""
    product = 0
    for place in range(63, -1, -1):
        if b >> place & 1:
            product ^= a
        a = _times_x(a)
    return product


def _power_of_x(exponent: int) -> int:
    power, square = 1 << 63, 1 << 62
    while exponent:
        if exponent & 1:
            power = _product(power, square)
        square, exponent = _product(square, square), exponent >> 1
    return power


def _make_tables() -> npt.NDArray[np.uint64]:
    """Row t: the remainder of each byte with t bytes behind it."""
    rows = [[0] * 256]
    for byte in range(256):
        word = byte
        for _ in range(8):
            word = _times_x(word)
        rows[0][byte] = word
    for _ in range(7):
        rows.append([word >> 8 ^ rows[0][word & 255] for word in rows[-1]])
    return np.array(rows, np.uint64)


def _after_words(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    remainders = np.zeros(len(words), np.uint64)
    for place in range(8):
        remainders ^= TABLES[7 - place].take((words >> np.uint64(8 * place)) & np.uint64(255))
    return remainders


POLYNOMIAL, ALL_ONES = 0x9A6C9329AC4BC9B5, 2**64 - 1
TABLES = _make_tables()
