"""Does communication hide behind computing?  Calls in flight, a numpy loop, and both at once.

communication   start all calls, wait for all
computing       the loop, which takes about as long
together        start all calls, run the loop, wait for all
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sparsewire.bench.cases import Case, Values
from sparsewire.bench.contenders import Together, as_array, input_vector
from sparsewire.bench.timing import Contender, Moved
from sparsewire.communicator import Communicator

__all__ = ["CALLS", "contenders"]

CALLS = 8
SIDE = 192  # of the loop's square matrices: a product takes a fraction of a millisecond
TRIALS = 5  # to find out how long communication and a pass of the loop take


class InFlight:
    """``CALLS`` allreduces at once; ``beside`` runs while they are on their way."""

    precision = "exact"

    def __init__(self, name: str, comm: Communicator, vector: Any, beside: Callable[[], None]) -> None:
        self.name = name
        self._comm, self._vector, self._beside = comm, vector, beside
        self._totals: list[Any] = []

    def prepare(self) -> None:
        """The input is not written to."""

    def run(self) -> None:
        requests = [self._comm.iallreduce(self._vector, name=f"call {call}") for call in range(CALLS)]
        self._beside()
        self._totals = [request.wait() for request in requests]

    def moved(self) -> Moved:
        return Moved()

    def results(self) -> Iterable[Values]:
        yield from map(as_array, self._totals)


class Loop:
    """Layer after layer of a small network, on one thread."""

    name = "computing"
    precision = "exact"

    def __init__(self) -> None:
        chance = np.random.default_rng(0)
        self._weights, self._input = chance.standard_normal((2, SIDE, SIDE), np.float32)
        self.passes = 1

    def prepare(self) -> None:
        """Nothing is kept."""

    def run(self) -> None:
        layer = self._input
        for _ in range(self.passes):
            layer = np.maximum(self._weights @ layer, 0) / np.float32(SIDE)

    def moved(self) -> Moved:
        return Moved()

    def results(self) -> Iterable[Values]:
        """No sum to check."""
        return ()


def contenders(comm: Communicator, case: Case, compute_ratio: float) -> list[Contender]:
    """The three, with a loop that takes ``compute_ratio`` times as long as the communication."""
    vector, loop = input_vector(case, comm.rank), Loop()
    alone = InFlight("communication", comm, vector, lambda: None)
    passes = compute_ratio * _seconds(alone, comm) / _seconds(loop, comm)
    [loop.passes] = Together(comm).agree([max(1, round(passes))])
    return [alone, loop, InFlight("together", comm, vector, loop.run)]


def _seconds(contender: Contender, comm: Communicator) -> float:
    times = []
    for _ in range(1 + TRIALS):  # the first one connects
        comm.barrier()
        start = time.perf_counter()
        contender.run()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
