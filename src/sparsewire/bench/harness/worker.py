"""One rank of a benchmark, as a process: ``python -m sparsewire.bench.harness.worker MODULE:PLAN FIELDS``.

PLAN is a class of MODULE that says how a rank measures, and FIELDS are its fields as JSON.  What the ranks
found meets at rank 0, which alone speaks to the session that started them, in events:

    {"done": 3, "total": 20}   for the progress bar
    {"found": ..., ...}        once per case: what each rank found, in rank order
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeAlias

import sparsewire as sw
from sparsewire.bench.harness.peers import LOOPBACK, PEERS, gloo
from sparsewire.bench.harness.problem import Case
from sparsewire.communicator.agreement import gather
from sparsewire.launch.emulation import INTERFACE
from sparsewire.launch.events import JobSpec, say

# What this rank found, and what is the same on every rank.
Found: TypeAlias = tuple[Any, dict[str, Any]]
# Is called with how many of how many steps are done.
OnStep: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class RankPlan(JobSpec, ABC):
    """What all ranks do; ``run_ranks`` fills in the port and the namespace."""

    peer_port: int = 0
    in_namespace: bool = False
    aggregators: int = 0  # ranks that only aggregate
    peers: tuple[str, ...] = ()
    timeout_s: float = 60.0

    @property
    @abstractmethod
    def processes(self) -> int:
        """How many ranks to start, aggregators included."""

    @property
    def uses_gloo(self) -> bool:
        """Whether torch's process group has to be there."""
        return bool(set(self.peers) & set(PEERS["tcp"]))

    @abstractmethod
    def measure(self, comm: sw.Communicator, on_step: OnStep) -> Iterator[Found]:
        """Measure on this rank, case by case."""


@dataclass(frozen=True)
class CasePlan(RankPlan):
    """A plan that goes through cases, which have the same number of ranks each."""

    cases: tuple[Case, ...]

    @property
    def processes(self) -> int:
        return self.cases[0].ranks + self.aggregators

    @classmethod
    def from_json(cls, text: str) -> CasePlan:
        plan = super().from_json(text)
        cases: Any = plan.cases  # JSON has made mappings of them
        return replace(plan, cases=tuple(Case(**case) for case in cases))

    def measure(self, comm: sw.Communicator, on_step: OnStep) -> Iterator[Found]:
        for case in self.cases:
            yield self.measure_case(comm, case, on_step)

    @abstractmethod
    def measure_case(self, comm: sw.Communicator, case: Case, on_step: OnStep) -> Found:
        """Measure one case on this rank."""


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    plan: RankPlan = getattr(import_module(module), name).from_json(sys.argv[2])
    with ExitStack() as stack:
        comm = stack.enter_context(sw.init(timeout=plan.timeout_s, aggregators=plan.aggregators))
        if comm.is_aggregator:
            comm.serve()
            return
        if plan.uses_gloo:
            master = os.environ["MASTER_ADDR"], plan.peer_port
            interface = INTERFACE if plan.in_namespace else LOOPBACK
            stack.enter_context(gloo(comm.rank, comm.size, master, interface, plan.timeout_s))
        for found, common in plan.measure(comm, _progress_of(comm)):
            of_ranks = gather(comm, found)
            if comm.rank == 0:
                say({"found": of_ranks, **common})
        comm.barrier()  # gloo's group stays until no rank uses it any more


def _progress_of(comm: sw.Communicator) -> OnStep:
    """A function that tells the session how far it is; only rank 0 does."""
    if comm.rank != 0:
        return lambda done, total: None
    return lambda done, total: say({"done": done, "total": total})


if __name__ == "__main__":
    main()
