"""Pieces as bytes and back: wire format, version 3.

A message is one frame per piece.  A frame is a fixed header, then (little-endian, 8-byte aligned) the
indices and the values, or the values alone if the piece is dense.  Indices are written in the form that
``coding.indices`` finds best, and rounded values as the bytes that they were rounded to: both are restored to
the bit.  ``docs/wire-format.md`` describes every byte.

Encoding gives a list of buffers for a gather write; arrays that are sent as they are, are not copied.
``read_message`` yields the buffers that are to be filled, so a driver receives into the memory of the result.

>>> import numpy as np
>>> buffers = encode(SparseVector(8, [1, 5], np.ones(2)), Envelope())
>>> decode(b"".join(buffers))[1]
SparseVector(length=8, nnz=2, float64)

Every field is checked before it is used, and everything is decoded when it arrives: any bytes decode to a
message, whose vectors are valid, or raise ``WireError``.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Generator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparsewire import kernels
from sparsewire.coding.call import DTYPE_NAMES, WORD, Abort, Envelope
from sparsewire.coding.indices import (
    BITMAP,
    COO,
    ELIAS_FANO,
    TILES,
    Form,
    best_form,
    decode_indices,
    encode_indices,
    form_bytes,
)
from sparsewire.coding.values import PRECISIONS, QSGD, Precision, TwoLevels
from sparsewire.errors import SparsewireError, WireError
from sparsewire.kernels import memory
from sparsewire.vector import Array, Packed, SparseVector, index_dtype, value_dtype

__all__ = [
    "HEADER_BYTES",
    "CodedPiece",
    "Message",
    "Payload",
    "blame",
    "decode",
    "encode",
    "read_message",
    "size",
]

MAGIC = b"SPWR"
VERSION = 3
DENSE, ABORT = 2, 3  # formats without indices; the others are the forms of ``coding.indices``
# By number; a frame may have one more than a call, because nobody asks for two levels by name.
FRAME_PRECISIONS: tuple[Precision | None, ...] = (None, *PRECISIONS.values(), TwoLevels())
_PRECISION_CODES = {precision.name: code for code, precision in enumerate(FRAME_PRECISIONS) if precision}
MOST_PIECES = 2**16  # of a list: more than any script needs, and few enough to count on their end
LONGEST_ABORT = 2**20  # bytes of its text
SINGLE = 2**32 - 1  # in place of the number of frames to come: the payload is one piece, not a list

# magic, version, format, dtype, precision | collective number | the call's fingerprint
# | length, start, stop, nnz | checksum of what follows the header | tiles, bucket, frames still to come
# | CRC-32 of the rest
_HEADER = struct.Struct("<4sBBBB Q 40s QQQQ Q III")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size

Payload: TypeAlias = "SparseVector | list[SparseVector] | Abort"


class Message(NamedTuple):
    """A payload, and the collective that it belongs to."""

    envelope: Envelope
    payload: Payload
    nbytes: int  # of all its frames


def size(payload: Payload, price: float = 0.0) -> int:
    """Exactly how many bytes ``encode`` makes of it."""
    if isinstance(payload, Abort):
        return HEADER_BYTES + len(payload.to_json())
    if isinstance(payload, list):
        return sum(size(piece, price) for piece in payload)
    if payload.coded is not None:
        return HEADER_BYTES + sum(_round_up(part.nbytes) for part in payload.coded.parts)
    indices = 0
    if payload.indices is not None:
        indices = best_form(payload.indices, payload.start, payload.stop, price).nbytes
    values = payload.values if payload.packed is None else payload.packed.data
    return HEADER_BYTES + indices + _round_up(values.nbytes)


def encode(payload: Payload, envelope: Envelope, price: float = 0.0) -> list[Any]:
    """The message as buffers to be written one after the other.

    ``price`` is how many bytes coding an index has to save; see ``coding.indices``.
    """
    if isinstance(payload, SparseVector):
        return _frame(payload, SINGLE, envelope, price)
    if isinstance(payload, Abort):
        text = np.frombuffer(payload.to_json(), np.uint8)
        shape = (len(text), 0, len(text), len(text))
        return [_header(_Codes(ABORT, 0), envelope, shape, kernels.checksum(text), SINGLE), text.data]
    if not payload:
        raise ValueError("a list without pieces cannot be sent; send an empty vector instead")
    buffers: list[Any] = []
    for following, piece in zip(reversed(range(len(payload))), payload, strict=True):
        buffers += _frame(piece, following, envelope, price)
    return buffers


class _Codes(NamedTuple):
    """How a frame's indices and values are written, in the numbers of the header."""

    form: int
    dtype: int
    precision: int = 0
    tiles: int = 0
    bucket: int = 0


class CodedPiece(NamedTuple):
    """The indices and values of a piece as the bytes of a frame: whoever forwards it sends the same."""

    codes: _Codes
    parts: tuple[Array, ...]  # the index part, if the piece is not dense, and the value part
    checksum: int


def _frame(piece: SparseVector, following: int, envelope: Envelope, price: float) -> list[Any]:
    coded: CodedPiece = piece.coded or _code(piece, price)
    shape = (piece.length, piece.start, piece.stop, piece.nnz)
    buffers: list[Any] = [_header(coded.codes, envelope, shape, coded.checksum, following)]
    for part in coded.parts:
        nbytes = part.nbytes
        if nbytes:
            buffers.append(part.view(np.uint8).data)
        if nbytes % WORD:
            buffers.append(bytes(-nbytes % WORD))
    return buffers


def _code(piece: SparseVector, price: float) -> CodedPiece:
    form, parts, checksum = Form(DENSE, 0), [], 0
    if piece.indices is not None:
        form = best_form(piece.indices, piece.start, piece.stop, price)
        parts.append(encode_indices(piece.indices, piece.start, piece.stop, form))
        checksum = kernels.checksum(parts[0])
    values, precision, bucket = piece.values, 0, 0
    if piece.packed is not None:
        values, packing = piece.packed.data, piece.packed.precision
        precision = _PRECISION_CODES[packing.name]
        bucket = packing.bucket if isinstance(packing, QSGD | TwoLevels) else 0
    codes = _Codes(form.code, _dtype_code(piece.dtype), precision, form.tiles, bucket)
    return CodedPiece(codes, (*parts, values), kernels.checksum(values, checksum))


@functools.cache  # numpy takes microseconds to make the name of a dtype
def _dtype_code(dtype: np.dtype[Any]) -> int:
    return DTYPE_NAMES.index(dtype.name)


@functools.cache
def _dtype(code: int) -> np.dtype[Any]:
    """The dtype of a frame's values; of the bytes of the text, if it is an abort."""
    return value_dtype(DTYPE_NAMES[code]) if code else np.dtype(np.uint8)


def _header(
    codes: _Codes, envelope: Envelope, shape: tuple[int, int, int, int], checksum: int, following: int
) -> bytes:
    written = codes.form, codes.dtype, codes.precision
    rest = checksum, codes.tiles, codes.bucket, following
    fields = _HEADER.pack(MAGIC, VERSION, *written, *envelope, *shape, *rest)
    return fields + _CRC.pack(zlib.crc32(fields))


def decode(data: Any) -> Message:
    """The one message that a buffer holds.

    Arrays that were sent as they are, are views of the buffer, if it is aligned.
    """
    source = np.frombuffer(data, np.uint8)
    if source.__array_interface__["data"][0] % 8:
        source = source.copy()
    reader, at = _Reader(), 0
    while not reader.done:
        frame = reader.header(source[at : at + HEADER_BYTES].tobytes())
        at += HEADER_BYTES + frame.payload_bytes
        if at > len(source):
            raise WireError(f"the message ends {at - len(source)} bytes early")
        reader.payload(source[at - frame.payload_bytes : at])
    if at < len(source):
        raise WireError(f"{len(source) - at} bytes follow the message")
    return reader.message()


def blame(rank: int | None, error: Exception) -> SparsewireError:
    """The error of all ranks for bytes of this one that could not be decoded, or that make no sense."""
    if isinstance(error, SparsewireError):
        return type(error)(f"from rank {rank}: {error}")
    made = WireError(f"from rank {rank}: a message that led to {type(error).__name__}: {error}")
    made.__cause__ = error
    return made


def read_message() -> Generator[memoryview, None, Message]:
    """Yields one buffer after the other, each to be filled completely; returns the message."""
    reader = _Reader()
    while not reader.done:
        header = bytearray(HEADER_BYTES)
        yield memoryview(header)
        payload = _allocate(reader.header(header).payload_bytes)
        if len(payload):
            yield payload.data
        reader.payload(payload)
    return reader.message()


class _Reader:
    """Puts a message together, frame after frame."""

    def __init__(self) -> None:
        self.done = False
        self._frame: _Header | None = None
        self._pieces: list[Any] = []
        self._nbytes = 0

    def header(self, data: bytes | bytearray) -> _Header:
        before, frame = self._frame, _Header.parse(data)
        if before and (frame.envelope, frame.following) != (before.envelope, before.following - 1):
            raise WireError(f"{before.following} frames of a list should follow, and another frame came")
        self._frame = frame
        return frame

    def payload(self, data: Array) -> None:
        assert self._frame is not None
        self._pieces.append(self._frame.piece(data))
        self._nbytes += HEADER_BYTES + len(data)
        self.done = self._frame.following in (0, SINGLE)

    def message(self) -> Message:
        assert self._frame is not None
        payload = self._pieces[0] if self._frame.following == SINGLE else self._pieces
        return Message(self._frame.envelope, payload, self._nbytes)


class _Header(NamedTuple):
    """The fields of a frame's header, after they were checked."""

    codes: _Codes
    dtype: np.dtype[Any]
    precision: Precision | None
    envelope: Envelope
    length: int
    start: int
    stop: int
    nnz: int
    checksum: int
    following: int
    index_bytes: int  # padding not counted, here and in the next
    value_bytes: int

    @classmethod
    def parse(cls, data: bytes | bytearray) -> _Header:
        if len(data) != HEADER_BYTES:
            raise WireError(f"the message ends {HEADER_BYTES - len(data)} bytes early")
        fields = data[: -_CRC.size]
        magic, version, form, dtype, precision, number, call, *shape, checksum, tiles, bucket, following = (
            _HEADER.unpack(fields)
        )
        if magic != MAGIC:
            raise WireError(f"a frame starts with {MAGIC!r}, not with {magic!r}")
        if version != VERSION:
            raise WireError(
                f"wire format version {version}; this library speaks version {VERSION}: "
                "install the same release on every rank"
            )
        if zlib.crc32(fields) != _CRC.unpack_from(data, len(fields))[0]:
            raise WireError("the frame's header is corrupted: its checksum is wrong")
        length, start, stop, nnz = shape
        codes = _Codes(form, dtype, precision, tiles, bucket)
        _check_codes(codes, following)
        has_gaps = form not in (DENSE, ABORT)
        if form == ABORT and nnz > LONGEST_ABORT:
            raise WireError(f"an abort message of {nnz:,} bytes; the longest has {LONGEST_ABORT:,}")
        if not start <= stop <= length < 2**63 or nnz > stop - start or not (has_gaps or nnz == stop - start):
            raise WireError(f"{nnz} entries in [{start}, {stop}) of {length} in format {form} is impossible")
        kind, packing = _dtype(dtype), _precision(precision, bucket)
        index_bytes = 0
        if has_gaps:
            index_bytes = form_bytes(form, nnz, stop - start, index_dtype(length).itemsize, tiles)
        value_bytes = nnz * kind.itemsize if packing is None else packing.nbytes(nnz)
        envelope = Envelope(number, call)
        where = length, start, stop, nnz
        return cls(codes, kind, packing, envelope, *where, checksum, following, index_bytes, value_bytes)

    @property
    def payload_bytes(self) -> int:
        return _round_up(self.index_bytes) + _round_up(self.value_bytes)

    def piece(self, payload: Array) -> SparseVector | Abort:
        """What the frame says; arrays that were sent as they are, are views of ``payload``."""
        form, values_at = self.codes.form, _round_up(self.index_bytes)
        index_part = payload[: self.index_bytes]
        value_part = payload[values_at : values_at + self.value_bytes]
        has_indices = form not in (DENSE, ABORT)
        checksum = kernels.checksum(index_part) if has_indices else 0
        if kernels.checksum(value_part, checksum) != self.checksum:
            raise WireError("the frame is corrupted: its checksum is wrong")
        if form == ABORT:
            return Abort.from_json(value_part.tobytes())
        indices = self._indices(index_part) if has_indices else None
        piece = SparseVector.piece(self.length, self.start, self.stop, indices, self._values(value_part))
        if self.precision is not None:
            piece.packed = Packed(self.precision, value_part)
        if self.precision is not None or form not in (COO, DENSE):
            parts = (index_part, value_part) if has_indices else (value_part,)
            piece.coded = CodedPiece(self.codes, parts, self.checksum)
        return piece

    def _indices(self, part: Array) -> Array:
        form, dtype = self.codes.form, index_dtype(self.length)
        if form == COO:
            indices = part.view(dtype)
            bad = kernels.first_invalid(indices, self.start, self.stop)
            if bad >= 0:
                where = f"out of order or out of [{self.start}, {self.stop})"
                raise WireError(f"index {bad} of the frame is {where}")
            return indices
        words = part.view(np.uint64)
        decoded = decode_indices(form, words, self.nnz, self.start, self.stop, dtype)
        if decoded is None:
            raise WireError(f"the frame does not code {self.nnz} indices in [{self.start}, {self.stop})")
        return decoded

    def _values(self, part: Array) -> Array:
        if self.precision is None:
            return part.view(self.dtype)
        values = self.precision.unpack(part, self.nnz)
        if self.dtype == np.float32:
            return values
        with np.errstate(invalid="ignore"):  # a NaN among them may be a signalling one
            return values.astype(self.dtype)


def _check_codes(codes: _Codes, following: int) -> None:
    form, dtype, precision, tiles, bucket = codes
    if form not in (COO, DENSE, ABORT, ELIAS_FANO, BITMAP, TILES) or dtype >= len(DTYPE_NAMES):
        raise WireError(f"unknown format {form} or dtype {dtype}")
    if (form == ABORT) != (DTYPE_NAMES[dtype] == "none") or (form == ABORT and following != SINGLE):
        raise WireError(f"format {form} cannot have dtype {dtype} and {following} frames to follow")
    if precision >= len(FRAME_PRECISIONS) or (precision and DTYPE_NAMES[dtype] not in ("float32", "float64")):
        raise WireError(f"unknown precision {precision}, or impossible for dtype {dtype}")
    if MOST_PIECES <= following < SINGLE:
        raise WireError(f"{following:,} frames of a list to follow; a list has at most {MOST_PIECES:,}")
    has_buckets = isinstance(FRAME_PRECISIONS[precision], QSGD | TwoLevels)
    if (tiles and form != TILES) or bool(bucket) != has_buckets:
        raise WireError(f"{tiles} tiles in format {form}, and buckets of {bucket} in precision {precision}")


@functools.lru_cache(maxsize=64)
def _precision(code: int, bucket: int) -> Precision | None:
    """The precision that decodes such values; the seed and the norm matter only to the sender."""
    precision = FRAME_PRECISIONS[code]
    return replace(precision, bucket=bucket) if isinstance(precision, QSGD | TwoLevels) else precision


def _allocate(count: int) -> Array:
    try:
        return memory.empty(count, np.uint8)
    except (MemoryError, ValueError):
        raise WireError(f"a frame of {count:,} bytes does not fit into memory") from None


def _round_up(count: int) -> int:
    """Bytes with padding to whole words."""
    return -(-count // WORD) * WORD
