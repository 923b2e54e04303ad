"""All ranks in one process, in virtual time: what a network of any size would do, with the real data.

The model: a message occupies its sender's NIC for ``overhead + bytes / bandwidth``, travels for
``latency``, and occupies its receiver's NIC for as long as the sender's, starting when its first byte
arrives or when that NIC is free.  A NIC sends one message at a time and receives one at a time, and both
directions are independent.  Computing is free.  The same scripts give the same times, always.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparsewire import wire
from sparsewire.drivers._base import Execution, Traffic, check_finished, check_peer
from sparsewire.model import Network
from sparsewire.steps import Send, Steps

__all__ = ["Simulation", "run"]

T = TypeVar("T")


@dataclass(frozen=True)
class Simulation(Generic[T]):
    """What came out, when the last rank was done, when each was, and what each moved."""

    results: list[T]
    seconds: float
    finished_at: list[float]
    traffic: list[Traffic]


def run(scripts: Sequence[Steps[T]], network: Network) -> Simulation[T]:
    """Run ``scripts[r]`` as rank r, all starting at time 0."""
    world = _World([Execution(script) for script in scripts], network)
    world.run()
    check_finished(world.executions)
    results = [execution.result for execution in world.executions]
    return Simulation(results, max(world.finished_at), world.finished_at, world.traffic)


class _World(Generic[T]):
    def __init__(self, executions: list[Execution[T]], network: Network) -> None:
        self.executions = executions
        self.traffic = [Traffic() for _ in executions]
        self.finished_at = [0.0] * len(executions)
        self._network = network
        self._sender_free = [0.0] * len(executions)
        self._receiver_free = [0.0] * len(executions)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._scheduled = 0  # events of one time happen in the order in which they were made

    def run(self) -> None:
        for rank in range(len(self.executions)):
            self._progress(rank, 0.0)
        while self._events:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
        for traffic, execution in zip(self.traffic, self.executions, strict=True):
            traffic.rounds = execution.rounds

    def _at(self, time: float, happen: Callable[[float], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (time, self._scheduled, happen))

    def _progress(self, rank: int, now: float) -> None:
        execution = self.executions[rank]
        if execution.done:
            return
        for send in execution.advance():
            check_peer(send.peer, rank, len(self.executions))
            self._send(rank, send, now)
        if execution.done:
            self.finished_at[rank] = max(now, self._sender_free[rank])

    def _send(self, rank: int, send: Send, now: float) -> None:
        nbytes = wire.size(send.payload)
        self.traffic[rank].messages_sent += 1
        self.traffic[rank].bytes_sent += nbytes
        busy = self._network.seconds(1, nbytes)
        start = max(now, self._sender_free[rank])
        self._sender_free[rank] = start + busy
        first_byte = start + self._network.latency
        self._at(first_byte, lambda now: self._receive(rank, send, nbytes, now))

    def _receive(self, source: int, send: Send, nbytes: int, now: float) -> None:
        busy = self._network.seconds(1, nbytes)
        end = max(now, self._receiver_free[send.peer]) + busy
        self._receiver_free[send.peer] = end
        self.traffic[send.peer].messages_received += 1
        self.traffic[send.peer].bytes_received += nbytes
        self._at(end, lambda now: self._deliver(source, send, now))

    def _deliver(self, source: int, send: Send, now: float) -> None:
        self.executions[send.peer].deliver(source, send.payload)
        self._progress(send.peer, now)
