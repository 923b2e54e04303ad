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
    """What one rank sent and received during a collective; bytes include the headers of frames."""

    rounds: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0


class Driver(Protocol):
    """Runs scripts for one rank.  All ranks call in the same order, and from one thread at a time."""

    rank: int
    size: int
    aggregators: int  # how many of the ranks, the last ones, only aggregate
    index_price: float  # how many bytes coding an index has to save; see ``coding.indices``

    def run(self, script: Steps[T], call: Call, timeout: float) -> tuple[T, Traffic]:
        """Run one collective to its end; an error is raised on every rank."""

    def reserve(self) -> int:
        """The number of the next collective, which may be started or refused later than the ones after it."""

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
        """Wait for the network once, at most ``timeout`` seconds, and advance what can go on."""

    def wake(self) -> None:
        """End another thread's ``progress`` soon."""

    def refuse(self, error: SparsewireError, number: int | None = None) -> None:
        """Use one collective to tell all ranks that this rank cannot take part in it, and why."""

    @property
    def kind(self) -> tuple[str, str]:
        """The transport's name, and which of several networks it uses."""

    def invite(self) -> bytes:
        """What ranks of a new group have to know of this one."""

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Driver:
        """The driver of a new group of these ranks, this one among them; everybody's invitations by rank."""

    def close(self) -> None:
        """Release every resource; may be called twice."""


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
        """Is all of it sent?"""

    def keep(self) -> None:
        """Copy what is not sent yet: after a failed call, the caller may write to its arrays."""


class Transport(Protocol):
    """Moves messages between ranks, in ``post`` and ``poll`` only; those of a pair keep their order."""

    kind: tuple[str, str]  # its name, and which of several networks it uses
    lost: dict[int, str]  # ranks that are gone, and how that was noticed

    def attach(
        self, on_message: Callable[[int, Message], None], on_error: Callable[[SparsewireError], None]
    ) -> None:
        """``poll`` calls these: with each message that arrives, and with the error for other bytes."""

    def post(self, peers: Sequence[int], buffers: list[Any]) -> Sequence[Outgoing]:
        """Begin to send the same message to each of the peers."""

    def poll(self, timeout: float) -> None:
        """Wait for the network once, and do what it allows."""

    def wake(self) -> None:
        """End another thread's ``poll`` soon."""

    def reachable(self, peer: int) -> bool:
        """Can a message be sent to it?"""

    def watch(self, peer: int) -> None:
        """Make sure that the peer's end is noticed."""

    def hint(self) -> str:
        """What else the message of a time-out should mention."""

    def invite(self) -> bytes:
        """As ``Driver.invite``."""

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Transport:
        """As ``Driver.split``."""

    def close(self, in_order: bool = True) -> None:
        """Release every resource; may be called twice.  ``in_order`` says that no collective has failed."""
