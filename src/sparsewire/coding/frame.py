"""Pieces as bytes and back: wire format, version 2.

A message is one frame per piece.  A frame is a fixed header, then (little-endian, 8-byte aligned) the
indices and the values, or the values alone if the piece is dense.  Indices are written in the form that
``support`` finds best, and values that were rounded as the bytes they were rounded to: both come back to the
bit.  ``docs/wire-format.md`` is the byte-by-byte description.

Encoding gives a list of buffers for a gather write; what is sent as it is, is not copied.  Decoding is a
generator that yields the buffers it wants filled, so a driver can receive straight into the result:

>>> import numpy as np
>>> buffers = encode(SparseVector(8, [1, 5], np.ones(2)), Envelope())
>>> decode(b"".join(buffers))[1]
SparseVector(length=8, nnz=2, float64)

Every field is checked before it is used: any bytes decode to a message or raise ``WireError``.  What is coded
is decoded when somebody looks at it, and may raise ``WireError`` then.
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

from sparsewire import errors, kernels
from sparsewire.coding import indices as index_codes
from sparsewire.coding.indices import BITMAP, COO, ELIAS_FANO, TILES
from sparsewire.coding.values import PRECISIONS, QSGD, Precision
from sparsewire.errors import SparsewireError, WireError
from sparsewire.kernels import memory
from sparsewire.vector import VALUE_DTYPES, Array, Packed, SparseVector, index_dtype, value_dtype

__all__ = ["HEADER_BYTES", "Abort", "Call", "Envelope", "Message", "decode", "encode", "read_message", "size"]

MAGIC = b"SPWR"
VERSION = 2
DENSE, ABORT = 2, 3  # formats; the others are forms of a support
SINGLE = 2**32 - 1  # instead of the number of frames to come: the payload is one piece, not a list

# magic, version, format, dtype, precision | collective number | the call's fingerprint
# | length, start, stop, nnz | checksum of what follows the header | tiles, bucket, frames still to come
# | CRC-32 of the rest
_HEADER = struct.Struct("<4sBBBB Q 40s QQQQ Q III")
_CRC = struct.Struct("<I")
_CALL = struct.Struct("<BBBBIQ24s")
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
    "allreduce_topk",
)
OPS = ("none", "sum", "avg", "max", "min")
_DTYPES = ("none", *VALUE_DTYPES)
_PRECISIONS = ("exact", *PRECISIONS)
# What the detail of a call is, by operation: a rank, or a checksum of regions.  In an allreduce it is the
# size of blocks, and 0 if there are none.
_DETAILS = {"broadcast": "root={}", "reduce": "root={}", "allreduce_topk": "regions={:08x}"}


@dataclass(frozen=True)
class Call:
    """What a rank called.  It travels in every header, so that a disagreement can name both sides."""

    operation: str = "none"
    algorithm: str = ""
    op: str = "none"
    dtype: str = "none"
    length: int = 0
    detail: int = 0  # a number that ranks compare; what it means is the operation's: see _DETAILS
    precision: str = "exact"

    def pack(self) -> bytes:
        codes = OPERATIONS.index(self.operation), OPS.index(self.op), _DTYPES.index(self.dtype)
        precision = _PRECISIONS.index(self.precision)
        return _CALL.pack(*codes, precision, self.detail, self.length, self.algorithm.encode())

    @classmethod
    def unpack(cls, data: bytes) -> Call:
        operation, op, dtype, precision, detail, length, algorithm = _CALL.unpack(data)
        try:
            name = algorithm.rstrip(b"\0").decode("ascii")
            names = OPERATIONS[operation], name, OPS[op], _DTYPES[dtype]
            return cls(*names, length, detail, _PRECISIONS[precision])
        except (IndexError, UnicodeDecodeError):
            raise WireError(f"not the description of a call: {data!r}") from None

    def __str__(self) -> str:
        facts = [
            f"length={self.length:,}" if self.dtype != "none" else "",
            f"dtype={self.dtype}" if self.dtype != "none" else "",
            f"algorithm={self.algorithm}" if self.algorithm else "",
            f"op={self.op}" if self.op != "none" else "",
            f"precision={self.precision}" if self.precision != "exact" else "",
            _DETAILS[self.operation].format(self.detail) if self.operation in _DETAILS else "",
            f"block={self.detail}" if self.operation == "allreduce" and self.detail else "",
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
    nbytes: int  # of all its frames


def size(payload: Payload, price: float = 0.0) -> int:
    """Exactly how many bytes ``encode`` makes of it."""
    if isinstance(payload, Abort):
        return HEADER_BYTES + len(payload.to_json())
    if isinstance(payload, list):
        return sum(size(piece, price) for piece in payload)
    if isinstance(payload, _Coded):
        return HEADER_BYTES + payload.frame.payload_bytes
    indices = 0
    if payload.indices is not None:
        indices = index_codes.form(payload.indices, payload.start, payload.stop, price).nbytes
    values = payload.values if payload.packed is None else payload.packed.data
    return HEADER_BYTES + indices + _round_up(values.nbytes, 8)


def encode(payload: Payload, envelope: Envelope, price: float = 0.0) -> list[Any]:
    """The message as buffers to be written one after the other.

    ``price`` is how many bytes coding an index has to save; see ``support``.
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
    """How a frame's indices and values are written."""

    form: int
    dtype: int
    precision: int = 0
    tiles: int = 0
    bucket: int = 0


def _frame(piece: SparseVector, following: int, envelope: Envelope, price: float) -> list[Any]:
    shape = (piece.length, piece.start, piece.stop, piece.nnz)
    if isinstance(piece, _Coded):
        codes, parts, checksum = piece.frame.codes, piece.parts, piece.frame.checksum
    else:
        codes, parts = _coded(piece, price)
        checksum = 0
        for part in parts:
            checksum = kernels.checksum(part, checksum)
    buffers: list[Any] = [_header(codes, envelope, shape, checksum, following)]
    for part in parts:
        nbytes = part.nbytes
        if nbytes:
            buffers.append(part.view(np.uint8).data)
        if nbytes % 8:
            buffers.append(bytes(-nbytes % 8))
    return buffers


def _coded(piece: SparseVector, price: float) -> tuple[_Codes, list[Array]]:
    """The index part, if there is one, and the value part."""
    form, parts = index_codes.Form(DENSE, 0), []
    if piece.indices is not None:
        form = index_codes.form(piece.indices, piece.start, piece.stop, price)
        parts.append(index_codes.encode(piece.indices, piece.start, piece.stop, form))
    dtype = _dtype_code(piece.dtype)
    if piece.packed is None:
        return _Codes(form.code, dtype, tiles=form.tiles), [*parts, piece.values]
    precision = piece.packed.precision
    bucket = precision.bucket if isinstance(precision, QSGD) else 0
    code = _PRECISIONS.index(precision.name)
    return _Codes(form.code, dtype, code, form.tiles, bucket), [*parts, piece.packed.data]


@functools.cache  # to ask a dtype for its name takes numpy microseconds
def _dtype_code(dtype: np.dtype[Any]) -> int:
    return _DTYPES.index(dtype.name)


@functools.cache
def _dtype(code: int) -> np.dtype[Any]:
    """Of values; of the text of an abort."""
    return value_dtype(_DTYPES[code]) if code else np.dtype(np.uint8)


def _header(
    codes: _Codes, envelope: Envelope, shape: tuple[int, int, int, int], checksum: int, following: int
) -> bytes:
    written = codes.form, codes.dtype, codes.precision
    rest = checksum, codes.tiles, codes.bucket, following
    fields = _HEADER.pack(MAGIC, VERSION, *written, *envelope, *shape, *rest)
    return fields + _CRC.pack(zlib.crc32(fields))


def decode(data: Any) -> Message:
    """The one message that a buffer holds; its arrays are views of the buffer, if that is aligned."""
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
            raise WireError(f"wire format version {version}; this library speaks version {VERSION}")
        if zlib.crc32(fields) != _CRC.unpack_from(data, len(fields))[0]:
            raise WireError("the frame's header is corrupted: its checksum is wrong")
        length, start, stop, nnz = shape
        codes = _Codes(form, dtype, precision, tiles, bucket)
        _check_codes(codes, following)
        has_gaps = form not in (DENSE, ABORT)
        if not start <= stop <= length < 2**63 or nnz > stop - start or not (has_gaps or nnz == stop - start):
            raise WireError(f"{nnz} entries in [{start}, {stop}) of {length} in format {form} is impossible")
        kind, packing = _dtype(dtype), _precision(precision, bucket)
        index_bytes = 0
        if has_gaps:
            index_bytes = index_codes.nbytes(form, nnz, stop - start, index_dtype(length).itemsize, tiles)
        value_bytes = nnz * kind.itemsize if packing is None else packing.nbytes(nnz)
        envelope = Envelope(number, call)
        where = length, start, stop, nnz
        return cls(codes, kind, packing, envelope, *where, checksum, following, index_bytes, value_bytes)

    @property
    def form(self) -> int:
        return self.codes.form

    @property
    def payload_bytes(self) -> int:
        return _round_up(self.index_bytes, 8) + _round_up(self.value_bytes, 8)

    def piece(self, payload: Array) -> SparseVector | Abort:
        """The piece; arrays that were sent as they are, are views of ``payload``."""
        values_at = _round_up(self.index_bytes, 8)
        index_part, value_part = (
            payload[: self.index_bytes],
            payload[values_at : values_at + self.value_bytes],
        )
        checksum = kernels.checksum(index_part, 0) if self.form not in (DENSE, ABORT) else 0
        if kernels.checksum(value_part, checksum) != self.checksum:
            raise WireError("the frame is corrupted: its checksum is wrong")
        if self.form == ABORT:
            return Abort.from_json(value_part.tobytes())
        if self.precision is None and self.form in (COO, DENSE):
            indices = self._plain_indices(index_part) if self.form == COO else None
            where = self.length, self.start, self.stop
            return SparseVector.piece(*where, indices, value_part.view(self.dtype))
        return _Coded(self, index_part, value_part)

    def _plain_indices(self, part: Array) -> Array:
        indices = part.view(index_dtype(self.length))
        if (bad := kernels.first_invalid(indices, self.start, self.stop)) < 0:
            return indices
        raise WireError(f"index {bad} of the frame is out of order or out of [{self.start}, {self.stop})")

    def indices(self, part: Array, out: Array | None = None) -> Array | None:
        """What the index part says, in ``out`` if that is given; None for a dense piece."""
        if self.form == DENSE:
            return None
        if self.form == COO:
            return _moved(self._plain_indices(part), out)
        dtype = index_dtype(self.length)
        words = part.view(np.uint64)
        decoded = index_codes.decode(self.form, words, self.nnz, self.start, self.stop, dtype, out)
        if decoded is None:
            raise WireError(f"the frame does not code {self.nnz} indices in [{self.start}, {self.stop})")
        return decoded

    def values(self, part: Array, out: Array | None = None) -> Array:
        if self.precision is None:
            return _moved(part.view(self.dtype), out)
        if self.dtype == np.float32:
            return self.precision.unpack(part, self.nnz, out)
        with np.errstate(invalid="ignore"):  # a NaN among them may be one that signals
            return _moved(self.precision.unpack(part, self.nnz).astype(self.dtype), out)


class _Coded(SparseVector):
    """A piece that has come: decoded when it is looked at, or straight into the place where it is wanted.

    Its slots for the arrays are empty until then.  Whoever forwards it sends the same bytes.
    """

    __slots__ = ("_index_part", "_value_part", "frame")

    def __init__(self, frame: _Header, index_part: Array, value_part: Array) -> None:
        self.length, self.start, self.stop = frame.length, frame.start, frame.stop
        self.packed = None if frame.precision is None else Packed(frame.precision, value_part)
        self.frame, self._index_part, self._value_part = frame, index_part, value_part

    def __getattr__(self, name: str) -> Any:
        if name == "indices":
            self.indices = self.frame.indices(self._index_part)
        elif name == "values":
            self.values = self.frame.values(self._value_part)
        else:
            raise AttributeError(name)
        return getattr(self, name)

    def write_to(self, indices: Array | None, values: Array) -> None:
        if indices is not None:
            self.frame.indices(self._index_part, indices)
        self.frame.values(self._value_part, values)

    def decoded(self) -> SparseVector:
        return self.with_values(self.values, self.packed)

    @property
    def parts(self) -> list[Array]:
        return [self._value_part] if self.is_dense else [self._index_part, self._value_part]

    @property
    def is_dense(self) -> bool:
        return self.frame.form == DENSE

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.frame.dtype

    @property
    def nnz(self) -> int:
        return self.frame.nnz


def _moved(array: Array, out: Array | None) -> Array:
    """The array, in ``out`` if that is given."""
    if out is None:
        return array
    out[:] = array
    return out


def _check_codes(codes: _Codes, following: int) -> None:
    form, dtype, precision, tiles, bucket = codes
    if form not in (COO, DENSE, ABORT, ELIAS_FANO, BITMAP, TILES) or dtype >= len(_DTYPES):
        raise WireError(f"unknown format {form} or dtype {dtype}")
    if (form == ABORT) != (_DTYPES[dtype] == "none") or (form == ABORT and following != SINGLE):
        raise WireError(f"format {form} cannot have dtype {dtype} and {following} frames to follow")
    if precision >= len(_PRECISIONS) or (precision and _DTYPES[dtype] not in ("float32", "float64")):
        raise WireError(f"unknown precision {precision}, or impossible for dtype {dtype}")
    if bool(tiles) > (form == TILES) or bool(bucket) != _PRECISIONS[precision].startswith("qsgd"):
        raise WireError(f"{tiles} tiles in format {form}, and buckets of {bucket} in precision {precision}")


@functools.lru_cache(maxsize=64)
def _precision(code: int, bucket: int) -> Precision | None:
    """Without the seed and the norm, of which the receiver knows nothing."""
    if not code:
        return None
    precision = PRECISIONS[_PRECISIONS[code]]
    return QSGD(precision.bits, bucket) if isinstance(precision, QSGD) else precision


def _allocate(count: int) -> Array:
    try:
        return memory.empty(count, np.uint8)
    except (MemoryError, ValueError):
        raise WireError(f"a frame of {count:,} bytes does not fit into memory") from None


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
