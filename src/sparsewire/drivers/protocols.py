"""What a driver and a transport promise: the interfaces that the engine and its transports implement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sparsewire.coding.call import Call
from sparsewire.coding.frame import Message
from sparsewire.errors import InputError, SparsewireError
from sparsewire.steps import Steps

__all__ = ["Driver", "NeverGrows", "Outgoing", "ServingDriver", "Started", "Traffic", "Transport"]

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


class NeverGrows:
    """The part of a transport whose groups take nobody in."""

    @property
    def rendezvous(self) -> tuple[str, int]:
        raise InputError(
            "this group takes nobody in: its ranks are not connected by TCP. Start it with sparsewire run, "
            "or with RANK, WORLD_SIZE of 2 or more, MASTER_ADDR and MASTER_PORT"
        )

    def newcomers(self, at_least: int, timeout: float) -> list[str]:
        raise AssertionError(self.rendezvous)

    def grow(self, invitations: Sequence[bytes], newcomers: Sequence[str]) -> Any:
        raise AssertionError(self.rendezvous)


class Driver(Protocol):
    """Runs scripts for one rank.  All ranks call in the same order, and from one thread at a time."""

    rank: int
    size: int
    aggregators: int  # how many of the ranks, the last ones, only aggregate
    index_price: float  # how many bytes coding an index has to save; see ``coding.indices``
    late: SparsewireError | None  # why a collective failed elsewhere that had ended well at this rank

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

    def take_late(self) -> SparsewireError:
        """The error ``late``, which the caller raises, and which is no longer kept."""

    @property
    def kind(self) -> tuple[str, str]:
        """The transport's name, and which of several networks it uses."""

    def invite(self) -> bytes:
        """What ranks of a new group have to know of this one."""

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Driver:
        """The driver of a new group of these ranks, this one among them; everybody's invitations by rank."""

    def shrink(self, timeout: float) -> tuple[Driver, list[int]]:
        """The driver of the ranks that are left, and their ranks here, in order.  This driver is closed."""

    @property
    def rendezvous(self) -> tuple[str, int]:
        """Where newcomers find the group; InputError where there can be none."""

    def newcomers(self, at_least: int, timeout: float) -> list[str]:
        """The invitations of those who wait at rank 0; it waits for ``at_least`` so many, for a while."""

    def grow(self, invitations: Sequence[bytes], newcomers: Sequence[str]) -> Driver:
        """The driver of this group and those who are taken in.  This driver is closed."""

    def break_down(self, error: BaseException) -> None:
        """Fail all that is in flight, here and at the other ranks, because of what none of it has caused."""

    def close(self, why: str = ...) -> None:
        """Release every resource; may be called twice.  Others are told that this rank leaves, and why."""


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

    @property
    def met(self) -> Collection[int]:
        """The ranks with which there is or was a connection."""

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

    def pause(self, peer: int) -> None:
        """Receive nothing more from the peer for now, so that it has to wait."""

    def resume(self, peer: int) -> None:
        """Receive again what the peer sends."""

    def hint(self) -> str:
        """What else the message of a time-out should mention."""

    def invite(self) -> bytes:
        """As ``Driver.invite``."""

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Transport:
        """As ``Driver.split``."""

    def shrink(self, timeout: float) -> tuple[Transport, list[int]]:
        """As ``Driver.shrink``."""

    @property
    def rendezvous(self) -> tuple[str, int]:
        """As ``Driver.rendezvous``."""

    def newcomers(self, at_least: int, timeout: float) -> list[str]:
        """As ``Driver.newcomers``."""

    def grow(self, invitations: Sequence[bytes], newcomers: Sequence[str]) -> Transport:
        """As ``Driver.grow``."""

    def close(self, in_order: bool = True) -> None:
        """Release every resource; may be called twice.  ``in_order`` says that no collective has failed."""
