"""What ranks tell each other beside vectors: which call a message belongs to, and that a call failed."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import NamedTuple

from sparsewire import errors
from sparsewire.coding.values import PRECISIONS
from sparsewire.errors import CallMismatchError, SparsewireError, WireError
from sparsewire.vector import VALUE_DTYPES

__all__ = [
    "DTYPE_NAMES",
    "OPERATIONS",
    "OPS",
    "PRECISION_NAMES",
    "WORD",
    "Abort",
    "Call",
    "Envelope",
    "mismatch",
]

WORD = 8  # bytes; a message is a whole number of words
LONGEST_MESSAGE = 10_000  # characters that other ranks are told of an error

# The wire format numbers each of these by its place.
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
DTYPE_NAMES = ("none", *VALUE_DTYPES)
PRECISION_NAMES = ("exact", *PRECISIONS)

# operation, op, dtype, precision, detail, length, algorithm
_CALL = struct.Struct("<BBBBIQ24s")


@dataclass(frozen=True)
class Call:
    """What a rank called.  It travels in every header, so that a disagreement can name both calls."""

    operation: str = "none"
    algorithm: str = ""
    op: str = "none"
    dtype: str = "none"
    length: int = 0
    detail: int = (
        0  # what else ranks must agree on: a root, a block size, a promise, or a checksum of regions
    )
    precision: str = "exact"

    def pack(self) -> bytes:
        codes = OPERATIONS.index(self.operation), OPS.index(self.op), DTYPE_NAMES.index(self.dtype)
        precision = PRECISION_NAMES.index(self.precision)
        return _CALL.pack(*codes, precision, self.detail, self.length, self.algorithm.encode())

    @classmethod
    def unpack(cls, data: bytes) -> Call:
        operation, op, dtype, precision, detail, length, algorithm = _CALL.unpack(data)
        try:
            name = algorithm.rstrip(b"\0").decode("ascii")
            if length >= 2**63 or not name.isprintable():
                raise IndexError
            names = OPERATIONS[operation], name, OPS[op], DTYPE_NAMES[dtype]
            return cls(*names, length, detail, PRECISION_NAMES[precision])
        except (IndexError, UnicodeDecodeError):
            raise WireError(f"not the description of a call: {data!r}") from None

    @classmethod
    def described(cls, data: bytes) -> str:
        """The packed call in words, whatever the bytes are."""
        try:
            return str(cls.unpack(data))
        except WireError:
            return f"something unknown ({data.hex()})"

    def __str__(self) -> str:
        promise = "block" if self.algorithm == "omnireduce" else "nnz"
        facts = [
            f"length={self.length:,}" if self.dtype != "none" else "",
            f"dtype={self.dtype}" if self.dtype != "none" else "",
            f"algorithm={self.algorithm}" if self.algorithm else "",
            f"op={self.op}" if self.op != "none" else "",
            f"precision={self.precision}" if self.precision != "exact" else "",
            f"root={self.detail}" if self.operation in ("broadcast", "reduce") else "",
            f"regions={self.detail:08x}" if self.operation == "allreduce_topk" else "",
            f"{promise}={self.detail:,}" if self.operation == "allreduce" and self.detail else "",
        ]
        return f"{self.operation}({', '.join(filter(None, facts))})"


class Envelope(NamedTuple):
    """Which collective of the communicator a message belongs to, and the packed call that made it."""

    collective: int = 0
    call: bytes = Call().pack()


def mismatch(*calls: tuple[int, bytes]) -> CallMismatchError:
    """The error that names both calls, the lower rank's first, so that every rank says the same."""
    return CallMismatchError(
        ", but ".join(f"rank {rank} called {Call.described(call)}" for rank, call in sorted(calls))
    )


@dataclass(frozen=True)
class Abort:
    """The message of a rank at which a collective failed: the error that it raised."""

    error: SparsewireError
    waiting: tuple[int, ...] = ()  # the ranks that its sender waits for, or of which it speaks
    waited: float | None = None  # seconds; the message is then an answer to a rank whose time is up
    sent: tuple[int, ...] = ()  # in an answer: how many messages its sender has sent to each rank
    received: tuple[int, ...] = ()  # in an answer: how many messages its sender has received from each rank

    def to_json(self) -> bytes:
        known = next(c.__name__ for c in type(self.error).__mro__ if c.__name__ in errors.__all__)
        message = str(self.error)[:LONGEST_MESSAGE]
        fields: dict[str, object] = {"error": known, "message": message, "waiting": self.waiting}
        if self.waited is not None:
            fields |= {"waited": self.waited, "sent": self.sent, "received": self.received}
        text = json.dumps(fields).encode()
        return text.ljust(-(-len(text) // WORD) * WORD)

    @classmethod
    def from_json(cls, data: bytes) -> Abort:
        try:
            fields = json.loads(data)
            name, message, waiting = str(fields["error"]), str(fields["message"]), tuple(fields["waiting"])
            waited = None if "waited" not in fields else float(fields["waited"])
            sent, received = tuple(fields.get("sent", ())), tuple(fields.get("received", ()))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise WireError("an abort message that cannot be read") from None
        if name not in errors.__all__:
            raise WireError(f"an abort message that names the unknown error {name[:100]!r}")
        if not all(type(rank) is int and 0 <= rank < 2**32 for rank in waiting):
            raise WireError("an abort message that waits for what is no rank")
        if not all(type(count) is int and 0 <= count < 2**64 for count in sent + received):
            raise WireError("an abort message with numbers of messages that are none")
        return cls(getattr(errors, name)(message), waiting, waited, sent, received)
