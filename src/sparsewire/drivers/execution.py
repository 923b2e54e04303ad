"""A script in progress: the contract of ``yield``, without any I/O.

A driver moves the messages and tells the ``Execution`` what has arrived.  The messages of all drivers pass
here, so here they are compared with what the script expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from sparsewire.errors import SparsewireError
from sparsewire.steps import Recv, RecvAny, Send, Steps

__all__ = ["DeadlockError", "Execution", "UnreadMessageError", "check_finished", "check_peer"]

T = TypeVar("T")


class DeadlockError(SparsewireError):
    """Ranks wait for messages that nobody sends."""


class UnreadMessageError(SparsewireError):
    """A script ended while messages for it were on their way."""


class Execution(Generic[T]):
    """One rank's script in progress.

    ``advance`` resumes the script and gives the sends to start, until there are none; the driver hands over
    what arrives with ``deliver``.

    >>> def ask(): return (yield [Send(1, "question"), Recv(1)])
    >>> execution = Execution(ask())
    >>> execution.advance()
    [Send(peer=1, payload='question')]
    >>> execution.deliver(1, "answer"); execution.advance()
    []
    >>> execution.result
    ['answer']
    """

    def __init__(self, script: Steps[T]) -> None:
        self.done = False
        self.result: T
        self.rounds = 0
        self._script = script
        self._inbox: list[tuple[int, Any]] = []  # arrived and not asked for yet, in order of arrival
        self._open: list[tuple[int, Recv | RecvAny]] = []  # receives of this round still unanswered
        self._received: list[Any] = []
        self._started = False

    @property
    def waiting_for(self) -> set[int] | None:
        """The ranks whose messages this round still needs; None means anybody's."""
        awaited = [{step.peer} if isinstance(step, Recv) else {*step.peers} for _, step in self._open]
        return set().union(*awaited) if all(awaited) else None

    @property
    def unread(self) -> list[int]:
        """The ranks whose messages have come and were not asked for."""
        return [source for source, _ in self._inbox]

    def deliver(self, source: int, payload: Any) -> None:
        self._inbox.append((source, payload))

    def advance(self) -> list[Send]:
        """The next sends of the script, which resumes while its round is complete; none if it has to wait.

        It returns after each round that sends: messages leave while the script computes the next ones.
        """
        sends: list[Send] = []
        while not sends and not self.done and self._round_is_complete():
            try:
                steps = self._script.send(self._received) if self._started else next(self._script)
            except StopIteration as end:
                self.done, self.result = True, end.value
                break
            self._started = True
            self.rounds += 1
            sends = [step for step in steps if isinstance(step, Send)]
            receives = [step for step in steps if not isinstance(step, Send)]
            self._open = list(enumerate(receives))
            self._received = [None] * len(receives)
        return sends

    def _round_is_complete(self) -> bool:
        still_open = []
        for slot, step in self._open:
            match = self._match(step)
            if match is None:
                still_open.append((slot, step))
            else:
                source, payload = self._inbox.pop(match)
                if step.expected is not None:
                    step.expected.check(source, payload)
                self._received[slot] = (source, payload) if isinstance(step, RecvAny) else payload
        self._open = still_open
        return not self._open

    def _match(self, step: Recv | RecvAny) -> int | None:
        peers = (step.peer,) if isinstance(step, Recv) else step.peers
        for position, (source, _) in enumerate(self._inbox):
            if source in peers or not peers:
                return position
        return None

    def close(self) -> None:
        self._script.close()


def check_peer(peer: int, rank: int, size: int) -> None:
    """Raises unless ``rank`` may send to ``peer``."""
    if peer == rank or not 0 <= peer < size:
        raise SparsewireError(
            f"rank {rank} sends to rank {peer}; there are ranks 0..{size - 1} and no self-sends"
        )


def check_finished(executions: Sequence[Execution[Any]]) -> None:
    """Raises unless all scripts have ended and all messages were read."""
    stuck = {rank: e.waiting_for for rank, e in enumerate(executions) if not e.done}
    if stuck:
        raise DeadlockError(f"ranks wait for messages that nobody sends (rank: awaited): {stuck}")
    unread = {rank: e.unread for rank, e in enumerate(executions) if e.unread}
    if unread:
        raise UnreadMessageError(f"scripts ended with messages unread (rank: from): {unread}")
