"""All ranks in one process, in virtual time: what a network of any size would do, with the real data.

The model: a message occupies its sender's NIC for ``overhead + bytes / bandwidth``, travels for
``latency``, and occupies its receiver's NIC for as long as the sender's, starting when its first byte
arrives or when that NIC is free.  A NIC sends one message at a time and receives one at a time, and the two
directions are independent.  A rank has one CPU, which computes while messages travel: the work that a script
does before it yields delays what it sends then.  The same scripts always give the same times.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from sparsewire import work
from sparsewire.coding import frame
from sparsewire.cost import CostFigures
from sparsewire.drivers.execution import Execution, check_finished, check_peer
from sparsewire.drivers.protocols import Traffic
from sparsewire.steps import Send, Steps

__all__ = ["Simulation", "run"]

T = TypeVar("T")


@dataclass(frozen=True)
class Simulation(Generic[T]):
    """Every rank's result, the time when the last rank ended, when each ended, and what each moved."""

    results: list[T]
    seconds: float
    finished_at: list[float]
    traffic: list[Traffic]


class _Computed(NamedTuple):
    """A payload, and when its sender was done computing it."""

    payload: Any
    time: float


def run(scripts: Sequence[Steps[T]], network: CostFigures) -> Simulation[T]:
    """Run ``scripts[r]`` as rank r, all starting at time 0."""
    world = _World(scripts, network)
    world.run()
    check_finished(world.executions)
    results = [execution.result for execution in world.executions]
    return Simulation(results, max(world.finished_at), world.finished_at, world.traffic)


class _World(Generic[T]):
    """All ranks, their CPUs and NICs, and the events to come."""

    def __init__(self, scripts: Sequence[Steps[T]], network: CostFigures) -> None:
        self.executions = [Execution(self._computing(rank, script)) for rank, script in enumerate(scripts)]
        self.traffic = [Traffic() for _ in scripts]
        self.finished_at = [0.0] * len(scripts)
        self._network = network
        self._cpu_free = [0.0] * len(scripts)
        self._sender_free = [0.0] * len(scripts)
        self._receiver_free = [0.0] * len(scripts)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._scheduled = 0  # events that have the same time happen in the order in which they were made

    def run(self) -> None:
        for rank in range(len(self.executions)):
            self._progress(rank, 0.0)
        while self._events:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
        for traffic, execution in zip(self.traffic, self.executions, strict=True):
            traffic.rounds = execution.rounds

    def _computing(self, rank: int, script: Steps[T]) -> Steps[T]:
        """The same script, which keeps the rank's CPU busy, and says when each payload is computed."""
        received: Any = None
        while True:
            try:
                with work.measured() as meter:
                    steps = script.send(received)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._cpu_free[rank] += self._network.computing(meter.work)
            now = self._cpu_free[rank]
            received = yield [
                Send(step.peer, _Computed(step.payload, now)) if isinstance(step, Send) else step
                for step in steps
            ]

    def _at(self, time: float, happen: Callable[[float], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (time, self._scheduled, happen))

    def _progress(self, rank: int, now: float) -> None:
        execution = self.executions[rank]
        if execution.done:
            return
        self._cpu_free[rank] = max(now, self._cpu_free[rank])
        while sends := execution.advance():
            for send in sends:
                check_peer(send.peer, rank, len(self.executions))
                self._send(rank, Send(send.peer, send.payload.payload), send.payload.time)
        if execution.done:
            self.finished_at[rank] = max(self._cpu_free[rank], self._sender_free[rank])

    def _send(self, rank: int, send: Send, now: float) -> None:
        nbytes = frame.size(send.payload, self._network.index_price)
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
