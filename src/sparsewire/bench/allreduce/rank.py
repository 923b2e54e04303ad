"""One rank that measures allreduces: every algorithm in every precision, and the peers, in turns."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparsewire.bench.harness import bounds, clock, contenders, peers
from sparsewire.bench.harness.problem import Case, exact_sum, make_input
from sparsewire.bench.harness.variants import DEDICATED
from sparsewire.bench.harness.worker import CasePlan, Found, OnStep
from sparsewire.choosing.tune import tune
from sparsewire.launch.emulation import interface_bytes
from sparsewire.vector import SparseVector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparsewire.communicator import Communicator


@dataclass(frozen=True)
class AllreducePlan(CasePlan):
    """What ranks measure in each case."""

    algorithms: tuple[str, ...]
    precisions: tuple[str, ...] = ("exact",)
    iterations: int | None = None
    budget_s: float = 20.0  # for each case
    drop_above: float | None = None
    tune_s: float = 0.0  # to spend on tuning, before anything else

    def measure(self, comm: Communicator, on_step: OnStep) -> Iterator[Found]:
        if self.tune_s:
            tune(comm, budget_s=self.tune_s)
        yield from super().measure(comm, on_step)

    def measure_case(self, comm: Communicator, case: Case, on_step: OnStep) -> Found:
        expected = exact_sum(case)
        with ExitStack() as stack:
            records = clock.measure(
                self._contenders(comm, case, stack),
                contenders.CommunicatorRanks(comm),
                expected,
                budget_s=self.budget_s,
                bound=bounds.Bounds(case, expected).of,
                iterations=self.iterations,
                drop_above=self.drop_above,
                interface_bytes=interface_bytes if self.in_namespace else None,
                on_progress=on_step,
            )
            comm.barrier()  # groups are closed when no rank uses them any more
        common = {"nnz_out": int(np.count_nonzero(expected)), "figures": asdict(comm.network)}
        return [asdict(record) for record in records], common

    def _contenders(self, comm: Communicator, case: Case, stack: ExitStack) -> list[clock.Contender]:
        """All that take turns; the groups that they need are closed with the stack."""
        indices, values = make_input(case, comm.rank)
        sparse = SparseVector(case.length, indices, values)
        dense = sparse.to_dense()
        workers = stack.enter_context(contenders.without_aggregators(comm)) if self.aggregators else comm
        plain = (
            stack.enter_context(contenders.without_coding(workers)) if "coo" in self.precisions else workers
        )

        def group(one: contenders.Configuration) -> Communicator:
            return comm if one.algorithm == DEDICATED else plain if one.precision == "coo" else workers

        running, _ = contenders.configurations(self.algorithms, self.precisions)
        ours = [contenders.Allreduce(one, group(one), case, sparse, dense) for one in running]
        return [*ours, *(peers.contender(peer, comm, case.length, indices, values) for peer in self.peers)]
