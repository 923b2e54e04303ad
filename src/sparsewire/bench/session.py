"""A benchmark from the outside: start the ranks, follow their progress, collect their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from sparsewire.bench.bounds import Bounds
from sparsewire.bench.cases import Case, exact_sum
from sparsewire.bench.contenders import Alone, LocalAllreduce, entrants, input_vector
from sparsewire.bench.frames import with_frames
from sparsewire.bench.linear_plan import LinearPlan
from sparsewire.bench.peers import reason_to_skip
from sparsewire.bench.rows import (
    MemoryRow,
    OverlapRow,
    Row,
    StepRow,
    make_memory_row,
    make_overlap_rows,
    make_rows,
    make_step_rows,
)
from sparsewire.bench.step import DENSE
from sparsewire.bench.timing import measure
from sparsewire.bench.train import TrainPlan
from sparsewire.bench.worker import Plan
from sparsewire.cost import CostFigures
from sparsewire.errors import InputError, SparsewireError
from sparsewire.launch.emulation import parse_rate
from sparsewire.launch.events import EventReader
from sparsewire.launch.job import run_job
from sparsewire.launch.local import free_port

__all__ = [
    "BenchmarkError",
    "Options",
    "Result",
    "Tell",
    "run_allreduce",
    "run_memory",
    "run_overlap",
    "run_ranks",
    "run_step",
    "run_sweep",
    "timeout_s",
]

# Hears what is going on, and how many of how many steps are done.
Tell: TypeAlias = Callable[[str, int, int], None]
AnyPlan = TypeVar("AnyPlan", Plan, TrainPlan, LinearPlan)

DRIVERS = ("tcp", "mpi", "local")


class BenchmarkError(SparsewireError):
    """A rank failed while it was measured; the message ends with its last words."""


@dataclass(frozen=True)
class Options:
    """How to run a case."""

    algorithms: tuple[str, ...]
    precisions: tuple[str, ...] = ("exact",)
    driver: str = "tcp"
    network: str | None = None
    peers: tuple[str, ...] = ()
    iterations: int | None = None
    budget_s: float = 20.0
    aggregators: int = 0  # ranks that only aggregate, besides those of the case


@dataclass(frozen=True)
class Result:
    """Rows, fastest first, and what did not run and why."""

    rows: list[Row]
    skipped: dict[str, str]


def run_allreduce(case: Case, options: Options, tell: Tell) -> Result:
    """Every contender on the case, interleaved in one run."""
    [result] = run_sweep([case], options, tell)
    return result


def run_sweep(cases: Sequence[Case], options: Options, tell: Tell) -> list[Result]:
    """Every contender on each case, interleaved; the ranks go through all cases, which have as many each."""
    if options.aggregators and options.driver != "tcp":
        raise InputError(f"--aggregators needs --driver tcp, not {options.driver}")
    if options.driver == "local":
        return [_run_in_this_process(case, options, tell) for case in cases]
    if options.driver not in DRIVERS:
        raise InputError(f"unknown driver {options.driver!r}; known are {', '.join(DRIVERS)}")
    _, skipped = entrants(options.algorithms, options.precisions)
    skipped |= {peer: reason for peer in options.peers if (reason := reason_to_skip(peer, cases[0].dtype))}
    rate = parse_rate(options.network) if options.network else None
    plan = Plan(
        tuple(cases),
        options.algorithms,
        options.precisions,
        aggregators=options.aggregators,
        peers=tuple(peer for peer in options.peers if peer not in skipped),
        iterations=options.iterations,
        budget_s=options.budget_s,
        timeout_s=max(timeout_s(case, rate) for case in cases),
    )
    left = list(cases)

    def tell_case(done: int, total: int) -> None:
        tell(f"measuring at density {left[0].density:g}", done, total)

    def go_on(event: dict[str, Any]) -> None:
        del left[0]

    events = run_ranks(plan, options.driver, rate, tell_case, go_on)
    return [_result(case, event, options, rate, skipped) for case, event in zip(cases, events, strict=True)]


def _result(
    case: Case, event: Mapping[str, Any], options: Options, rate: int | None, skipped: dict[str, str]
) -> Result:
    rows = make_rows(
        case,
        event["found"],
        nnz_out=event["nnz_out"],
        driver=options.driver,
        network=options.network,
        bits_per_second=rate,
        aggregators=options.aggregators,
    )
    return Result(with_frames(rows, case, CostFigures(**event["figures"]).index_price), skipped)


def run_memory(case: Case, algorithms: Sequence[str], tell: Tell) -> list[MemoryRow]:
    """Peak memory of each algorithm, in fresh processes: one algorithm's heap must not serve the next."""
    rows = []
    for done, name in enumerate(algorithms):
        tell(f"memory of {name}", done, len(algorithms))
        [event] = run_ranks(Plan((case,), (name,), measure="memory"), "tcp", None)
        rows.append(make_memory_row(case, [of_rank for [of_rank] in event["found"]]))
    return rows


def run_overlap(
    case: Case, driver: str, network: str | None, compute_ratio: float, budget_s: float, tell: Tell
) -> list[OverlapRow]:
    """Calls in flight, a loop, and both together, interleaved in one run."""
    rate = parse_rate(network) if network else None
    plan = Plan(
        (case,),
        budget_s=budget_s,
        compute_ratio=compute_ratio,
        timeout_s=timeout_s(case, rate),
        measure="overlap",
    )
    [event] = run_ranks(plan, driver, rate, partial(tell, "measuring"))
    return make_overlap_rows(case, event["found"], driver, network)


def run_step(
    case: Case, methods: Sequence[str], driver: str, network: str | None, budget_s: float, tell: Tell
) -> tuple[list[StepRow], dict[str, str]]:
    """The whole step of each method beside dense, interleaved in one run; and what did not run and why."""
    if driver not in DENSE:
        raise InputError(f"unknown driver {driver!r}; known are {', '.join(DENSE)}")
    dense = DENSE[driver]
    reason = reason_to_skip(dense, case.dtype)
    rate = parse_rate(network) if network else None
    plan = Plan(
        (case,),
        methods=tuple(methods),
        peers=() if reason else (dense,),
        budget_s=budget_s,
        timeout_s=timeout_s(case, rate),
        measure="step",
    )
    [event] = run_ranks(plan, driver, rate, partial(tell, "measuring"))
    return make_step_rows(case, event["found"], driver, network), {dense: reason} if reason else {}


def _run_in_this_process(case: Case, options: Options, tell: Tell) -> Result:
    if options.network:
        raise InputError("--network needs real ranks: use --driver tcp or mpi")
    inputs = [input_vector(case, rank) for rank in range(case.ranks)]
    expected = exact_sum(case)
    runs, skipped = entrants(options.algorithms, options.precisions, "local")
    records = measure(
        [LocalAllreduce(run, case, inputs) for run in runs],
        Alone(),
        expected,
        budget_s=options.budget_s,
        bound=Bounds(case, expected).of,
        iterations=options.iterations,
        tell=lambda done, total: tell("measuring", done, total),
    )
    nnz_out = int(np.count_nonzero(expected))
    rows = make_rows(case, [[asdict(record) for record in records]], nnz_out=nnz_out, driver="local")
    return Result(with_frames(rows, case, index_price=0.0), skipped)


def run_ranks(
    plan: AnyPlan,
    driver: str,
    rate: int | None,
    tell: Callable[[int, int], None] = lambda done, total: None,
    on_found: Callable[[dict[str, Any]], None] = lambda event: None,
) -> list[dict[str, Any]]:
    """What the ranks found, each case of the plan in order; ``on_found`` hears it at once."""
    tell(0, 1)
    found = []

    def on_event(event: dict[str, Any]) -> None:
        if "found" in event:
            found.append(event)
            on_found(event)
        else:
            tell(event["done"], event["total"])

    reader = EventReader(on_event)
    plan = replace(plan, peer_port=free_port(), in_namespace=rate is not None)
    worker = ["-m", plan.worker, plan.to_json()]
    outcome = run_job(worker, plan.ranks, driver=driver, bits_per_second=rate, on_line=reader.hear)
    if outcome.code != 0:
        raise BenchmarkError(f"{outcome}; its last words:\n{reader.tail(outcome.rank)}")
    return found


def timeout_s(case: Case, bits_per_second: int | None) -> float:
    """Far more than any contender needs, so that only what hangs runs into it."""
    slowest_bits = (
        8 * 8 * case.length * case.ranks
    )  # every rank's dense vector of 8-byte values through one link
    return 60.0 + (4 * slowest_bits / bits_per_second if bits_per_second else 0.0)
