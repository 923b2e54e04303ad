"""One rank that measures whole steps, from a gradient to the mean where an optimiser reads it.

select     the gradient joins what earlier steps left behind, and the large entries leave
exchange   the ranks add up what they selected
apply      what was not used is kept for later; the mean replaces the last one in a dense array

A dense step has no first phase, and its last one is the division by the number of ranks.
"""

from __future__ import annotations

import time
import zlib
from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from sparsewire import kernels
from sparsewire.bench.harness.clock import Contender, Moved, measure
from sparsewire.bench.harness.contenders import CommunicatorRanks, moved_by_last_call
from sparsewire.bench.harness.peers import allreduce_in_place
from sparsewire.bench.harness.problem import Case, Values
from sparsewire.bench.harness.worker import CasePlan, Found, OnStep
from sparsewire.communicator import Communicator
from sparsewire.kernels import memory
from sparsewire.sync import Sync, SyncState
from sparsewire.vector import SparseVector

DTYPE: Final = "float32"
# Methods that reuse what an earlier step found: a threshold, regions.
RENEWED = ("ok_topk", "topk_allgather")

POOL = 3  # gradients that a rank uses in turn
# A position waits about 1 / density steps until it is sent, and residuals grow until then.  After this many
# steps they grow by at most one per cent a step.
MOST_COLD_STEPS = 100
DRIFT = 1.002  # growth of the gradient in each step, so that thresholds have to follow
WINDOW = 1 << 16  # positions that are checked at the beginning, in the middle and at the end
# In units of the sum of all magnitudes: sixteen roundings of float32.
ROUNDING = 2.0**-20


class Phases(NamedTuple):
    """Seconds of one step at one rank."""

    select: float
    exchange: float
    apply: float


class Gradients:
    """A rank's gradients: normal noise of its own, as large as what all ranks have in common."""

    def __init__(self, case: Case, rank: int) -> None:
        own = np.random.default_rng([case.seed, rank])
        common = np.random.default_rng([case.seed, case.ranks])  # one stream more than there are ranks
        self._pool = [
            own.standard_normal(case.length, DTYPE) + common.standard_normal(case.length, DTYPE)
            for _ in range(POOL)
        ]
        self._current = np.empty_like(self._pool[0])

    def load(self, step: int) -> Values:
        """The gradient of a step, which may be written to; the next call overwrites it."""
        np.multiply(self._pool[step % POOL], np.float32(DRIFT**step), out=self._current)
        return self._current


class Step(Contender):
    """A contender that records its steps; the gradient is there before the clock starts.

    There is no exact sum to compare with.  ``count_lost`` checks that steps conserve what they are given.
    """

    def __init__(self, method: str, kind: str, gradients: Gradients) -> None:
        self.method, self.kind = method, kind
        self.name = f"{method} {kind}"
        self.gradient = gradients.load(0)
        self.phases: list[Phases] = []
        self.selected: list[int] = []  # entries of each step's mean, if they were selected
        self.traffic: list[Moved] = []
        self._gradients = gradients

    def prepare(self) -> None:
        self.gradient = self._gradients.load(len(self.phases))

    @property
    @abstractmethod
    def k(self) -> int | None:
        """How many entries a step should select."""

    @property
    @abstractmethod
    def residual(self) -> Values:
        """What this rank has not sent yet."""

    @property
    @abstractmethod
    def mean(self) -> Values:
        """What an optimiser would read."""

    def moved(self) -> Moved:
        return self.traffic[-1]


class SparseStep(Step):
    """A method of ``Sync`` with its state; a renewal first forgets what earlier steps found."""

    def __init__(
        self, method: str, kind: str, gradients: Gradients, comm: Communicator, density: float
    ) -> None:
        super().__init__(method, kind, gradients)
        self._comm = comm
        self.sync = Sync(comm, method=method, density=density)
        self.state = self.sync.init(len(self.gradient), DTYPE)
        self._mean = np.zeros(len(self.gradient), DTYPE)
        self.written = SparseVector.empty(len(self.gradient), DTYPE)

    def prepare(self) -> None:
        super().prepare()
        if self.kind == "renewal":
            self.state = self._with_residual_alone()

    def run(self) -> None:
        start = time.perf_counter()
        selected, state = self.sync.select(self.gradient, self.state)
        is_selected = time.perf_counter()
        exchanged = self.sync.exchange(selected, state)
        is_exchanged = time.perf_counter()
        mean, self.state = self.sync.settle(exchanged, selected, state)
        self._write(mean.as_sparse())
        is_applied = time.perf_counter()
        self.phases.append(Phases(is_selected - start, is_exchanged - is_selected, is_applied - is_exchanged))
        self.selected.append(mean.nnz)
        self.traffic.append(moved_by_last_call(self._comm))

    def _with_residual_alone(self) -> SyncState:
        """The state without threshold and regions."""
        inner = self.sync.compressor.inner.init(len(self.gradient), DTYPE)
        return replace(self.state, compressor=replace(self.state.compressor, inner=inner), regions=None)

    def _write(self, mean: SparseVector) -> None:
        """Put the mean in the place of the last one, at the cost of their entries."""
        zeros = memory.empty(self.written.nnz, DTYPE)
        zeros.fill(0)
        for indices, values in ((self.written.indices, zeros), (mean.indices, mean.values)):
            assert indices is not None
            kernels.scatter(self._mean, indices, values)
        self.written = mean

    @property
    def k(self) -> int:
        return self.sync.k(len(self.gradient), self.state)

    @property
    def residual(self) -> Values:
        return self.state.compressor.residual

    @property
    def mean(self) -> Values:
        return self._mean


class DenseStep(Step):
    """An allreduce of the gradient in place, then the mean in place."""

    k = None

    def __init__(self, peer: str, gradients: Gradients, ranks: int) -> None:
        super().__init__(peer, "dense", gradients)
        self._allreduce = allreduce_in_place(peer)
        self._share = np.float32(1 / ranks)

    def run(self) -> None:
        start = time.perf_counter()
        self._allreduce(self.gradient)
        is_exchanged = time.perf_counter()
        self.gradient *= self._share
        is_applied = time.perf_counter()
        self.phases.append(Phases(0.0, is_exchanged - start, is_applied - is_exchanged))
        self.traffic.append(Moved())

    @property
    def residual(self) -> Values:
        return np.broadcast_to(np.float32(0), len(self.gradient))

    @property
    def mean(self) -> Values:
        return self.gradient


@dataclass(frozen=True)
class StepPlan(CasePlan):
    """What every rank measures."""

    methods: tuple[str, ...]
    budget_s: float

    def measure_case(self, comm: Communicator, case: Case, on_step: OnStep) -> Found:
        """What this rank found about each method, steady and renewed, and about the peers."""
        gradients = Gradients(case, comm.rank)
        kinds = [(method, "steady") for method in self.methods]
        kinds += [(method, "renewal") for method in self.methods if method in RENEWED]
        steps: list[Step] = [SparseStep(*kind, gradients, comm, case.density) for kind in kinds]
        steps += [DenseStep(peer, gradients, comm.size) for peer in self.peers]
        for number, step in enumerate(steps):
            on_step(number, len(steps))
            for _ in range(cold_steps(case.density) if step.kind != "dense" else 0):
                step.prepare()
                step.run()
        ranks, no_sum = CommunicatorRanks(comm), np.empty(0, DTYPE)
        records = measure(steps, ranks, no_sum, budget_s=self.budget_s, on_progress=on_step)
        found = []
        for step, record in zip(steps, records, strict=True):
            account = _account(step, len(record.seconds))  # before one more step
            record.wrong = count_lost(step, comm)
            record.digests = [zlib.crc32(step.mean.view(np.uint8).data)] if step.kind != "dense" else []
            found.append(asdict(record) | account)
        return found, {}


def _account(step: Step, measured: int) -> dict[str, Any]:
    """What a step recorded besides its times."""
    return {
        "method": step.method,
        "kind": step.kind,
        "k": step.k,
        "phases": step.phases[-measured:],
        "selected": list(step.selected),
        "traffic": [asdict(moved) for moved in step.traffic],
    }


def cold_steps(density: float) -> int:
    """How many steps a method takes before it is measured, so that its residual has stopped growing."""
    return min(MOST_COLD_STEPS, round(1 / density))


def count_lost(step: Step, comm: Communicator) -> int:
    """The number of positions at which one more step does not conserve what it is given.

    There, what left the ranks is not the mean times the number of ranks.

    The positions are those of the mean, those that rank 0 sent, and three windows.  Rank 0 counts, and the
    other ranks return 0.
    """
    step.prepare()
    if step.kind == "dense":  # a dense step writes to its gradient
        before, gradient = step.residual, step.gradient.copy()
    else:  # a sparse step writes to its residual
        before, gradient = step.residual.copy(), step.gradient
    step.run()
    # All ranks use the places of rank 0: a rank with another mean would have other places.
    places = _places_to_check(step, before, gradient) if comm.rank == 0 else np.empty(0, np.int64)
    places = comm.broadcast(places, root=0)
    terms = np.array([before[places], gradient[places], -step.residual[places]], np.float64)
    totals = comm.reduce(np.concatenate([terms.sum(axis=0), np.abs(terms).sum(axis=0)]), root=0)
    if totals is None:
        return 0
    left, magnitudes = np.split(totals, 2)
    error = np.abs(left - comm.size * step.mean[places].astype(np.float64))
    return int(np.count_nonzero(~(error <= ROUNDING * magnitudes)))


def _places_to_check(step: Step, before: Values, gradient: Values) -> Values:
    length = len(gradient)
    if step.kind == "dense":
        is_checked = np.zeros(length, np.bool_)
    else:
        is_checked = (step.mean != 0) | (step.residual != before + gradient)
    for start in (0, (length - WINDOW) // 2, length - WINDOW):
        is_checked[max(0, start) : max(0, start + WINDOW)] = True
    return np.flatnonzero(is_checked)
