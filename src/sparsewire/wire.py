"""Pieces as bytes and back: wire format, version 1.

A message is one frame per piece.  A frame is a fixed header, then (little-endian, 8-byte aligned) the
indices and the values, or the values alone if the piece is dense.  ``docs/wire-format.md`` is the
byte-by-byte description.

Encoding copies no payload: it gives a list of buffers for a gather write.  Decoding is a generator that
yields the buffers it wants filled, so a driver can receive straight into the arrays of the result:

>>> import numpy as np
>>> buffers = encode(SparseVector(8, [1, 5], np.ones(2)), Envelope())
>>> decode(b"".join(buffers))[1]
SparseVector(length=8, nnz=2, float64)

Every field is checked before it is used: any bytes decode to a message or raise ``WireError``.
"""

from __future__ import annotations

import functools
import json
import struct
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparsewire import errors, kernels, memory
from sparsewire.errors import SparsewireError, WireError
from sparsewire.vector import VALUE_DTYPES, Array, SparseVector, index_dtype, value_dtype

__all__ = ["HEADER_BYTES", "Abort", "Call", "Envelope", "Message", "decode", "encode", "read_message", "size"]

MAGIC = b"SPWR"
VERSION = 1
COO, DENSE, ABORT = 1, 2, 3  # formats
SINGLE, LISTED = 0, 1  # is the payload one piece, or a list of which this is one?

# magic, version, format, dtype, listed | collective number | the call's fingerprint
# | length, start, stop, nnz | checksum of what follows the header | frames still to come | CRC-32 of the rest
_HEADER = struct.Struct("<4sBBBB Q 40s QQQQ Q I")
_CRC = struct.Struct("<I")
_CALL = struct.Struct("<BBBxIQ24s")
HEADER_BYTES = _HEADER.size + _CRC.size

OPERATIONS = (
    "none",
    "rendezvous",
    "allreduce",
    "allgather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "barrier",
)
OPS = ("none", "sum", "avg", "max", "min")
_DTYPES = ("none", *VALUE_DTYPES)


@dataclass(frozen=True)
class Call:
    """What a rank called.  It travels in every header, so that a disagreement can name both sides."""

    operation: str = "none"
    algorithm: str = ""
    op: str = "none"
    dtype: str = "none"
    length: int = 0
    root: int = 0

    def pack(self) -> bytes:
        codes = OPERATIONS.index(self.operation), OPS.index(self.op), _DTYPES.index(self.dtype)
        return _CALL.pack(*codes, self.root, self.length, self.algorithm.encode())

    @classmethod
    def unpack(cls, data: bytes) -> Call:
        operation, op, dtype, root, length, algorithm = _CALL.unpack(data)
        try:
            name = algorithm.rstrip(b"\0").decode("ascii")
            return cls(OPERATIONS[operation], name, OPS[op], _DTYPES[dtype], length, root)
        except (IndexError, UnicodeDecodeError):
            raise WireError(f"not the description of a call: {data!r}") from None

    def __str__(self) -> str:
        facts = [
            f"length={self.length:,}" if self.dtype != "none" else "",
            f"dtype={self.dtype}" if self.dtype != "none" else "",
            f"algorithm={self.algorithm}" if self.algorithm else "",
            f"op={self.op}" if self.op != "none" else "",
            f"root={self.root}" if self.operation in ("broadcast", "reduce") else "",
        ]
        return f"{self.operation}({', '.join(filter(None, facts))})"


class Envelope(NamedTuple):
    """Which collective of the communicator a message belongs to, and the packed call that made it."""

    collective: int = 0
    call: bytes = Call().pack()


@dataclass(frozen=True)
class Abort:
    """A message that says: this collective failed at my end, and why."""

    error: SparsewireError
    waiting: tuple[int, ...] = ()  # for a time-out: the ranks its sender was waiting for

    def to_json(self) -> bytes:
        known = next(c.__name__ for c in type(self.error).__mro__ if c.__name__ in errors.__all__)
        text = json.dumps({"error": known, "message": str(self.error), "waiting": self.waiting}).encode()
        return text.ljust(_round_up(len(text), 8))  # a message is a whole number of 8-byte words

    @classmethod
    def from_json(cls, data: bytes) -> Abort:
        try:
            fields = json.loads(data)
            name, message, waiting = str(fields["error"]), str(fields["message"]), tuple(fields["waiting"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise WireError("an abort message that is not readable") from None
        if name not in errors.__all__ or not all(isinstance(rank, int) for rank in waiting):
            raise WireError(f"an abort message that names the error {name!r}")
        return cls(getattr(errors, name)(message), waiting)


Payload: TypeAlias = "SparseVector | list[SparseVector] | Abort"


class Message(NamedTuple):
    envelope: Envelope
    payload: Payload


def size(payload: Payload) -> int:
    """Exactly how many bytes ``encode`` makes of it."""
    if isinstance(payload, Abort):
        return HEADER_BYTES + len(payload.to_json())
    if isinstance(payload, list):
        return sum(map(size, payload))
    indices = 0 if payload.indices is None else _round_up(payload.indices.nbytes, 8)
    return HEADER_BYTES + indices + _round_up(payload.values.nbytes, 8)


def encode(payload: Payload, envelope: Envelope) -> list[Any]:
    """The message as buffers to be written one after the other; the arrays are not copied."""
    if isinstance(payload, SparseVector):
        return _frame(payload, SINGLE, envelope, 0)
    if isinstance(payload, Abort):
        text = np.frombuffer(payload.to_json(), np.uint8)
        return [
            _header(ABORT, 0, SINGLE, envelope, (len(text), 0, len(text), len(text)), [text], 0),
            text.data,
        ]
    if not payload:
        raise ValueError("a list without pieces cannot be sent; send an empty vector instead")
    buffers: list[Any] = []
    for following, piece in zip(reversed(range(len(payload))), payload, strict=True):
        buffers += _frame(piece, LISTED, envelope, following)
    return buffers


def _frame(piece: SparseVector, listed: int, envelope: Envelope, following: int) -> list[Any]:
    indices, values = piece.indices, piece.values
    form, parts = (DENSE, [values]) if indices is None else (COO, [indices, values])
    shape = (piece.length, piece.start, piece.stop, len(values))
    buffers: list[Any] = [_header(form, _dtype_code(values.dtype), listed, envelope, shape, parts, following)]
    for part in parts:
        nbytes = part.nbytes
        if nbytes:
            buffers.append(part.view(np.uint8).data)
        if nbytes % 8:
            buffers.append(bytes(-nbytes % 8))
    return buffers


@functools.cache  # to ask a dtype for its name takes numpy microseconds
def _dtype_code(dtype: np.dtype[Any]) -> int:
    return _DTYPES.index(dtype.name)


@functools.cache
def _dtype(code: int) -> np.dtype[Any]:
    """Of values; of the text of an abort."""
    return value_dtype(_DTYPES[code]) if code else np.dtype(np.uint8)


def _header(
    form: int,
    dtype: int,
    listed: int,
    envelope: Envelope,
    shape: tuple[int, int, int, int],
    parts: list[Array],
    following: int,
) -> bytes:
    checksum = 0
    for part in parts:
        checksum = kernels.checksum(part, checksum)
    fields = _HEADER.pack(MAGIC, VERSION, form, dtype, listed, *envelope, *shape, checksum, following)
    return fields + _CRC.pack(zlib.crc32(fields))


def decode(data: Any) -> Message:
    """The one message that a buffer holds; its arrays are views of the buffer."""
    source = np.frombuffer(data, np.uint8)
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


def read_message() -> Generator[memoryview, None, Message]:
    """Yields one buffer after the other to be filled completely; returns the message."""
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

    def header(self, data: bytes | bytearray) -> _Header:
        before, frame = self._frame, _Header.parse(data)
        if before and frame.place_in_message != (before.envelope, LISTED, before.following - 1):
            raise WireError(f"{before.following} frames of a list should follow, and another frame came")
        self._frame = frame
        return frame

    def payload(self, data: Array) -> None:
        assert self._frame is not None
        self._pieces.append(self._frame.piece(data))
        self.done = not self._frame.following

    def message(self) -> Message:
        assert self._frame is not None
        return Message(self._frame.envelope, self._pieces if self._frame.listed else self._pieces[0])


class _Header(NamedTuple):
    form: int
    dtype: np.dtype[Any]
    listed: int
    envelope: Envelope
    length: int
    start: int
    stop: int
    nnz: int
    checksum: int
    following: int
    index_dtype: np.dtype[Any]
    index_bytes: int
    payload_bytes: int

    @classmethod
    def parse(cls, data: bytes | bytearray) -> _Header:
        if len(data) != HEADER_BYTES:
            raise WireError(f"the message ends {HEADER_BYTES - len(data)} bytes early")
        fields = data[: -_CRC.size]
        magic, version, form, dtype, listed, number, call, *shape, checksum, following = _HEADER.unpack(
            fields
        )
        if magic != MAGIC:
            raise WireError(f"a frame starts with {MAGIC!r}, not with {magic!r}")
        if version != VERSION:
            raise WireError(f"wire format version {version}; this library speaks version {VERSION}")
        if zlib.crc32(fields) != _CRC.unpack_from(data, len(fields))[0]:
            raise WireError("the frame's header is corrupted: its checksum is wrong")
        length, start, stop, nnz = shape
        if (
            form not in (COO, DENSE, ABORT)
            or dtype >= len(_DTYPES)
            or listed > 1
            or (following and not listed)
        ):
            raise WireError(f"unknown format {form}, dtype {dtype} or list flag {listed}")
        if (form == ABORT) != (_DTYPES[dtype] == "none") or (form == ABORT and listed):
            raise WireError(f"format {form} cannot have dtype {dtype} and list flag {listed}")
        if not start <= stop <= length < 2**63 or nnz > stop - start or (form != COO and nnz != stop - start):
            raise WireError(f"{nnz} entries in [{start}, {stop}) of {length} in format {form} is impossible")
        kind = _dtype(dtype)
        index = index_dtype(length)
        index_bytes = nnz * index.itemsize if form == COO else 0
        nbytes = _round_up(index_bytes, 8) + _round_up(nnz * kind.itemsize, 1 if form == ABORT else 8)
        envelope, layout = Envelope(number, call), (index, index_bytes, nbytes)
        return cls(form, kind, listed, envelope, length, start, stop, nnz, checksum, following, *layout)

    @property
    def place_in_message(self) -> tuple[Envelope, int, int]:
        return self.envelope, self.listed, self.following

    def piece(self, payload: Array) -> SparseVector | Abort:
        """The piece whose arrays are views of ``payload``."""
        values_at = _round_up(self.index_bytes, 8)
        values = payload[values_at : values_at + self.nnz * self.dtype.itemsize].view(self.dtype)
        indices = None
        checksum = 0
        if self.form == COO:
            indices = payload[: self.index_bytes].view(self.index_dtype)
            checksum = kernels.checksum(indices, checksum)
        if kernels.checksum(values, checksum) != self.checksum:
            raise WireError("the frame is corrupted: its checksum is wrong")
        if self.form == ABORT:
            return Abort.from_json(payload.tobytes())
        if indices is not None and (bad := kernels.first_invalid(indices, self.start, self.stop)) >= 0:
            raise WireError(f"index {bad} of the frame is out of order or out of [{self.start}, {self.stop})")
        return SparseVector.piece(self.length, self.start, self.stop, indices, values)


def _allocate(count: int) -> Array:
    try:
        return memory.empty(count, np.uint8)
    except (MemoryError, ValueError):
        raise WireError(f"a frame of {count:,} bytes does not fit into memory") from None


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
