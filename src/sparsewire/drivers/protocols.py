"""What a driver and a transport promise: the interfaces that the engine and its transports implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from sparsewire.coding.call import Call
from sparsewire.coding.frame import Message
from sparsewire.errors import SparsewireError
from sparsewire.steps import Steps

__all__ = ["Driver", "Outgoing", "ServingDriver", "Started", "Traffic", "Transport"]

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
