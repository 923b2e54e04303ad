"""What every version of `parse_libsvm` is given, and what it gives."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST_INDEX", "Expected", "Parsed", "Room", "Wanted"]

LARGEST_INDEX = 2**63 - 1


class Expected(IntEnum):
    """What a malformed line should have had in the place of a word; as in csrc/libsvm.h."""

    NOTHING = 0
    LABEL = 1
    ONE_LABEL = 2
    FINITE_NUMBER = 3
    SMALLER_NUMBER = 4
    QUERY = 5
    ENTRY = 6
    VALUE = 7
    LARGER_INDEX = 8
    INDEX_FROM_LOWEST = 9
    INDEX_UP_TO_HIGHEST = 10


class Wanted(NamedTuple):
    """Lines first, first + every, ... of a text; indices below lowest or above highest are malformed."""

    first: int = 0
    every: int = 1
    lowest: int = 0
    highest: int = LARGEST_INDEX


class Room(NamedTuple):
    """Where rows go: labels, numbers of entries, and all rows' entries one after the other."""

    labels: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    indices: npt.NDArray[Any]
    values: npt.NDArray[Any]


class Parsed(NamedTuple):
    """What is in the room, and where in the text the first malformed line and its wrong word begin, if any.

    Without an entry the largest index is -1 and the smallest above all others: minima and maxima over many
    texts are right without a thought.
    """

    rows: int = 0
    entries: int = 0
    lines: int = 0
    smallest: int = LARGEST_INDEX
    largest: int = -1
    has_query: bool = False
    expected: int = Expected.NOTHING
    line: int = 0
    word: int = 0
