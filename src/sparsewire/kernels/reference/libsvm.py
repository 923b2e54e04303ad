"""Lines of LIBSVM's text format: what every version of `parse_libsvm` is given, and what it gives."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.reference.arithmetic import quiet

__all__ = ["parse_libsvm"]

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
    """Where rows are stored: labels, numbers of entries, and the entries of all rows one after the other."""

    labels: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    indices: npt.NDArray[Any]
    values: npt.NDArray[Any]


class Parsed(NamedTuple):
    """What is in the room, and where in the text the first malformed line and its wrong word begin, if any.

    Without an entry the largest index is -1 and the smallest is above all others, so that the minimum and the
    maximum over many texts are right.
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


_WORD = re.compile(rb"[^ \t\r]+")
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_QUERY = re.compile(rb"qid:[0-9]+")
_ENTRY = re.compile(rb"([0-9]+):(.*)", re.DOTALL)


def parse_libsvm(
    text: npt.NDArray[np.uint8],
    first: int,
    every: int,
    lowest: int,
    highest: int,
    labels: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    values: npt.NDArray[Any],
) -> Parsed:
    wanted, room = Wanted(first, every, lowest, highest), Room(labels, counts, indices, values)
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


class _MalformedError(Exception):
    def __init__(self, expected: Expected, word: re.Match[bytes]) -> None:
        self.expected, self.position = expected, word.start()


def _read_row(words: list[re.Match[bytes]], wanted: Wanted, parsed: Parsed, room: Room) -> Parsed:
    """Store one more row, and return what has been parsed with it."""
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


@quiet
def _read_number(text: bytes, dtype: np.dtype[Any], wanted: Expected, word: re.Match[bytes]) -> float:
    if _NOT_FINITE.fullmatch(text):
        raise _MalformedError(Expected.FINITE_NUMBER, word)
    if not _NUMBER.fullmatch(text):
        raise _MalformedError(wanted, word)
    number = float(dtype.type(float(text)))
    if abs(number) == float("inf"):
        raise _MalformedError(Expected.SMALLER_NUMBER, word)
    return number
