"""What a job asks for beyond the proof of its secret: encryption, or a tag after every message."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparsewire.errors import InputError

if TYPE_CHECKING:
    from sparsewire.drivers.tcp.tls import Encryption

__all__ = ["TLS", "Protection", "check_secret", "encryption_of"]

SHORTEST_SECRET = 16  # bytes


@dataclass(frozen=True)
class TLS:
    """Certificates of your own, as PEM files; without them, every rank makes one for the job.

    All ranks check that the certificates of the others were signed by ``authority``.
    """

    certificate: str | Path
    key: str | Path
    authority: str | Path


@dataclass(frozen=True)
class Protection:
    """All ranks of a job have the same."""

    tls: bool | TLS = False
    authenticate_frames: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.tls, bool | TLS):
            raise InputError(f"tls is {self.tls!r}; it must be True, False or a sparsewire.TLS")

    @property
    def has_tags(self) -> bool:
        """Does a tag follow every message?  TLS has tags of its own."""
        return self.authenticate_frames and not self.tls


def encryption_of(protection: Protection | None) -> Encryption | None:
    """What the protection needs for TLS, if that is part of it."""
    if protection is None or not protection.tls:
        return None
    from sparsewire.drivers.tcp.tls import Encryption  # Python's ssl takes time to load

    return Encryption.of(protection.tls)


def check_secret(secret: str) -> None:
    """Raises InputError if the secret is so short that it can be guessed."""
    length = len(secret.encode())
    if length < SHORTEST_SECRET:
        raise InputError(
            f"the job's secret has {length} bytes, and needs {SHORTEST_SECRET} or more: make one with "
            "python -c 'import secrets; print(secrets.token_hex(32))', and set SPARSEWIRE_SECRET to it on "
            "every rank"
        )
