"""``bench overlap``: does communication hide behind computing?  Calls in flight, a numpy loop, and both.

communication   start all calls, wait for all
computing       the loop, which takes about as long
together        start all calls, run the loop, wait for all
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsewire.bench.harness import options as opt
from sparsewire.bench.harness import session, table
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.clock import Contender, measure, seconds_of
from sparsewire.bench.harness.contenders import CommunicatorRanks, as_array, input_vector
from sparsewire.bench.harness.problem import Case, Values, exact_sum, parse_size
from sparsewire.bench.harness.records import (
    OfRanks,
    ProblemRow,
    TimedRow,
    problem_fields,
    slowest_rank,
    time_fields,
)
from sparsewire.bench.harness.worker import CasePlan, Found, OnStep
from sparsewire.communicator import Communicator

CALLS = 8
SIDE = 192  # of the loop's square matrices: a product takes a fraction of a millisecond
TRIALS = 5  # to find out how long communication and a pass of the loop take


@dataclass(frozen=True, kw_only=True)
class OverlapOptions(opt.Options):
    """Eight calls in flight beside a numpy loop: does communication hide behind computing?"""

    ranks: opt.Ranks = 2
    size: opt.Size = "4M"
    density: opt.Density = 0.01
    seed: opt.Seed = 0
    driver: opt.Driver = "tcp"
    network: opt.Network = None
    compute_ratio: float = opt.option(3.0, "Computing, in units of the communication's time.", min=0.01)
    seconds: opt.Seconds = 10.0
    json: opt.Json = None


class InFlight(Contender):
    """``CALLS`` allreduces at once; ``beside`` runs while they are in flight."""

    def __init__(self, name: str, comm: Communicator, vector: Any, beside: Callable[[], None]) -> None:
        self.name = name
        self._comm, self._vector, self._beside = comm, vector, beside
        self._totals: list[Any] = []

    def run(self) -> None:
        requests = [self._comm.iallreduce(self._vector, name=f"call {call}") for call in range(CALLS)]
        self._beside()
        self._totals = [request.wait() for request in requests]

    def results(self) -> Iterable[Values]:
        yield from map(as_array, self._totals)


class Loop(Contender):
    """Layer after layer of a small network, on one thread."""

    name = "computing"

    def __init__(self) -> None:
        chance = np.random.default_rng(0)
        self._weights, self._input = chance.standard_normal((2, SIDE, SIDE), np.float32)
        self.passes = 1

    def run(self) -> None:
        layer = self._input
        for _ in range(self.passes):
            layer = np.maximum(self._weights @ layer, 0) / np.float32(SIDE)


@dataclass(frozen=True)
class OverlapPlan(CasePlan):
    """What every rank measures."""

    compute_ratio: float
    budget_s: float

    def measure_case(self, comm: Communicator, case: Case, on_step: OnStep) -> Found:
        ranks = CommunicatorRanks(comm)
        vector, loop = input_vector(case, comm.rank), Loop()
        alone = InFlight("communication", comm, vector, lambda: None)
        passes = self.compute_ratio * _seconds(alone, comm) / _seconds(loop, comm)
        [loop.passes] = ranks.agree([max(1, round(passes))])
        contenders = [alone, loop, InFlight("together", comm, vector, loop.run)]
        records = measure(contenders, ranks, exact_sum(case), budget_s=self.budget_s, on_progress=on_step)
        return [asdict(record) for record in records], {}


def _seconds(contender: Contender, comm: Communicator) -> float:
    times = []
    for _ in range(1 + TRIALS):  # the first one connects
        comm.barrier()
        times.append(seconds_of(contender.run))
    return statistics.median(times[1:])


@dataclass(frozen=True, kw_only=True)
class OverlapRow(ProblemRow, TimedRow):
    """How long the calls in flight, the loop, or both took."""

    name: str  # communication, computing, together
    wrong: int
    driver: str
    network: str | None


def run(options: OverlapOptions, on_progress: OnProgress) -> list[Result[OverlapRow]]:
    """Calls in flight, the loop, and both together, in turns."""
    case = Case(options.ranks, parse_size(options.size), options.density, seed=options.seed)
    limit = session.timeout_s(case, options.network)
    plan = OverlapPlan((case,), options.compute_ratio, options.seconds, timeout_s=limit)
    [event] = session.run_ranks(plan, options.driver, options.network, partial(on_progress, "measuring"))
    rows = make_rows(case, event["found"], options.driver, options.network)
    where = table.describe_driver(options.driver, options.network)
    header = [table.describe_problem(case), f"{where}  {CALLS} calls in flight"]
    return [Result(rows, header, more={"times_longer_alone": times_longer_alone(rows)})]


def make_rows(case: Case, records: Sequence[OfRanks], driver: str, network: str | None) -> list[OverlapRow]:
    """One row for each of the three; ``records[r]`` is what rank r recorded."""
    return [
        OverlapRow(
            name=of_ranks[0]["name"],
            **problem_fields(case),
            **time_fields(slowest_rank(of_ranks)),
            wrong=sum(record["wrong"] for record in of_ranks),
            driver=driver,
            network=network,
        )
        for of_ranks in zip(*records, strict=True)
    ]


def times_longer_alone(rows: Sequence[OverlapRow]) -> float:
    """The time of both together in units of the longer of the two alone, by medians."""
    medians = {row.name: row.seconds_median for row in rows}
    return medians["together"] / max(medians["communication"], medians["computing"])


COLUMNS: Columns[OverlapRow] = {
    "what": lambda row: row.name,
    "min": lambda row: table.format_seconds(row.seconds_min),
    "median": lambda row: table.format_seconds(row.seconds_median),
    "iterations": lambda row: str(len(row.seconds)),
    "wrong": lambda row: table.format_wrong(row.wrong),
}


def conclusion(result: Result[OverlapRow]) -> str:
    ratio = times_longer_alone(result.rows)
    return f"Together takes [bold]{ratio:.2f}x[/bold] the longer of the two alone."


BENCHMARK = Benchmark("bench overlap", OverlapOptions, run, COLUMNS, conclusion)
