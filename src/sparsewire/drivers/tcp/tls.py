"""Encryption of a connection by TLS 1.3: certificates, how it starts, and a socket's calls on top of it.

Who the other end is, is not said by its certificate but by the handshake inside, which is bound to it.  So a
certificate that a rank signs itself is enough.  This module is imported by those who use TLS.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import ssl
import tempfile
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from sparsewire.drivers.tcp.handshake import AuthenticationError
from sparsewire.drivers.tcp.link import NOTHING, Link
from sparsewire.drivers.tcp.protection import TLS
from sparsewire.errors import InputError, MissingExtraError, WireError

__all__ = ["Encrypted", "Encryption"]

RECORD_HANDSHAKE = b"\x16"  # the first byte of every TLS connection; a hello of ours begins with another one
CHUNK_BYTES = 1 << 16  # shorter buffers are joined to this size before they are encrypted
VALID = timedelta(days=3650)  # the proof of the secret decides, and clocks of hosts may be wrong


class Encryption:
    """What this process needs for TLS on both ends of connections."""

    def __init__(self, certificate: bytes, accepting: ssl.SSLContext, dialling: ssl.SSLContext) -> None:
        self._hash = hashlib.sha256(certificate).digest()
        self._accepting, self._dialling = accepting, dialling

    @classmethod
    def of(cls, tls: bool | TLS) -> Encryption:
        return cls._with_files(tls) if isinstance(tls, TLS) else cls._self_signed()

    @classmethod
    def _with_files(cls, tls: TLS) -> Encryption:
        try:
            contexts = _contexts(Path(tls.certificate), Path(tls.key))
            for context in contexts:
                context.load_verify_locations(tls.authority)
                context.verify_mode = ssl.CERT_REQUIRED
            text = Path(tls.certificate).read_text()
            end = text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)  # the authority's may follow
            certificate = ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) : end])
        except (OSError, ValueError) as error:
            raise InputError(f"{tls} cannot be used: {error}") from error
        return cls(certificate, *contexts)

    @classmethod
    @functools.cache  # one certificate serves all groups of a process
    def _self_signed(cls) -> Encryption:
        certificate, private_key = _make_certificate()
        pem = ssl.DER_cert_to_PEM_cert(certificate).encode()
        with _file(pem) as certificate_file, _file(private_key) as key_file:  # OpenSSL reads files only
            return cls(certificate, *_contexts(certificate_file, key_file))

    def start(self, link: Link) -> Generator[memoryview, None, bytes]:
        """Encrypt the connection from here on; returns the hash of the acceptor's certificate.

        The acceptor does not know whether the other end will encrypt as well, and sees it by the first byte.
        """
        accepts = link.dialled is None
        if accepts and not (yield from _begins_tls(link.sock)):
            return b""
        context = self._accepting if accepts else self._dialling
        try:
            encrypted = context.wrap_socket(
                link.sock, server_side=accepts, do_handshake_on_connect=False, suppress_ragged_eofs=True
            )
            link.sock = Encrypted(encrypted)
            while True:
                try:
                    encrypted.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    yield NOTHING
        except ssl.SSLEOFError as error:
            raise ConnectionResetError(str(error)) from error
        except ssl.SSLError as error:
            who = "a connection" if accepts else f"rank {link.dialled}"
            raise AuthenticationError(f"TLS with {who} failed: {_reason(error)}") from error
        if accepts:
            return self._hash
        shown = encrypted.getpeercert(binary_form=True)
        assert shown is not None
        return hashlib.sha256(shown).digest()


class Encrypted:
    """The calls of a non-blocking socket that a ``Link`` uses, with TLS in between."""

    def __init__(self, encrypted: ssl.SSLSocket) -> None:
        self._socket = encrypted

    def fileno(self) -> int:
        return self._socket.fileno()

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        """Sends the beginning of what the buffers have.

        OpenSSL wants an attempt that failed to be repeated with the same bytes, and maybe more.  The
        beginning of the queue stays the same until it is sent, so that is what it gets.
        """
        first = memoryview(buffers[0])
        chunk = first[:CHUNK_BYTES] if len(first) >= CHUNK_BYTES else _joined(buffers)
        try:
            return self._socket.send(chunk)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: memoryview) -> int:
        """Fills the buffer as far as possible: nothing that was decrypted may wait here for the selector."""
        received = 0
        try:
            while received < len(buffer):
                count = self._socket.recv_into(buffer[received:])
                if not count:
                    break
                received += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not received:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            raise WireError(f"what arrived is not what was encrypted: {_reason(error)}") from error
        return received

    def close(self) -> None:
        self._socket.close()


def _begins_tls(sock: socket.socket) -> Generator[memoryview, None, bool]:
    while True:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            yield NOTHING
            continue
        if not first:
            raise ConnectionResetError("the other end closed the connection")
        return first == RECORD_HANDSHAKE


def _joined(buffers: Sequence[Any]) -> bytes:
    """The first buffers, as many as fit into a chunk."""
    total, count = 0, 0
    for buffer in buffers:
        total += len(buffer)
        if total > CHUNK_BYTES and count:
            break
        count += 1
    return b"".join(buffers[:count])


def _reason(error: ssl.SSLError) -> str:
    return str(error.reason or error).lower().replace("_", " ")


# -- certificates --------------------------------------------------------------------------------


def _contexts(certificate: Path, key: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """How connections are accepted, and how they are dialled."""
    accepting, dialling = (
        ssl.SSLContext(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    )
    for context in (accepting, dialling):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the handshake inside proves more
        context.load_cert_chain(certificate, key)
    accepting.num_tickets = 0  # sessions are not resumed
    return accepting, dialling


def _make_certificate() -> tuple[bytes, bytes]:
    """A certificate of a new key on the curve P-256, in DER, and the key in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingExtraError.of("cryptography", "tls") from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sparsewire")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .sign(key, hashes.SHA256())
    )
    private_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.DER), private_key


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[Path]:
    """A file that only this user can read, and that is gone afterwards."""
    descriptor, path = tempfile.mkstemp(prefix="sparsewire-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        yield Path(path)
    finally:
        Path(path).unlink()
