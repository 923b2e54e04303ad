"""``bench linear`` from the outside: a job of ranks, and after it the contenders that run in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from sparsewire.bench.harness.benchmark import OnProgress
from sparsewire.bench.harness.contenders import choose_names, choose_sparse_algorithms
from sparsewire.bench.harness.peers import dense_peer, reason_to_skip
from sparsewire.bench.harness.session import run_ranks
from sparsewire.bench.linear.alone import LOSSES
from sparsewire.bench.linear.plan import ALONE, DATA, DENSE, MEMORY, SKLEARN_LBFGS, SPARK, LinearPlan
from sparsewire.bench.linear.rows import LinearMemoryRow, LinearRow, compared, make_memory_row, make_rows
from sparsewire.bench.linear.spark import reason_to_skip_spark
from sparsewire.compress.schedule import checked_density
from sparsewire.errors import InputError
from sparsewire.linear.exchange import EXACT, LOSSY
from sparsewire.linear.losses import LOGISTIC

PASSES_OF_MEMORY = 2
DTYPE = "float32"


def choose_contenders(algorithms: str, methods: str) -> tuple[str, ...]:
    """Our contenders: the algorithms if the method "exact" is among the methods, and the other methods."""
    chosen = choose_names(methods, "method", [EXACT, *LOSSY])
    exact = choose_sparse_algorithms(algorithms) if EXACT in chosen else []
    return (*exact, *(method for method in chosen if method != EXACT))


def run_linear(
    plan: LinearPlan, driver: str, network: str | None, *, peers: bool, alone: bool, on_progress: OnProgress
) -> tuple[list[LinearRow], dict[str, str]]:
    """The rows of the plan's contenders, of dense and of other ones, and what did not run with the reason.

    ``peers`` are gloo or MPI.  ``alone`` are scikit-learn and Spark, each of which has the machine to itself.
    """
    _check(plan, driver)
    peer = dense_peer(driver)
    reason = reason_to_skip(peer, DTYPE) if peers else None
    dense = (DENSE, peer) if peers and not reason else (DENSE,)
    of_ranks = replace(plan, contenders=(*dense, *plan.contenders))
    [event] = run_ranks(of_ranks, driver, network, partial(on_progress, "training on ranks"))
    rows = make_rows(of_ranks, event["found"], driver, network)
    skipped = {peer: reason} if reason else {}
    if alone:
        skipped |= _reasons_to_skip(plan)
        for of_one in _plans_of_one(plan, skipped):
            doing = f"training by {of_one.contenders[0]}"
            [event] = run_ranks(of_one, "tcp", None, partial(on_progress, doing))
            rows += make_rows(of_one, event["found"], None, None)
    return compared(rows), skipped


def run_linear_memory(plan: LinearPlan, driver: str, on_progress: OnProgress) -> list[LinearMemoryRow]:
    """Peak memory of each contender in fresh processes, so that none uses the heap that another has left."""
    _check(plan, driver)
    rows = []
    for done, name in enumerate(plan.contenders):
        on_progress(f"memory of {name}", done, len(plan.contenders))
        one = replace(plan, work=MEMORY, contenders=(name,), passes=PASSES_OF_MEMORY)
        [event] = run_ranks(one, driver, None)
        rows.append(make_memory_row(one, event["found"]))
    return rows


def _check(plan: LinearPlan, driver: str) -> None:
    """Raise InputError for a plan that cannot be carried out, before ranks are started."""
    dense_peer(driver)
    if plan.loss not in LOSSES:
        raise InputError(f"unknown loss {plan.loss!r}; known are {', '.join(LOSSES)}")
    if plan.data not in DATA and not Path(plan.data).is_file():
        raise InputError(f"there is no file {plan.data}, and data that can be made is {', '.join(DATA)}")
    checked_density(plan.density)


def _reasons_to_skip(plan: LinearPlan) -> dict[str, str]:
    if plan.loss != LOGISTIC.name:
        return dict.fromkeys((SKLEARN_LBFGS, *SPARK), f"it is compared by the loss {LOGISTIC.name}")
    reason = reason_to_skip_spark()
    return dict.fromkeys(SPARK, reason) if reason else {}


def _plans_of_one(plan: LinearPlan, skipped: dict[str, str]) -> Iterator[LinearPlan]:
    """The plans that run in one process, whose mini-batches are those of all ranks together."""
    for work, names in ALONE.items():
        if running := tuple(name for name in names if name not in skipped):
            yield replace(plan, work=work, contenders=running, ranks=1, batch=plan.ranks * plan.batch)
