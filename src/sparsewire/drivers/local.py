"""All ranks in one process: the driver for tests, and for a process that is alone.

Messages are delivered one at a time, in an order that is drawn from a seed: every order that a network could
produce can be produced here, and repeated.  If a script waits for a message that nobody sends, or leaves one
unread, the error names the ranks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from sparsewire.coding import frame
from sparsewire.drivers.execution import Execution, check_finished, check_peer
from sparsewire.drivers.protocols import NeverGrows, Traffic
from sparsewire.steps import Steps
from sparsewire.vector import Array, SparseVector

__all__ = ["Alone", "run"]

T = TypeVar("T")


def run(scripts: Sequence[Steps[T]], seed: int = 0) -> tuple[list[T], list[Traffic]]:
    """Every rank's result and traffic; ``scripts[r]`` is what rank r runs."""
    chance = random.Random(seed)
    executions = [Execution(script) for script in scripts]
    traffic = [Traffic() for _ in scripts]
    queues: dict[tuple[int, int], list[Any]] = {}  # (source, target) -> messages, in the order sent

    def progress(rank: int) -> None:
        while sends := executions[rank].advance():
            for send in sends:
                check_peer(send.peer, rank, len(scripts))
                queues.setdefault((rank, send.peer), []).append(_frozen(send.payload))
                traffic[rank].messages_sent += 1
                traffic[rank].bytes_sent += frame.size(send.payload)

    for rank in chance.sample(range(len(scripts)), len(scripts)):
        progress(rank)
    while queues:
        source, target = pair = chance.choice(list(queues))
        payload = queues[pair].pop(0)
        if not queues[pair]:
            del queues[pair]
        traffic[target].messages_received += 1
        traffic[target].bytes_received += frame.size(payload)
        executions[target].deliver(source, payload)
        progress(target)

    for rank, execution in enumerate(executions):
        traffic[rank].rounds = execution.rounds
    check_finished(executions)
    return [execution.result for execution in executions], traffic


def _frozen(payload: Any) -> Any:
    """The payload as read-only views: a receiver that writes to it is caught."""
    if isinstance(payload, list):
        return [_frozen(piece) for piece in payload]
    if not isinstance(payload, SparseVector):
        return payload
    indices = None if payload.indices is None else _read_only(payload.indices)
    piece = SparseVector.piece(
        payload.length, payload.start, payload.stop, indices, _read_only(payload.values)
    )
    piece.packed, piece.coded = payload.packed, payload.coded
    return piece


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


class Alone(NeverGrows):
    """The transport of a group of one rank: there is nobody to send to."""

    kind = ("local", "")

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        self.met = ()

    def attach(self, *_: object) -> None:
        """Nothing will ever arrive."""

    def post(self, peers: Sequence[int], buffers: list[Any]) -> list[Any]:
        return []

    def poll(self, timeout: float) -> None:
        """Nothing happens."""

    def wake(self) -> None:
        """No poll ever waits."""

    def reachable(self, peer: int) -> bool:
        return False

    def watch(self, peer: int) -> None:
        """There is no peer to watch."""

    def pause(self, peer: int) -> None:
        """There is no peer to pause."""

    def resume(self, peer: int) -> None:
        """There is no peer to resume."""

    def hint(self) -> str:
        return ""

    def invite(self) -> bytes:
        return b""

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Alone:
        return Alone()

    def shrink(self, timeout: float) -> tuple[Alone, list[int]]:
        return Alone(), [0]

    def close(self, in_order: bool = True) -> None:
        """There is nothing to close."""
