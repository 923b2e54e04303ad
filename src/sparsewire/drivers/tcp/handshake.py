"""How two ranks prove to each other that they belong to the same job, before a frame is read.

    acceptor -> dialler    greeting, nonce A
    dialler  -> acceptor   its rank, nonce B, HMAC(secret, "dial",   ranks, size, A, B)
    acceptor -> dialler                       HMAC(secret, "accept", ranks, size, A, B)

Fresh nonces on both sides make a recorded handshake worthless; the two labels make it impossible to
reflect a peer's own proof.  Both sides are dialogues without I/O: they yield bytes to be sent, or the
number of bytes they want to be given next.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Generator
from typing import TypeAlias

from sparsewire.errors import TransportError

__all__ = ["AuthenticationError", "Dialogue", "accept", "dial"]

GREETING = b"sparsewire mesh\x001"
NONCE_BYTES = 32
PROOF_BYTES = 32
_RANK = struct.Struct("<I")
_PARTIES = struct.Struct("<III")

Dialogue: TypeAlias = "Generator[bytes | int, bytes, int]"


class AuthenticationError(TransportError):
    """The other end does not know the job's secret, or is not Sparsewire at all."""


def accept(secret: bytes, rank: int, size: int) -> Dialogue:
    """The acceptor's part; returns the rank that dialled."""
    nonce_a = secrets.token_bytes(NONCE_BYTES)
    yield GREETING + nonce_a
    answer = yield _RANK.size + NONCE_BYTES + PROOF_BYTES
    peer = int(_RANK.unpack_from(answer)[0])
    nonce_b = answer[_RANK.size : _RANK.size + NONCE_BYTES]
    parties = (peer, rank, size)
    expected = _proof(secret, b"dial", parties, nonce_a + nonce_b)
    if not hmac.compare_digest(expected, answer[-PROOF_BYTES:]) or not 0 <= peer < size or peer == rank:
        raise AuthenticationError("a connection that could not prove to be a rank of this job was refused")
    yield _proof(secret, b"accept", parties, nonce_a + nonce_b)
    return peer


def dial(secret: bytes, rank: int, peer: int, size: int) -> Dialogue:
    """The dialler's part; returns the rank it wanted."""
    greeting = yield len(GREETING) + NONCE_BYTES
    if not greeting.startswith(GREETING):
        raise AuthenticationError(f"what listens at the address of rank {peer} is not Sparsewire")
    nonce_a, nonce_b = greeting[len(GREETING) :], secrets.token_bytes(NONCE_BYTES)
    parties = (rank, peer, size)
    yield _RANK.pack(rank) + nonce_b + _proof(secret, b"dial", parties, nonce_a + nonce_b)
    proof = yield PROOF_BYTES
    if not hmac.compare_digest(proof, _proof(secret, b"accept", parties, nonce_a + nonce_b)):
        raise AuthenticationError(
            f"what listens at the address of rank {peer} does not know the job's secret"
        )
    return peer


def _proof(secret: bytes, label: bytes, parties: tuple[int, int, int], nonces: bytes) -> bytes:
    return hmac.digest(secret, label + _PARTIES.pack(*parties) + nonces, hashlib.sha256)
