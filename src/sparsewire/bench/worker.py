"""One rank of a benchmark, as a process: ``python -m sparsewire.bench.worker PLAN``.

What the ranks found out meets at rank 0, through the communicator.  Rank 0 alone speaks to the session that
started them, in JSON lines on standard output, each behind an ASCII record separator (RFC 7464), because
libraries print there too:

    {"done": 3, "total": 20}   for the progress bar
    {"found": ..., ...}        once per case: what each rank found, in rank order
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

import sparsewire as sw
from sparsewire.bench import memory, overlap, peers, step
from sparsewire.bench.bounds import Bounds
from sparsewire.bench.cases import Case, exact_sum, make_input
from sparsewire.bench.contenders import (
    Allreduce,
    Entrant,
    Together,
    entrants,
    without_aggregators,
    without_coding,
)
from sparsewire.bench.timing import Contender, measure
from sparsewire.bench.variants import DEDICATED
from sparsewire.choosing.tune import tune
from sparsewire.launch.emulation import INTERFACE, interface_bytes
from sparsewire.launch.events import JobSpec, say

__all__ = ["Plan", "gloo_group", "main", "teller"]


@dataclass(frozen=True)
class Plan(JobSpec):
    """What all ranks do, as one command-line argument."""

    worker: ClassVar[str] = "sparsewire.bench.worker"

    cases: tuple[Case, ...]  # of as many ranks each
    algorithms: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("exact",)
    methods: tuple[str, ...] = ()
    aggregators: int = 0  # ranks that only aggregate, besides those of the cases
    peers: tuple[str, ...] = ()
    peer_port: int = 0
    in_namespace: bool = False
    iterations: int | None = None
    budget_s: float = 20.0  # for each case
    drop_above: float | None = None
    tune_s: float = 0.0  # to spend on tuning, before anything else
    compute_ratio: float = 3.0
    timeout_s: float = 60.0
    measure: str = "time"  # or "memory", "overlap", "step"

    @property
    def ranks(self) -> int:
        """All of them, aggregators too."""
        return self.cases[0].ranks + self.aggregators

    @classmethod
    def from_json(cls, text: str) -> Plan:
        plan = super().from_json(text)
        cases: Any = plan.cases  # which come back as mappings
        return replace(plan, cases=tuple(Case(**case) for case in cases))


def main() -> None:
    plan = Plan.from_json(sys.argv[1])
    with sw.init(timeout=plan.timeout_s, aggregators=plan.aggregators) as comm:
        if comm.is_aggregator:
            comm.serve()
        else:
            _work(plan, comm)


def _work(plan: Plan, comm: sw.Communicator) -> None:
    """All cases, at a rank that has inputs."""
    with _peer_group(plan, comm):
        if plan.tune_s:
            tune(comm, budget_s=plan.tune_s)
        for case in plan.cases:
            found, common = _find_out(plan, comm, case)
            of_ranks = Together(comm).gather(found)
            if comm.rank == 0:
                say({"found": of_ranks, **common})
        comm.barrier()  # nobody takes the peers' group down while somebody still uses it


def _find_out(plan: Plan, comm: sw.Communicator, case: Case) -> tuple[Any, dict[str, Any]]:
    """What this rank found, and what is the same on every rank."""
    if plan.measure == "memory":
        return [memory.measure_allreduce(comm, case, name) for name in plan.algorithms], {}
    tell = teller(comm)
    if plan.measure == "step":
        return step.measure_steps(comm, case, plan.methods, plan.peers, plan.budget_s, tell), {}
    expected = exact_sum(case)
    with ExitStack() as stack:
        records = measure(
            _contenders(plan, comm, case, stack),
            Together(comm),
            expected,
            budget_s=plan.budget_s,
            bound=Bounds(case, expected).of,
            iterations=plan.iterations,
            drop_above=plan.drop_above,
            interface_bytes=interface_bytes if plan.in_namespace else None,
            tell=tell,
        )
        comm.barrier()  # nobody closes what others still use
    common = {"nnz_out": int(np.count_nonzero(expected)), "figures": asdict(comm.network)}
    return [asdict(record) for record in records], common


def _contenders(plan: Plan, comm: sw.Communicator, case: Case, stack: ExitStack) -> list[Contender]:
    """All that take turns; what they need is closed with the stack."""
    if plan.measure == "overlap":
        return overlap.contenders(comm, case, plan.compute_ratio)
    indices, values = make_input(case, comm.rank)
    sparse = sw.SparseVector(case.length, indices, values)
    dense = sparse.to_dense()
    workers = stack.enter_context(without_aggregators(comm)) if plan.aggregators else comm
    plain = stack.enter_context(without_coding(workers)) if "coo" in plan.precisions else workers

    def group(run: Entrant) -> sw.Communicator:
        return comm if run.algorithm == DEDICATED else plain if run.precision == "coo" else workers

    runs, _ = entrants(plan.algorithms, plan.precisions)
    ours = [Allreduce(run, group(run), case, sparse, dense) for run in runs]
    return [*ours, *(peers.contender(name, comm, case.length, indices, values) for name in plan.peers)]


def _peer_group(plan: Plan, comm: sw.Communicator) -> AbstractContextManager[None]:
    """What the peers need to have running."""
    if not set(plan.peers) & set(peers.PEERS["tcp"]):
        return nullcontext()
    return gloo_group(comm, plan.peer_port, plan.in_namespace, plan.timeout_s)


def gloo_group(
    comm: sw.Communicator, port: int, in_namespace: bool, timeout_s: float
) -> AbstractContextManager[None]:
    """The same ranks as torch's default process group."""
    interface = INTERFACE if in_namespace else peers.LOOPBACK
    return peers.gloo(comm.rank, comm.size, (os.environ["MASTER_ADDR"], port), interface, timeout_s)


def teller(comm: sw.Communicator) -> Callable[[int, int], None]:
    """Tells the session how many of how many are done; that is for rank 0 to do."""
    if comm.rank != 0:
        return lambda done, total: None
    return lambda done, total: say({"done": done, "total": total})


if __name__ == "__main__":
    main()
