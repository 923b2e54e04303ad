"""Files in LIBSVM's text format: ``label [qid:N] index:value index:value ... [# comment]``, one row a line.

Every rank of a group reads a share of one file.  Of a plain file of B bytes, rank r of P takes the lines that
begin in [B * r // P, B * (r + 1) // P), and reads only those.  A compressed file can only be decompressed as
a whole: every rank does so, and takes the lines r, r + P, r + 2 P, ..., counted from 0.  In both cases
each row is on exactly one rank, and a rank's rows are in the order of the file.

The text goes through a buffer of 2 MiB, or of the longest line if that is longer; that may be up to 64 MiB.
Memory holds this buffer, the rows parsed from it, and the share itself once.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from sparsewire import kernels
from sparsewire.communicator import Communicator
from sparsewire.communicator.agreement import check_alike, gather, refused_by_all
from sparsewire.errors import InputError
from sparsewire.kernels.libsvm import LARGEST_INDEX, Expected, Parsed, Room, Wanted
from sparsewire.linear.text_file import PIECE_BYTES, Text, TextFile

__all__ = ["Loaded", "load_libsvm", "read_libsvm"]

Array = npt.NDArray[Any]

WIDENED_AT_ONCE = 1 << 20  # numbers that become int64 in one step
RESERVED = 1.05  # times what a share needs if all of it is like its first piece
LARGEST_INT32 = 2**31 - 1
SHOWN = 40  # characters of a word that an error quotes

_EXPECTATIONS = {
    Expected.LABEL: "a number as label",
    Expected.ONE_LABEL: "one label (several of a row are not supported)",
    Expected.FINITE_NUMBER: "a finite number",
    Expected.SMALLER_NUMBER: "a number that its type can hold (float32 up to 3.4e38, float64 up to 1.7e308)",
    Expected.QUERY: "a whole number after qid:",
    Expected.ENTRY: "index:value, the index a whole number",
    Expected.VALUE: "a number after the colon",
    Expected.LARGER_INDEX: "an index above the one before it",
    Expected.INDEX_FROM_LOWEST: "an index from 1 on (zero_based is False)",
    Expected.INDEX_UP_TO_HIGHEST: "an index up to {highest} ({limit})",
}


class Loaded(NamedTuple):
    """Rows and labels, and whether indices count from 0: a test file is read as its training file was."""

    rows: csr_array
    labels: npt.NDArray[np.float64]
    zero_based: bool


def load_libsvm(
    path: str | os.PathLike[str],
    *,
    features: int | None = None,
    zero_based: bool | str = "auto",
    dtype: npt.DTypeLike = np.float32,
    comm: Communicator | None = None,
) -> tuple[csr_array, npt.NDArray[np.float64]]:
    """The rows and labels of a file; with a communicator, this rank's share, and all ranks call it.

    Files may be compressed by gzip, bzip2, xz or zstd.  ``features`` is the number of columns, by default
    as many as the largest index of the file needs.  Indices count from 0 if ``zero_based``, else from 1;
    with "auto" they count from 0 if index 0 occurs anywhere.  "auto" is wrong for a file that counts from 0
    and has nothing in its first column.  To read a training file and a test file alike, give ``zero_based``
    and ``features``.

    A malformed line is an InputError with file and line number on every rank, and nothing is loaded.  A qid
    is ignored, with a warning.  Values are rounded to ``dtype``, float32 or float64 (to float32 by way of
    float64); zeros in the file stay entries.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"+1 1:0.5 3:2  # a comment\\n-1 2:1\\n")
    ...     file.flush()
    ...     rows, labels = load_libsvm(file.name)
    >>> rows.toarray(), labels
    (array([[0.5, 0. , 2. ],
           [0. , 1. , 0. ]], dtype=float32), array([ 1., -1.]))
    """
    loaded = read_libsvm(path, ReadOptions(features, zero_based, dtype), comm)
    return loaded.rows, loaded.labels


class ReadOptions(NamedTuple):
    """The options of ``load_libsvm``, as the caller gave them."""

    features: int | None
    zero_based: bool | str
    dtype: npt.DTypeLike


def read_libsvm(path: str | os.PathLike[str], given: ReadOptions, comm: Communicator | None = None) -> Loaded:
    """What ``load_libsvm`` returns, and whether indices count from 0."""
    with refused_by_all(comm):
        options = _Options.of(given)
        file = TextFile.at(os.fsdecode(path))
        share = _Share.of(file, comm)
        shard = _Shard(options.dtype, share.nbytes)
        for room, parsed, nbytes in _parse(file, share, options):
            shard.append(room, parsed, nbytes)
    facts = _agree(file, shard, options, comm)
    if facts.has_query and (comm is None or comm.rank == 0):
        warnings.warn(f"{file.path} has qid: fields, which are ignored", UserWarning, stacklevel=3)
    is_zero_based = facts.is_zero_based(options)
    first = 0 if is_zero_based else 1
    columns = max(0, facts.largest + 1 - first)
    if options.features is not None:
        if columns > options.features:
            _refuse_column(file, share, options, comm)
        columns = options.features
    arrays, labels = shard.take(first, columns)
    return Loaded(csr_array(arrays, shape=(len(labels), columns)), labels, is_zero_based)


# ---- options, and what all ranks found ----------------------------------------------------------


@dataclass(frozen=True)
class _Options:
    """``ReadOptions`` that were checked."""

    features: int | None
    zero_based: bool | str
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, given: ReadOptions) -> _Options:
        features, zero_based, dtype = given
        if zero_based not in (True, False, "auto"):
            raise InputError(f"zero_based is {zero_based!r}; it must be True, False or 'auto'")
        if features is not None and (
            not isinstance(features, int | np.integer) or not 1 <= features <= LARGEST_INDEX
        ):
            raise InputError(
                f"features is {features!r}; it must be the number of columns, at least 1, or None"
            )
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise InputError(f"dtype is {np.dtype(dtype)}; values are float32 or float64")
        is_auto = zero_based == "auto"
        columns = None if features is None else int(features)
        return cls(columns, "auto" if is_auto else bool(zero_based), np.dtype(dtype))

    @property
    def wanted(self) -> Wanted:
        """The indices that may occur, as far as that is known before all ranks have read their shares."""
        lowest = 1 if self.zero_based is False else 0
        if self.features is None:
            return Wanted(
                lowest=lowest, highest=LARGEST_INDEX - 1
            )  # then the number of columns is an index too
        return Wanted(lowest=lowest, highest=self.features - 1 if self.zero_based is True else self.features)

    @property
    def limit(self) -> str:
        """The reason for the highest index, for an error."""
        if self.features is None:
            return "more are not supported"
        counted = "" if self.zero_based == "auto" else f" and indices count from {self.wanted.lowest}"
        return f"features is {self.features}{counted}"

    def by_name(self) -> dict[str, Any]:
        return {"features": self.features, "zero_based": self.zero_based, "dtype": self.dtype.name}


class _Facts(NamedTuple):
    """What all ranks together found in the file."""

    smallest: int
    largest: int
    has_query: bool

    def is_zero_based(self, options: _Options) -> bool:
        return self.smallest == 0 if options.zero_based == "auto" else bool(options.zero_based)


def _agree(file: TextFile, shard: _Shard, options: _Options, comm: Communicator | None) -> _Facts:
    mine: dict[str, Any] = {
        "found": [shard.smallest, shard.largest, shard.has_query],
        "given": {"file's size in bytes": file.nbytes, **options.by_name()},
    }
    everybody = [mine] if comm is None else gather(comm, mine)
    check_alike([said["given"] for said in everybody])
    smallest, largest, has_query = zip(*(said["found"] for said in everybody), strict=True)
    return _Facts(min(smallest), max(largest), any(has_query))


def _refuse_column(file: TextFile, share: _Share, options: _Options, comm: Communicator | None) -> None:
    """Raise an error with the line of an index that is too large.

    This happens when an index equals ``features`` and another rank has found that indices count from 0.
    """
    with refused_by_all(comm):
        for _ in _parse(file, share, replace(options, zero_based=True)):
            pass
    assert comm is not None  # a process that is alone has raised above
    comm.barrier()  # raises the error of the rank that has this line


# ---- the share of a rank --------------------------------------------------------------------------


class _Share(NamedTuple):
    """The lines that begin in [start, stop), and of these the lines first, first + every, ..."""

    start: int
    stop: int | None
    first: int
    every: int

    @property
    def nbytes(self) -> int | None:
        return None if self.stop is None else self.stop - self.start

    @classmethod
    def of(cls, file: TextFile, comm: Communicator | None) -> _Share:
        rank, size = (comm.rank, comm.size) if comm is not None else (0, 1)
        if file.compression is not None:
            return cls(0, None, rank, size)
        return cls(file.nbytes * rank // size, file.nbytes * (rank + 1) // size, 0, 1)


class _Column:
    """An array to which numbers are appended; it grows in place."""

    def __init__(self, numbers: Array) -> None:
        self._array, self._used = numbers, len(numbers)

    def reserve(self, count: float) -> None:
        """Make room for so many more.  The room takes no memory before it is used, and has large pages."""
        numbers = self._array[: self._used]
        self._array = np.empty(self._used + int(count), numbers.dtype)
        self._array[: self._used] = numbers

    def append(self, more: Array) -> None:
        stop = self._used + len(more)
        if stop > len(self._array):
            self._array.resize(stop, refcheck=False)
        self._array[self._used : stop] = more
        self._used = stop

    def widen(self) -> None:
        """Make the numbers int64.  The narrow array gives back memory while the wide one is filled."""
        if self.dtype == np.int64:
            return
        narrow = self.take()
        wide = np.empty(len(narrow), np.int64)
        while len(narrow) > 0:
            start = max(0, len(narrow) - WIDENED_AT_ONCE)
            wide[start : len(narrow)] = narrow[start:]
            narrow.resize(start, refcheck=False)
        self._array = wide

    def take(self) -> Array:
        """The array, without room for more."""
        self._array.resize(self._used, refcheck=False)
        return self._array

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    def __len__(self) -> int:
        return self._used


class _Shard:
    """The rows of a rank that have been read so far."""

    def __init__(self, dtype: np.dtype[Any], nbytes: int | None) -> None:
        self.smallest, self.largest, self.has_query = LARGEST_INDEX, -1, False
        self._nbytes = nbytes  # of the text of all rows of the rank, if that is known
        self._labels = _Column(np.empty(0, np.float64))
        self._counts = _Column(np.zeros(1, np.int32))  # a zero, then the entries of each row
        self._indices = _Column(np.empty(0, np.int32))
        self._values = _Column(np.empty(0, dtype))

    def append(self, room: Room, parsed: Parsed, nbytes: int) -> None:
        """Add what was parsed from so many bytes."""
        if room.indices.dtype != self._indices.dtype:
            self._indices.widen()
        more = (
            (self._labels, room.labels[: parsed.rows]),
            (self._counts, room.counts[: parsed.rows]),
            (self._indices, room.indices[: parsed.entries]),
            (self._values, room.values[: parsed.entries]),
        )
        is_first = len(self._labels) == 0
        for column, numbers in more:
            if is_first and self._nbytes is not None:
                column.reserve(RESERVED * len(numbers) * self._nbytes / nbytes)
            column.append(numbers)
        self.smallest, self.largest = min(self.smallest, parsed.smallest), max(self.largest, parsed.largest)
        self.has_query |= parsed.has_query

    def take(self, first: int, columns: int) -> tuple[tuple[Array, Array, Array], Array]:
        """Values, indices counted from 0, and where rows begin; and the labels.  ``first`` is the base."""
        if max(columns, len(self._labels), len(self._indices)) > LARGEST_INT32:  # scipy's rule
            self._counts.widen()
            self._indices.widen()
        indices, counts = self._indices.take(), self._counts.take()
        indices -= indices.dtype.type(first)
        begins = np.cumsum(counts, dtype=counts.dtype, out=counts)
        return (self._values.take(), indices, begins), self._labels.take()


def _parse(file: TextFile, share: _Share, options: _Options) -> Iterator[tuple[Room, Parsed, int]]:
    """The rows of the share, piece by piece, and the bytes of each piece.

    The next piece uses the same room, so copy what you need before.
    """
    wanted = options.wanted._replace(first=share.first, every=share.every)
    dtype, nbytes = options.dtype, PIECE_BYTES
    room = kernels.libsvm_room(nbytes, np.int32, dtype)
    for offset, text in file.lines(share.start, share.stop):
        if len(text) > nbytes:
            nbytes = len(text)
            room = kernels.libsvm_room(nbytes, room.indices.dtype, dtype)
        parsed = kernels.parse_libsvm(text, room, wanted)
        is_narrow = room.indices.dtype == np.int32 and wanted.highest > LARGEST_INT32
        if parsed.expected == Expected.INDEX_UP_TO_HIGHEST and is_narrow:
            room = kernels.libsvm_room(nbytes, np.int64, dtype)
            parsed = kernels.parse_libsvm(text, room, wanted)
        if parsed.expected != Expected.NOTHING:
            line = file.line_number(offset + parsed.line)
            raise InputError(f"{file.path}, line {line}: {_complaint(text, parsed, options)}")
        yield room, parsed, len(text)
        wanted = wanted._replace(first=(wanted.first - parsed.lines) % wanted.every)


def _complaint(text: Text, parsed: Parsed, options: _Options) -> str:
    beginning = text[parsed.word : parsed.word + 4 * SHOWN].tobytes()
    word = re.split(rb"[ \t\r\n#]", beginning, maxsplit=1)[0].decode(errors="replace")
    shown = word if len(word) <= SHOWN else f"{word[:SHOWN]}..."
    expected = _EXPECTATIONS[Expected(parsed.expected)].format(
        highest=options.wanted.highest, limit=options.limit
    )
    return f"expected {expected}, got {shown!r}"
