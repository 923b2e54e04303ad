"""Messages for collectives to come, and a limit on what may wait of each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from contextlib import contextmanager

from sparsewire.coding.frame import Message
from sparsewire.drivers.protocols import Transport

__all__ = ["Backlog"]

# Some large messages: a rank that is ahead by one or two collectives does not have to wait, and one that runs
# away does.
LIMIT_BYTES = 64 << 20


class Backlog:
    """Keeps messages by collective; ranks whose messages exceed the limit can be paused."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._messages: defaultdict[int, list[tuple[int, Message]]] = defaultdict(list)
        self._bytes: defaultdict[int, int] = defaultdict(int)  # by rank
        self._paused: set[int] = set()  # ranks whose messages are not received for now
        self._receives_all = False

    def __iter__(self) -> Iterator[int]:
        """The numbers of the collectives that messages wait for."""
        return iter([*self._messages])

    def keep(self, source: int, message: Message) -> None:
        self._messages[message.envelope.collective].append((source, message))
        self._bytes[source] += message.nbytes

    def take(self, number: int) -> list[tuple[int, Message]]:
        """The messages for a collective, which begins now, and their sources."""
        taken = self._messages.pop(number, [])
        for source, message in taken:
            self._bytes[source] -= message.nbytes
        if self._paused:
            self.resume({peer for peer in self._paused if self._bytes[peer] <= LIMIT_BYTES // 2})
        return taken

    def exceeds(self, source: int) -> bool:
        return self._bytes[source] > LIMIT_BYTES

    def pause(self, source: int) -> None:
        """Receive no more from a rank: then it cannot send, and waits.  Its end is noticed when needed."""
        if not self._receives_all:
            self._paused.add(source)
            self._transport.pause(source)

    def resume(self, peers: Set[int]) -> None:
        for peer in peers & self._paused:
            self._paused.discard(peer)
            self._transport.resume(peer)

    @contextmanager
    def receiving_all(self) -> Iterator[None]:
        """Pause nobody inside: reports of failures come behind other messages."""
        before, self._receives_all = self._receives_all, True
        self.resume({*self._paused})
        try:
            yield
        finally:
            self._receives_all = before
