"""Measure what messages and computing cost on this communicator, by running the algorithms themselves.

Every algorithm of the table runs on a small grid of problems, in turns.  The time of a call is the slowest
rank's; the figures are those with which the cost functions come closest to all times.  Rank 0 fits, everybody
gets its figures.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.algorithms import ALGORITHMS
from sparsewire.choosing import calibration
from sparsewire.choosing.calibration import ASSUMED, Calibration, Fingerprint
from sparsewire.choosing.explain import figures
from sparsewire.choosing.fit import Sample, fit, predicted_over_measured
from sparsewire.coding.indices import best_form, decode_indices, encode_indices
from sparsewire.cost import CostFigures, Shape
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector

__all__ = ["measure", "report", "run_tune", "tune"]

# (what is done at the moment, problems done, problems in all): reports progress.
Tell: TypeAlias = Callable[[str, int, int], None]

# (length, density): small ones show latency and overhead, large ones bandwidth and computing.  The slowest
# come last, because a slow network may not get that far.
PROBLEMS = [
    *[(1 << 12, density) for density in (0.001, 0.1, 0.5)],
    *[(1 << 16, density) for density in (0.001, 0.01, 0.1, 0.5)],
    *[(1 << 20, density) for density in (0.0001, 0.001, 0.01, 0.1)],
    *[(1 << 22, density) for density in (0.001, 0.01, 0.1)],
    (1 << 20, 0.5),
    (1 << 22, 0.5),
]
BUDGET_S = 20.0
MOST_TURNS = 20
FEWEST_TURNS = 3
# Fits begin at figures that hide computing behind transfers and at figures that do not.
STARTS = [ASSUMED["tcp", True], ASSUMED["mpi", False]]
CODED = 1 << 15  # how many indices are coded to measure the time
HOPELESS = 4.0  # an algorithm that takes so many times the fastest's time is not measured again


class Tunable(Protocol):
    """What tuning calls of a communicator."""

    network: CostFigures  # what it chooses by

    @property
    def fingerprint(self) -> Fingerprint | None: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allreduce(self, x: SparseVector, *, algorithm: str) -> Any: ...

    def allgather(self, x: npt.NDArray[np.float64]) -> list[Any]: ...

    def broadcast(self, x: npt.NDArray[np.float64]) -> Any: ...

    def barrier(self) -> None: ...


def tune(comm: Tunable, *, budget_s: float = BUDGET_S, tell: Tell = lambda *_: None) -> CostFigures:
    """Measure the figures of this communicator, which from now on chooses by them; collective."""
    return _fit_together(comm, measure(comm, budget_s, tell))


def run_tune(comm: Tunable, *, budget_s: float = BUDGET_S, tell: Tell = lambda *_: None) -> str:
    """Tune and keep the figures for later jobs like this one; collective.

    Gives rank 0 a text that says what was found, and others an empty one.
    """
    samples = measure(comm, budget_s, tell)
    network = _fit_together(comm, samples)
    if comm.fingerprint is None:
        return ""
    file = calibration.save(comm.fingerprint, Calibration(network, time.time()))
    return f"{report(network, samples)}\nkept in {file}"


def report(network: CostFigures, samples: Sequence[Sample]) -> str:
    """The figures, and how far predictions with them are from what was measured."""
    lines = [f"  {name:<20} {text}" for name, text in figures(network)]
    lines.append(f"{'predicted / measured':<24} {'median':>8} {'lowest':>8} {'highest':>8}")
    for name in ALGORITHMS:
        ratios = predicted_over_measured(network, [s for s in samples if s.algorithm == name])
        if ratios:
            lines.append(
                f"  {name:<22} {statistics.median(ratios):>8.2f} {min(ratios):>8.2f} {max(ratios):>8.2f}"
            )
    return "\n".join(lines)


def measure(comm: Tunable, budget_s: float, tell: Tell) -> list[Sample]:
    """Every algorithm's time for the problems that fit into the budget, the same on every rank.

    Indices are not coded meanwhile: whether coding pays follows from what is measured here.
    """
    if comm.size == 1:
        raise InputError("tuning measures messages between ranks, and this group has one rank")
    before = comm.network
    comm.network = replace(before, seconds_per_index=math.inf)
    try:
        return _measure(comm, budget_s, tell)
    finally:
        comm.network = before


def _measure(comm: Tunable, budget_s: float, tell: Tell) -> list[Sample]:
    end = time.monotonic() + budget_s
    _take_turns(comm, SparseVector.empty(comm.size), 0.0)  # connects everybody
    samples: list[Sample] = []
    for done, (length, density) in enumerate(PROBLEMS):
        tell("measuring", done, len(PROBLEMS))
        began = time.monotonic()
        shape = Shape(comm.size, length, max(1, round(density * length)), index_price=math.inf)
        vector = _random_vector(comm.rank, shape)
        seconds = _take_turns(comm, vector, budget_s / len(PROBLEMS))
        samples += [Sample(name, shape, s) for name, s in seconds.items()]
        now = time.monotonic()
        if _largest(comm, [now + (now - began) - end])[0] > 0:  # another problem like this would not fit
            break
    return samples


def _take_turns(comm: Tunable, vector: SparseVector, share_s: float) -> dict[str, float]:
    """The time of each exact algorithm: the lower quartile, because disturbances only ever add."""
    names = list(ALGORITHMS)
    first = _largest(comm, [_turn(comm, vector, name) for name in names])
    seconds = dict(zip(names, first.tolist(), strict=True))
    hopeful = [name for name in names if seconds[name] <= HOPELESS * min(first)]
    turns = int(share_s / sum(seconds[name] for name in hopeful))
    turns = min(MOST_TURNS, max(FEWEST_TURNS, turns))
    mine = [[_turn(comm, vector, name) for name in hopeful] for _ in range(turns)]
    slowest = _largest(comm, np.ravel(mine)).reshape(turns, len(hopeful))
    return seconds | dict(zip(hopeful, np.quantile(slowest, 0.25, axis=0).tolist(), strict=True))


def _turn(comm: Tunable, vector: SparseVector, name: str) -> float:
    comm.barrier()
    start = time.perf_counter()
    comm.allreduce(vector, algorithm=name)
    return time.perf_counter() - start


def _largest(comm: Tunable, mine: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The times of the slowest rank, on every rank."""
    return np.max(comm.allgather(np.asarray(mine, np.float64)), axis=0)  # type: ignore[no-any-return]


def _coding_seconds() -> float:
    """Seconds to code and decode one index, of a support of ordinary density."""
    span = 100 * CODED
    indices = _random_vector(0, Shape(1, span, CODED)).indices
    assert indices is not None
    chosen = best_form(indices, 0, span)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        words = encode_indices(indices, 0, span, chosen)
        decode_indices(chosen.code, words, CODED, 0, span, indices.dtype)
        times.append(time.perf_counter() - start)
    return min(times) / CODED


def _random_vector(rank: int, shape: Shape) -> SparseVector:
    chance = np.random.default_rng([rank, shape.length, shape.nnz])
    indices = np.sort(chance.permutation(shape.length)[: shape.nnz])
    return SparseVector(shape.length, indices, np.ones(shape.nnz, np.float32))


def _fit_together(comm: Tunable, samples: Sequence[Sample]) -> CostFigures:
    """Rank 0's fit, on every rank."""
    found = CostFigures()
    if comm.rank == 0:
        found = replace(fit(samples, STARTS), seconds_per_index=_coding_seconds())
    comm.network = CostFigures(*comm.broadcast(np.array(astuple(found))).tolist())
    return comm.network
