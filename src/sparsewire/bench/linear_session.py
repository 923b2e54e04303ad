"""Linear models from the outside: a job of ranks, and after it what runs in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from sparsewire.bench import step
from sparsewire.bench.contenders import choose_names, choose_sparse_algorithms
from sparsewire.bench.linear_alone import LOSSES
from sparsewire.bench.linear_plan import (
    DATA,
    DENSE,
    SKLEARN_LBFGS,
    SKLEARN_SGD,
    SPARK_LBFGS,
    SPARK_SGD,
    AlonePlan,
    LinearPlan,
    SparkPlan,
)
from sparsewire.bench.linear_rows import (
    LinearMemoryRow,
    LinearRow,
    compared,
    make_linear_memory_row,
    make_linear_rows,
)
from sparsewire.bench.linear_spark import reason_to_skip_spark
from sparsewire.bench.peers import reason_to_skip
from sparsewire.bench.session import Tell, run_ranks
from sparsewire.compress.schedule import checked_density
from sparsewire.errors import InputError
from sparsewire.launch.emulation import parse_rate
from sparsewire.linear.exchange import EXACT, LOSSY
from sparsewire.linear.losses import LOGISTIC

__all__ = ["choose_contenders", "run_linear", "run_linear_memory"]

PASSES_OF_MEMORY = 2


def choose_contenders(algorithms: str, methods: str) -> tuple[str, ...]:
    """Ours, by the names in ``a,b,c``, checked: all algorithms for the method "exact", and other methods."""
    chosen = choose_names(methods, "method", [EXACT, *LOSSY])
    exact = choose_sparse_algorithms(algorithms) if EXACT in chosen else []
    return (*exact, *(method for method in chosen if method != EXACT))


def run_linear(
    plan: LinearPlan, driver: str, network: str | None, *, peers: bool, alone: bool, tell: Tell
) -> tuple[list[LinearRow], dict[str, str]]:
    """The plan's contenders and dense ones, interleaved in one run, and others; and what did not run and why.

    ``peers`` are Gloo or MPI; ``alone`` are scikit-learn and Spark, who have the machine to themselves.
    """
    _check(plan, driver)
    rate = parse_rate(network) if network else None
    peer = step.DENSE[driver]
    reason = reason_to_skip(peer, step.DTYPE) if peers else None
    dense = (DENSE, peer) if peers and not reason else (DENSE,)
    of_ranks = replace(plan, contenders=(*dense, *plan.contenders))
    [event] = run_ranks(of_ranks, driver, rate, partial(tell, "training on ranks"))
    rows = make_linear_rows(of_ranks, event["found"], driver, network)
    skipped = {peer: reason} if reason else {}
    if alone:
        skipped |= _reasons_to_skip(plan)
        for of_one in _plans_of_one(plan, skipped):
            [event] = run_ranks(of_one, "tcp", None, partial(tell, f"training by {of_one.contenders[0]}"))
            rows += make_linear_rows(of_one, event["found"], None, None)
    return compared(rows), skipped


def run_linear_memory(plan: LinearPlan, driver: str, tell: Tell) -> list[LinearMemoryRow]:
    """Peak memory of each contender, in fresh processes: one's heap must not serve the next."""
    _check(plan, driver)
    rows = []
    for done, name in enumerate(plan.contenders):
        tell(f"memory of {name}", done, len(plan.contenders))
        one = replace(plan, contenders=(name,), passes=PASSES_OF_MEMORY, measure="memory")
        [event] = run_ranks(one, driver, None)
        rows.append(make_linear_memory_row(one, event["found"]))
    return rows


def _check(plan: LinearPlan, driver: str) -> None:
    """Raise what is wrong with the plan, before ranks are started."""
    if driver not in step.DENSE:
        raise InputError(f"unknown driver {driver!r}; known are {', '.join(step.DENSE)}")
    if plan.loss not in LOSSES:
        raise InputError(f"unknown loss {plan.loss!r}; known are {', '.join(LOSSES)}")
    if plan.data not in DATA and not Path(plan.data).is_file():
        raise InputError(f"there is no file {plan.data}, and data that can be made is {', '.join(DATA)}")
    checked_density(plan.density)


def _reasons_to_skip(plan: LinearPlan) -> dict[str, str]:
    if plan.loss != LOGISTIC.name:
        return dict.fromkeys(
            (SKLEARN_LBFGS, SPARK_SGD, SPARK_LBFGS), f"it is compared by the loss {LOGISTIC.name}"
        )
    reason = reason_to_skip_spark()
    return dict.fromkeys((SPARK_SGD, SPARK_LBFGS), reason) if reason else {}


def _plans_of_one(plan: LinearPlan, skipped: dict[str, str]) -> Iterator[LinearPlan]:
    """For each that runs in one process, whose mini-batches are those of all ranks together."""
    fields = asdict(plan) | {"ranks": 1, "batch": plan.ranks * plan.batch}
    for kind, names in (
        (AlonePlan, (SKLEARN_SGD, SKLEARN_LBFGS)),
        (SparkPlan, (SPARK_SGD, SPARK_LBFGS)),
    ):
        if running := tuple(name for name in names if name not in skipped):
            yield kind(**fields | {"contenders": running})
