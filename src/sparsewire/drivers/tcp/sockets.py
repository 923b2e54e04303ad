"""Sockets: listening, dialling, how long a silent network is tolerated, and how many there may be."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator

from sparsewire.errors import CollectiveTimeout, InputError, TransportError

__all__ = [
    "Address",
    "allow_descriptors",
    "descriptors_used_up",
    "dial",
    "keep_alive",
    "listen",
    "naming_descriptors",
    "out_of_descriptors",
    "reach",
]

Address = tuple[str, int]

LONGEST_SILENCE_S = 3600.0  # what "no time-out" means to the kernel
DESCRIPTORS = 4096  # as many as a small job may need, with its groups and with strangers
DESCRIPTORS_PER_RANK = 8  # two connections with each rank, in each of several groups


def listen(address: Address) -> socket.socket:
    """A socket that listens at this address alone; port 0 is any free one."""
    host, port = address
    try:
        with naming_descriptors():
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(where[:2], family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE and port
        raise InputError(
            f"cannot listen at {host}:{port}, which MASTER_ADDR and MASTER_PORT name: {error}"
            + ("; does another process have RANK=0, or use this port?" if taken else "")
        ) from error
    listener.setblocking(False)
    return listener


def reach(address: Address, deadline: float) -> tuple[socket.socket, Address]:
    """A connection to rank 0, dialled until it is there, and where that is."""
    host, port = address
    started = time.monotonic()
    while True:
        try:
            with naming_descriptors():
                connected = socket.create_connection(address, timeout=max(0.05, deadline - time.monotonic()))
            with contextlib.suppress(OSError):
                return connected, connected.getpeername()[:2]
            connected.close()  # it has ended already
        except socket.gaierror as error:
            raise InputError(f"MASTER_ADDR={host} cannot be resolved: {error}") from error
        except OSError as error:
            waited = time.monotonic() - started
            if time.monotonic() > deadline:
                raise CollectiveTimeout(
                    f"rank 0 did not arrive within {waited:.1f} s at {host}:{port}: {error}"
                ) from error
            time.sleep(0.02)


def dial(address: Address) -> socket.socket:
    """A connection that is being made; if it is refused, reading the greeting fails."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    dialled = socket.socket(family, socket.SOCK_STREAM)
    dialled.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        dialled.connect_ex(address)
    return dialled


# -- silence -------------------------------------------------------------------------------------


def keep_alive(sock: socket.socket, timeout: float, serves: bool) -> None:
    """Have the kernel end a connection whose other end does not answer.

    A rank that ``serves`` has no time-outs of its own, so the kernel asks where nothing is on its way, limits
    how long sent bytes may wait, and ends the connection within ``timeout`` seconds.  A worker's calls have
    time-outs, which come first and know whom to name; a rank that computes for long without reading must not
    be taken for a lost one.  So there the kernel only asks, and has twice the time.
    """
    limit = (0.75 if serves else 2.0) * min(timeout, LONGEST_SILENCE_S)
    idle = max(1, int(limit / 2))
    interval = max(1, int(limit / 8))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle),
        ("TCP_KEEPINTVL", interval),
        ("TCP_KEEPCNT", max(1, int((limit - idle) / interval))),
        ("TCP_USER_TIMEOUT", max(1000, int(limit * 1000)) if serves else 0),
    ):
        if hasattr(socket, name):  # systems other than Linux have only some of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# -- descriptors ---------------------------------------------------------------------------------


def allow_descriptors(size: int) -> None:
    """Raise the soft limit of this process to what a job of ``size`` ranks may need, within the hard one."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS + DESCRIPTORS_PER_RANK * size
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then the limit stays, and may be enough
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def naming_descriptors() -> Iterator[None]:
    """Sockets are made inside: if descriptors run out there, the error says so."""
    try:
        yield
    except OSError as error:
        if not out_of_descriptors(error):
            raise
        raise TransportError(descriptors_used_up()) from error


def out_of_descriptors(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


def descriptors_used_up() -> str:
    limit = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else "unknown"
    return f"this process has no free file descriptors (limit {limit}): raise it with ulimit -n"
