"""What every driver shares: a script in progress, and what it cost.

``Execution`` knows the contract of ``yield`` and no I/O; a driver moves the messages and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from sparsewire.errors import SparsewireError
from sparsewire.steps import Recv, RecvAny, Send, Steps
from sparsewire.wire import Call, Message

__all__ = [
    "DeadlockError",
    "Driver",
    "Execution",
    "Outgoing",
    "ServingDriver",
    "Started",
    "Traffic",
    "Transport",
    "UnreadMessageError",
    "check_finished",
    "check_peer",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass
class Traffic:
    """What one rank moved during a collective; bytes are whole frames, headers included."""

    rounds: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0


class DeadlockError(SparsewireError):
    """Ranks wait for messages that nobody sends."""


class UnreadMessageError(SparsewireError):
    """A script ended while messages for it were on their way."""


class Driver(Protocol):
    """Runs scripts for one rank.  All ranks call in the same order; one thread at a time is inside."""

    rank: int
    size: int
    aggregators: int  # how many of the ranks, the last ones, only aggregate
    index_price: float  # how many bytes coding an index has to save; see ``support``

    def run(self, script: Steps[T], call: Call, timeout: float) -> tuple[T, Traffic]:
        """Run one collective to its end; an error is raised on every rank."""

    def reserve(self) -> int:
        """The number of the next collective, to be started or refused later than others that follow."""

    def start(
        self,
        script: Steps[T],
        call: Call,
        timeout: float,
        on_end: Callable[[Started[Any]], None] = ...,
        number: int | None = None,
    ) -> Started[T]:
        """Begin a collective, which goes on in ``progress``; ``on_end`` is called with it at its end."""

    @property
    def idle(self) -> bool:
        """Has every collective ended that was started?"""

    def progress(self, timeout: float) -> None:
        """Wait for the network once, at most so many seconds, and do what it allows."""

    def wake(self) -> None:
        """End another thread's ``progress`` soon."""

    def refuse(self, error: SparsewireError, number: int | None = None) -> None:
        """Spend one collective on telling everybody that this rank cannot take part, and why."""

    @property
    def kind(self) -> tuple[str, str]:
        """The transport's name, and which of several networks it uses."""

    def invite(self) -> bytes:
        """What ranks of a new group have to know of this one."""

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Driver:
        """The driver of a new group of these ranks, this one among them; everybody's invitations by rank."""

    def close(self) -> None:
        """Let go of every resource; may be called twice."""


@runtime_checkable
class ServingDriver(Driver, Protocol):
    """The driver of a rank that only aggregates."""

    def serve(self, script_of: Callable[[Call], Steps[None]]) -> None:
        """Run this script in every collective that speaks to this rank, until all workers have left."""


class Started(Protocol[T_co]):
    """A collective that was started."""

    ended: bool

    def outcome(self) -> tuple[T_co, Traffic]:
        """The script's result and what it moved, or the error, once it has ended."""


class Outgoing(Protocol):
    """A message on its way out."""

    peer: int

    @property
    def done(self) -> bool:
        """Has all of it left?"""

    def keep(self) -> None:
        """Copy what has not left yet: its owner may write to it after a failed call."""


class Transport(Protocol):
    """Moves messages between ranks, in ``post`` and ``poll`` only; those of a pair keep their order."""

    kind: tuple[str, str]  # its name, and which of several networks it uses
    lost: dict[int, str]  # ranks that are gone, and how we know

    def attach(
        self, on_message: Callable[[int, Message], None], on_error: Callable[[SparsewireError], None]
    ) -> None:
        """``poll`` calls these with each message that arrives, and for bytes that are none."""

    def post(self, peers: Sequence[int], buffers: list[Any]) -> Sequence[Outgoing]:
        """Begin to send the same message to each of the peers."""

    def poll(self, timeout: float) -> None:
        """Wait for the network once, and do what it allows."""

    def wake(self) -> None:
        """End another thread's ``poll`` soon."""

    def reachable(self, peer: int) -> bool:
        """Can it be told something?"""

    def watch(self, peer: int) -> None:
        """Make sure that the peer's end is noticed."""

    def hint(self) -> str:
        """What else is odd, to be added to the message of a time-out."""

    def invite(self) -> bytes:
        """As ``Driver.invite``."""

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Transport:
        """As ``Driver.split``."""

    def close(self, in_order: bool = True) -> None:
        """Let go of every resource; may be called twice.  ``in_order``: no collective has failed."""


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
        """Who sent messages that nobody asked for."""
        return [source for source, _ in self._inbox]

    def deliver(self, source: int, payload: Any) -> None:
        self._inbox.append((source, payload))

    def advance(self) -> list[Send]:
        """Resume the script, while its round is complete, until it sends something; none when it has to wait.

        What it sends can leave while it computes what it will send next.
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
    if peer == rank or not 0 <= peer < size:
        raise SparsewireError(
            f"rank {rank} sends to rank {peer}; there are ranks 0..{size - 1} and no self-sends"
        )


def check_finished(executions: Sequence[Execution[Any]]) -> None:
    stuck = {rank: e.waiting_for for rank, e in enumerate(executions) if not e.done}
    if stuck:
        raise DeadlockError(f"ranks wait for messages that nobody sends (rank: awaited): {stuck}")
    unread = {rank: e.unread for rank, e in enumerate(executions) if e.unread}
    if unread:
        raise UnreadMessageError(f"scripts ended with messages unread (rank: from): {unread}")
