"""How two ranks prove to each other that they belong to the same job, before a frame is read.

    acceptor -> dialler    hello A
    dialler  -> acceptor   hello B, HMAC(secret, "dial",   ranks, size, A, B, binding)
    acceptor -> dialler             HMAC(secret, "accept", ranks, size, A, B, binding)

A hello has the greeting, the sender's terms, its process, its rank and a fresh nonce.  Fresh nonces on both
sides make a recorded handshake worthless; the two labels make it impossible to reflect a peer's own proof.
Terms are what both sides must have in common.  If they differ, the handshake still goes on to its end, so
that both sides know for certain what to complain about.

With TLS, the connection is encrypted from hello A on, if both sides want that.  The binding is then the hash
of the acceptor's certificate, as each side sees it: somebody in between would show another certificate, and
no proof would be right.

Both sides are dialogues without I/O: they yield bytes to be sent, the number of bytes that they want to be
given next, or ``StartTLS``, and want to be given the binding.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
import struct
from collections.abc import Generator
from importlib.metadata import version
from typing import NamedTuple, TypeAlias

from sparsewire.coding import frame
from sparsewire.errors import CallMismatchError, InputError, SparsewireError, TransportError

__all__ = ["NEWCOMER", "AuthenticationError", "Dialogue", "Proven", "StartTLS", "Terms", "accept", "dial"]

GREETING = b"sparsewire mesh\x002"
NEWCOMER = 2**32 - 1  # in place of a rank: a process that wants to join, in a group of size 0
NONCE_BYTES = 32
PROOF_BYTES = 32
REFUSED = b"sparsewire: refused".ljust(PROOF_BYTES, b"\0")  # the acceptor's answer to a wrong proof
TLS_FLAG, TAGS_FLAG = 1, 2
# wire format, flags | version of the library | process | rank | nonce
_HELLO = struct.Struct(f"<HH 24s 8s I {NONCE_BYTES}s")
HELLO_BYTES = len(GREETING) + _HELLO.size
_PARTIES = struct.Struct("<III")


class AuthenticationError(TransportError):
    """The other end does not know the job's secret, or is not Sparsewire at all."""


class StartTLS:
    """What a dialogue yields where TLS begins.

    The answer is the binding, which is empty if the other end does not encrypt.
    """


class Terms(NamedTuple):
    """What two ranks must have in common."""

    format: int  # the version of the wire format
    library: str  # whose versions may differ, as long as their formats do not
    tls: bool
    authenticate_frames: bool

    @classmethod
    def here(cls, tls: bool = False, authenticate_frames: bool = False) -> Terms:
        return cls(frame.VERSION, _library_version(), tls, authenticate_frames)


class Proven(NamedTuple):
    """What a rank knows when its handshake has ended."""

    peer: int
    send_key: bytes  # of the tags of messages, for this connection alone
    receive_key: bytes


Dialogue: TypeAlias = "Generator[bytes | int | StartTLS, bytes, Proven]"


class Hello(NamedTuple):
    """What each side says of itself."""

    terms: Terms
    process: bytes  # 8 random bytes, by which two processes of one rank are told apart
    rank: int
    nonce: bytes

    def pack(self) -> bytes:
        flags = TLS_FLAG * self.terms.tls | TAGS_FLAG * self.terms.authenticate_frames
        library = self.terms.library.encode("ascii", "replace")
        return GREETING + _HELLO.pack(self.terms.format, flags, library, self.process, self.rank, self.nonce)

    @classmethod
    def unpack(cls, data: bytes) -> Hello:
        number, flags, library, process, rank, nonce = _HELLO.unpack_from(data, len(GREETING))
        name = library.rstrip(b"\0").decode("ascii", "replace")
        return cls(Terms(number, name, bool(flags & TLS_FLAG), bool(flags & TAGS_FLAG)), process, rank, nonce)


def accept(
    secret: bytes,
    rank: int,
    size: int,
    terms: Terms | None = None,
    process: bytes = bytes(8),
    processes: dict[int, bytes] | None = None,
    join_secret: bytes | None = None,
) -> Dialogue:
    """The acceptor's part; returns who dialled.

    ``processes`` has the process that has come as each rank, and gets the one that comes now.  With a
    ``join_secret`` it may also be a ``NEWCOMER``, who knows no group and proves that secret.
    """
    terms = terms or Terms.here()
    mine = Hello(terms, process, rank, secrets.token_bytes(NONCE_BYTES)).pack()
    yield mine
    binding = (yield StartTLS()) if terms.tls else b""
    said = yield HELLO_BYTES + PROOF_BYTES
    theirs = Hello.unpack(said)
    peer = theirs.rank
    if peer == NEWCOMER and join_secret is not None:
        secret, size, processes = join_secret, 0, None
    proofs = _Proofs(secret, (peer, rank, size), mine + said[:HELLO_BYTES] + binding)
    is_rank = said.startswith(GREETING) and (0 <= peer < size or size == 0) and peer != rank
    if not (proofs.match(b"dial", said[HELLO_BYTES:]) and is_rank):
        yield REFUSED
        raise AuthenticationError("a connection that could not prove to be a rank of this job was refused")
    if processes is not None and processes.setdefault(peer, theirs.process) != theirs.process:
        yield proofs.of(b"twice")
        raise _came_twice(peer)
    yield proofs.of(b"accept")
    try:
        _check_terms((rank, terms), (peer, theirs.terms))
    except CallMismatchError as error:
        if peer != NEWCOMER:
            raise
        raise AuthenticationError(str(error)) from error  # which concerns the newcomer, and not the group
    return Proven(peer, send_key=proofs.of(b"from acceptor"), receive_key=proofs.of(b"from dialler"))


def dial(
    secret: bytes,
    rank: int,
    peer: int,
    size: int,
    terms: Terms | None = None,
    process: bytes = bytes(8),
) -> Dialogue:
    """The dialler's part; returns who accepted, which is the rank it wanted."""
    terms = terms or Terms.here()
    greeting = yield len(GREETING)
    _check_greeting(greeting, peer)
    said = greeting + (yield _HELLO.size)
    theirs = Hello.unpack(said)
    binding = (yield StartTLS()) if terms.tls and theirs.terms.tls else b""
    mine = Hello(terms, process, rank, secrets.token_bytes(NONCE_BYTES)).pack()
    proofs = _Proofs(secret, (rank, peer, size), said + mine + binding)
    yield mine + proofs.of(b"dial")
    proof = yield PROOF_BYTES
    if proof == REFUSED:
        raise AuthenticationError(
            f"rank {peer} refused the proof of rank {rank}: are SPARSEWIRE_SECRET and WORLD_SIZE the same on "
            "every rank?"
        )
    if proofs.match(b"twice", proof):
        raise _came_twice(rank)
    if not proofs.match(b"accept", proof):
        raise AuthenticationError(
            f"what listens at the address of rank {peer} does not know the job's secret"
        )
    _check_terms((rank, terms), (peer, theirs.terms))
    return Proven(peer, send_key=proofs.of(b"from dialler"), receive_key=proofs.of(b"from acceptor"))


class _Proofs:
    """What only those who know the secret can make of what both sides have said."""

    def __init__(self, secret: bytes, parties: tuple[int, int, int], said: bytes) -> None:
        self._secret, self._said = secret, _PARTIES.pack(*parties) + said

    def of(self, label: bytes) -> bytes:
        return hmac.digest(self._secret, label + b"\0" + self._said, hashlib.sha256)

    def match(self, label: bytes, proof: bytes) -> bool:
        return hmac.compare_digest(self.of(label), proof)


def _check_greeting(greeting: bytes, peer: int) -> None:
    if greeting == GREETING:
        return
    if greeting[:-1] == GREETING[:-1]:
        theirs, ours = (said[-1:].decode("ascii", "replace") for said in (greeting, GREETING))
        raise AuthenticationError(
            f"rank {peer} has version {theirs} of the handshake and this rank has {ours}: install the same "
            "version of sparsewire on every rank"
        )
    raise AuthenticationError(f"what listens at the address of rank {peer} is not Sparsewire")


def _check_terms(*ranks: tuple[int, Terms]) -> None:
    """Raises CallMismatchError, with the same message on both sides, unless both have the same terms."""
    (low, here), (high, there) = sorted(ranks)
    if here.format != there.format:
        both = (
            f"{_name(rank)} has version {terms.format} of the wire format (sparsewire {terms.library})"
            for rank, terms in ((low, here), (high, there))
        )
        raise CallMismatchError(", and ".join(both) + ": install the same version on every rank")
    for name, variable in (
        ("tls", "SPARSEWIRE_TLS"),
        ("authenticate_frames", "SPARSEWIRE_AUTHENTICATE_FRAMES"),
    ):
        one, other = getattr(here, name), getattr(there, name)
        if one != other:
            raise CallMismatchError(
                f"{_name(low)} has {name}={one}, and {_name(high)} has {name}={other}: "
                f"set {variable} alike on every rank"
            )


def _name(rank: int) -> str:
    return "the newcomer" if rank == NEWCOMER else f"rank {rank}"


def _came_twice(rank: int) -> SparsewireError:
    return InputError(f"rank {rank} came twice: two processes of this job have RANK={rank}")


@functools.cache
def _library_version() -> str:
    return version("sparsewire")
