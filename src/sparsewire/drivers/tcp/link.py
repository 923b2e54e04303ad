"""One connection: what waits to be sent, the reader that says where received bytes go, and how it begins."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from sparsewire.drivers.tcp.handshake import Dialogue, Proven, StartTLS
from sparsewire.drivers.tcp.tags import Tags

if TYPE_CHECKING:
    from sparsewire.drivers.tcp.tls import Encryption

__all__ = ["Link", "Outgoing", "Reader", "converse", "ignored"]

IOV_MAX = 512  # buffers in one gather write; POSIX systems allow 1024

# Yields buffers to be filled completely.  An empty one means: go on when there is something to be read.
Reader: TypeAlias = Generator[memoryview, None, None]
NOTHING = memoryview(b"")


class Outgoing:
    """A message, or the part of it that is not sent yet, in the queue of a connection."""

    __slots__ = ("buffers", "is_tagged", "peer")

    def __init__(self, peer: int, buffers: deque[Any]) -> None:
        self.peer = peer
        self.buffers = buffers
        self.is_tagged = False

    @property
    def done(self) -> bool:
        return not self.buffers

    def keep(self) -> None:
        self.buffers = deque(bytes(buffer) for buffer in self.buffers)


class Link:
    """One connection; without a socket it is one that could not be made."""

    def __init__(self, sock: Any, dialled: int | None = None, host: str = "") -> None:
        self.sock = sock  # a socket, or with TLS something with the same calls
        self.host = host  # from which it was accepted
        self.open = sock is not None
        self.descriptor = -1 if sock is None else sock.fileno()  # which TLS takes over from the socket
        self.since = time.monotonic()
        self.attempts = 1
        self.peer: int | None = None  # the rank at the other end, once it has proved that
        self.dialled = dialled  # the rank that we dialled; None if the connection was accepted
        self.reader: Reader
        self.wanted = NOTHING
        self.outgoing: deque[Outgoing] = deque()
        self.tags: Tags | None = None  # of what is sent, if messages have tags
        self.watched = False  # does the selector wait until it takes more bytes?
        self.paused = False  # is nothing read from it for now?
        self.events = 0  # what the selector waits for

    def send(self) -> bool:
        """Write until all is sent (True) or the connection takes no more (False)."""
        if self.peer is None or not self.open:
            return True
        if self.tags is not None:
            self._add_tags(self.tags)
        while self.outgoing:
            waiting = chain.from_iterable(outgoing.buffers for outgoing in self.outgoing)
            try:
                self._consume(self.sock.sendmsg([*islice(waiting, IOV_MAX)]))
            except BlockingIOError:
                return False
        return True

    def _add_tags(self, tags: Tags) -> None:
        """Only now, because a tag says which message of this connection it belongs to."""
        for outgoing in self.outgoing:
            if not outgoing.is_tagged:
                outgoing.buffers.append(tags.of(outgoing.buffers))
                outgoing.is_tagged = True

    def _consume(self, count: int) -> None:
        """Remove the first ``count`` bytes from the queue."""
        while self.outgoing:
            buffers = self.outgoing[0].buffers
            while buffers and count >= len(buffers[0]):
                count -= len(buffers.popleft())
            if buffers:
                buffers[0] = memoryview(buffers[0])[count:]
                return
            self.outgoing.popleft()

    def close(self) -> None:
        self.open = False
        if self.sock is not None:
            self.sock.close()


def converse(
    link: Link, dialogue: Dialogue, encryption: Encryption | None
) -> Generator[memoryview, None, Proven]:
    """Carry a handshake's dialogue over a connection; returns what was proved."""
    try:
        step = next(dialogue)
        while True:
            if isinstance(step, bytes):
                link.sock.sendmsg([step])  # some hundred bytes into an empty buffer: never partial
                step = next(dialogue)
            elif isinstance(step, StartTLS):
                assert encryption is not None
                step = dialogue.send((yield from encryption.start(link)))
            else:
                buffer = bytearray(step)
                yield memoryview(buffer)
                step = dialogue.send(bytes(buffer))
    except StopIteration as end:
        proven: Proven = end.value
        return proven


def ignored() -> Reader:
    buffer = memoryview(bytearray(1 << 16))
    while True:
        yield buffer
