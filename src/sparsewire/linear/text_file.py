"""The text of a file in pieces of whole lines: a range of a plain file, or all of a compressed one.

The first bytes of a file, and not its name, tell whether it is compressed.  A file that is cut off or damaged
raises an InputError, at the latest when its end is read.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sparsewire.errors import InputError, MissingExtraError

__all__ = ["PIECE_BYTES", "Text", "TextFile"]

Text = npt.NDArray[np.uint8]

PIECE_BYTES = 2 << 20  # larger pieces are not faster, and take more memory
LONGEST_LINE = (
    64 << 20
)  # a row of some four million entries; a file without newlines must not fill the memory
COMPRESSED_BYTES = 1 << 14  # that are read at once
# Compressed bytes that zstandard gets at once, because it cannot be told how much to return.  Four bytes can
# become a block of 128 KiB, so this much becomes at most 8 MiB.
ZSTANDARD_BYTES = 1 << 8


@dataclass(frozen=True)
class TextFile:
    """A file that exists and can be read."""

    path: str
    nbytes: int
    compression: Compression | None

    @classmethod
    def at(cls, path: str) -> TextFile:
        with _opened(path) as file:
            nbytes, beginning = os.fstat(file.fileno()).st_size, file.read(LONGEST_MAGIC)
        if nbytes == 0 and path.endswith(tuple(known.suffix for known in COMPRESSIONS)):
            raise InputError(f"{path} is empty, which no compressed file is: was it cut off?")
        compression = next((known for known in COMPRESSIONS if beginning.startswith(known.magic)), None)
        return cls(path, nbytes, compression)

    def lines(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Text]]:
        """The lines that begin in [start, stop), by default all: pieces, and where in the text each begins.

        Every line ends with a newline, also the last one if the file has none there.  A piece is valid until
        the next one is taken.  For a compressed file the start must be 0.
        """
        stop = sys.maxsize if stop is None else stop
        if start >= stop:
            return
        # Reading begins one byte earlier: if that byte is a newline, a line begins at the start.
        offset = max(0, start - 1)
        with self._text(offset) as source:
            for buffer, filled in _whole_lines(source):
                if filled == 0:
                    number, most = self.line_number(offset), LONGEST_LINE >> 20
                    raise InputError(
                        f"{self.path}, line {number}: it has more than {most} MiB, the longest that can be "
                        "read; is this a LIBSVM file, with a row in each line?"
                    )
                begin = buffer.find(b"\n") + 1 if offset < start else 0
                is_last = offset + filled >= stop
                end = buffer.find(b"\n", stop - 1 - offset) + 1 if is_last else filled
                if begin < end:
                    yield offset + begin, np.frombuffer(buffer, np.uint8, end - begin, begin)
                if is_last:
                    break
                offset += filled

    def line_number(self, offset: int) -> int:
        """The number, from 1 on, of the line that begins at this byte of the text."""
        number, buffer = 1, bytearray(PIECE_BYTES)
        with self._text() as source:
            while count := source.readinto(memoryview(buffer)[:offset]):
                number += buffer.count(b"\n", 0, count)
                offset -= count
        return number

    @contextmanager
    def _text(self, offset: int = 0) -> Iterator[_Source]:
        with _opened(self.path) as file:
            if self.compression is not None:
                yield _Decompressed(file, self.path, self.compression)
            else:
                file.seek(offset)
                yield file
            if os.fstat(file.fileno()).st_size != self.nbytes:
                raise InputError(f"{self.path} was written to while it was read")


class _Source(Protocol):
    def readinto(self, room: memoryview, /) -> int:
        """Write bytes into the room; returns how many, which is 0 at the end."""


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path} is not a file")
        with open(path, "rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _whole_lines(source: _Source) -> Iterator[tuple[bytearray, int]]:
    """A buffer and the number of bytes of whole lines at its beginning, until the source ends.

    The number is 0 if a line is longer than ``LONGEST_LINE``; then nothing follows.
    """
    buffer, filled, is_last = bytearray(PIECE_BYTES), 0, False
    while not is_last:
        filled += _fill(source, memoryview(buffer)[filled:-1])
        is_last = filled < len(buffer) - 1
        if is_last and filled > 0 and buffer[filled - 1] != ord("\n"):
            buffer[filled] = ord("\n")  # the last byte of the buffer is kept free for this
            filled += 1
        end = buffer.rfind(b"\n", 0, filled) + 1
        if end > 0:
            yield buffer, end
            buffer[: filled - end] = buffer[end:filled]
            filled -= end
        elif not is_last and len(buffer) >= LONGEST_LINE:
            yield buffer, 0
            return
        elif not is_last:  # the line is longer than the buffer
            buffer = buffer + bytearray(len(buffer))


def _fill(source: _Source, room: memoryview) -> int:
    filled = 0
    while filled < len(room) and (count := source.readinto(room[filled:])) > 0:
        filled += count
    return filled


# ---- compressed files ------------------------------------------------------------------------------


class _Stream(Protocol):
    """One compressed stream, as ``bz2`` and ``lzma`` have it: a few bytes never become many at once."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /, max_length: int) -> bytes: ...


class Compression(NamedTuple):
    """A format, the first bytes of its files, and what makes a decompressor for one stream of a file."""

    name: str
    suffix: str
    magic: bytes
    stream: Callable[[], Any]


class _Gzip:
    """The interface of the others for zlib, which returns the input that it has not used."""

    def __init__(self) -> None:
        import zlib

        self._stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # 16: with gzip's header and check
        self._is_full = False

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._is_full and not self._stream.unconsumed_tail

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        text = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        self._is_full = len(text) == max_length  # zlib may hold more text, although it has used all input
        return text


def _bzip2() -> _Stream:
    import bz2

    return bz2.BZ2Decompressor()


def _xz() -> _Stream:
    import lzma

    return lzma.LZMADecompressor(lzma.FORMAT_XZ)


class _Zstandard:
    """The interface of the others for zstandard, which is given little at once and returns all of it."""

    def __init__(self) -> None:
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError as missing:
            raise MissingExtraError("zstandard is not installed: pip install zstandard") from missing
        self._stream = zstandard.ZstdDecompressor().decompressobj()
        self._waiting = b""

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof)

    @property
    def unused_data(self) -> bytes:
        unused: bytes = self._stream.unused_data + self._waiting
        return unused

    @property
    def needs_input(self) -> bool:
        return len(self._waiting) == 0

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        self._waiting += data
        now, self._waiting = self._waiting[:ZSTANDARD_BYTES], self._waiting[ZSTANDARD_BYTES:]
        text: bytes = self._stream.decompress(now)
        return text


def _zstd() -> _Stream:
    try:
        stream: _Stream = importlib.import_module("compression.zstd").ZstdDecompressor()
    except ImportError:  # before Python 3.14
        stream = _Zstandard()
    return stream


COMPRESSIONS = (
    Compression("gzip", ".gz", b"\x1f\x8b", _Gzip),
    Compression("bzip2", ".bz2", b"BZh", _bzip2),
    Compression("xz", ".xz", b"\xfd7zXZ\0", _xz),
    Compression("zstd", ".zst", b"\x28\xb5\x2f\xfd", _zstd),
)
LONGEST_MAGIC = max(len(known.magic) for known in COMPRESSIONS)


class _Decompressed:
    """The text of a compressed file; several streams one after the other are one text.

    The file objects of the standard library do not serve here: they end without an error before a second
    stream that is damaged, and those of zstandard also where a file was cut off.
    """

    def __init__(self, file: Any, path: str, compression: Compression) -> None:
        self._file, self._path, self._compression = file, path, compression
        self._stream: _Stream = compression.stream()
        self._ready = memoryview(b"")

    def readinto(self, room: memoryview, /) -> int:
        while len(self._ready) == 0:
            compressed = b""
            if self._stream.eof or self._stream.needs_input:
                compressed = self._next_compressed()
                if len(compressed) == 0:
                    return 0
            self._ready = memoryview(self._decompress(compressed))
        count = min(len(room), len(self._ready))
        room[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _next_compressed(self) -> bytes:
        """The next bytes for the stream, or none at the end of the file; begins a new stream if needed."""
        if not self._stream.eof:
            compressed: bytes = self._file.read(COMPRESSED_BYTES)
            if len(compressed) == 0:
                raise InputError(f"{self._path} is cut off: its {self._compression.name} data has no end")
            return compressed
        following: bytes = self._stream.unused_data or self._file.read(COMPRESSED_BYTES)
        while following and not following.strip(b"\0"):  # zeros after a stream are padding
            following = self._file.read(COMPRESSED_BYTES)
        self._stream = self._compression.stream() if following else self._stream
        return following.lstrip(b"\0")

    def _decompress(self, compressed: bytes) -> bytes:
        try:
            return self._stream.decompress(compressed, max_length=PIECE_BYTES)
        except Exception as error:  # every module has its own type
            raise InputError(f"{self._path} is damaged {self._compression.name} data: {error}") from error
