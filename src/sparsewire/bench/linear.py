"""One rank of ``bench linear``, as a process: ``python -m sparsewire.bench.linear PLAN``.

Every contender has a model of its own; rows, batches and steps are the same for all.  They differ in how the
gradients of all ranks become one, and take turns, pass by pass.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import sparsewire as sw
from sparsewire import kernels
from sparsewire.bench.linear_plan import DENSE, LinearPlan, LinearRecord
from sparsewire.bench.memory import peak_growth
from sparsewire.bench.peers import PEERS, allreduce_in_place
from sparsewire.bench.worker import gloo_group, teller
from sparsewire.communicator.agreement import gather
from sparsewire.errors import InputError
from sparsewire.launch.emulation import interface_bytes
from sparsewire.launch.events import say
from sparsewire.linear.exchange import LOSSY, Exact, Exchange, Lossy
from sparsewire.linear.generate import url_like, webspam_like
from sparsewire.linear.libsvm import load_libsvm
from sparsewire.linear.losses import LOSSES
from sparsewire.linear.problem import Array, Coefficients, Problem
from sparsewire.linear.scoring import in_portions
from sparsewire.linear.sgd import SGD, Options
from sparsewire.linear.training import mean_loss, over_ranks
from sparsewire.vector import SparseVector

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = [
    "ALPHA",
    "GENERATORS",
    "compare",
    "data_facts",
    "judge",
    "load_problem",
    "main",
    "measure_memory",
]

GENERATORS = {"url": url_like, "webspam": webspam_like}
DENSE_ALGORITHM = "dense_ring"
ALPHA = 1e-4  # of the l2 penalty: what our estimators and scikit-learn's have by default
WARM_UP_ROWS = 64  # of a rank


def main() -> None:
    plan = LinearPlan.from_json(sys.argv[1])
    with sw.init(timeout=plan.timeout_s) as comm, _peer_group(plan, comm):
        found = measure_memory(comm, plan) if plan.measure == "memory" else compare(comm, plan, teller(comm))
        of_ranks = gather(comm, found)
        if comm.rank == 0:
            say({"found": of_ranks})
        comm.barrier()  # nobody takes the group down while somebody still uses it


def _peer_group(plan: LinearPlan, comm: sw.Communicator) -> AbstractContextManager[None]:
    if not set(plan.contenders) & set(PEERS["tcp"]):
        return nullcontext()
    return gloo_group(comm, plan.peer_port, plan.in_namespace, plan.timeout_s)


# ---- the problem ----------------------------------------------------------------------------------


def load_problem(plan: LinearPlan, comm: sw.Communicator | None = None) -> Problem:
    """This rank's rows of the data set, with two classes, and the plan's loss."""
    rows, labels = _load(plan, comm)
    some = np.unique(labels)[:3].tolist()  # more than two are too many, however many there are
    everybody = gather(comm, some) if comm else [some]
    classes = sorted(set().union(*everybody))
    if len(classes) != 2:
        listed = ", ".join(f"{label:g}" for label in classes[:3])
        raise InputError(f"{plan.data} has the labels {listed}; there must be two")
    return Problem(rows, (labels == classes[1]).astype(np.int64), LOSSES[plan.loss], l2=ALPHA)


def _load(plan: LinearPlan, comm: sw.Communicator | None) -> tuple[csr_array, Array]:
    if plan.data not in GENERATORS:
        return load_libsvm(plan.data, features=plan.features, comm=comm)
    assert plan.rows is not None
    part = (comm.rank, comm.size) if comm else (0, 1)
    width: dict[str, Any] = {} if plan.features is None else {"features": plan.features}
    return GENERATORS[plan.data](plan.rows, seed=plan.seed, part=part, **width)


def data_facts(problem: Problem, comm: sw.Communicator | None = None) -> dict[str, int]:
    """Of all ranks' rows together; and how many the rank with most of them has."""
    rows, nnz = over_ranks(comm, [problem.rows.shape[0], problem.rows.nnz])
    [most_rows] = over_ranks(comm, [problem.rows.shape[0]], "max")
    return {"rows": int(rows), "features": problem.features, "nnz": int(nnz), "most_rows": int(most_rows)}


def judge(
    problem: Problem, coefficients: Coefficients, comm: sw.Communicator | None = None
) -> tuple[float, float]:
    """The objective over all ranks' rows, and the share of them that is classified right."""
    coef, intercept = coefficients
    loss = mean_loss(problem, coefficients, comm) + problem.penalty(coef)
    predicted = in_portions(lambda rows: (rows @ coef + intercept)[:, 0] > 0, problem.rows)
    is_right = np.concatenate([np.empty(0, np.bool_), *predicted]) == (problem.targets == 1)
    right, count = over_ranks(comm, [int(np.count_nonzero(is_right)), len(is_right)])
    return loss, right / count


# ---- contenders -----------------------------------------------------------------------------------


class DenseSum:
    """The gradient with all its zeros, summed in place: what there is without sparse sums.

    There is one array, which every call overwrites.
    """

    def __init__(self, allreduce: Callable[[Array], int]) -> None:
        self._allreduce = allreduce
        self._array: Array | None = None

    def __call__(self, gradient: SparseVector) -> tuple[SparseVector, int]:
        if self._array is None:
            self._array = np.empty(gradient.length, gradient.dtype)
        assert gradient.indices is not None
        kernels.spread(self._array, gradient.indices, gradient.values)
        bytes_sent = self._allreduce(self._array)
        return SparseVector.piece(gradient.length, 0, gradient.length, None, self._array), bytes_sent


def _exchange(name: str, comm: sw.Communicator, plan: LinearPlan) -> Exchange:
    if name == DENSE:
        return DenseSum(lambda array: _our_dense_sum(comm, array))
    if name in (*PEERS["tcp"], *PEERS["mpi"]):
        allreduce = allreduce_in_place(name)
        return DenseSum(lambda array: allreduce(array) or 0)
    if name in LOSSY:
        return Lossy(comm, name, plan.density)
    return Exact(comm, name)


def _our_dense_sum(comm: sw.Communicator, array: Array) -> int:
    comm.allreduce(array, algorithm=DENSE_ALGORITHM, out=array)
    assert comm.last is not None
    return comm.last.bytes_sent


@dataclass
class _Trainer:
    """A model that is trained in one of the ways, and what was seen of it."""

    solver: SGD
    record: LinearRecord

    @classmethod
    def of(cls, name: str, problem: Problem, comm: sw.Communicator, plan: LinearPlan) -> _Trainer:
        options = Options(batch_size=plan.batch, seed=plan.seed)
        return cls(SGD(problem, options, comm, _exchange(name, comm, plan)), LinearRecord(name, plan.batch))

    def take_turn(self, comm: sw.Communicator, in_namespace: bool) -> None:
        comm.barrier()
        before = interface_bytes()[0] if in_namespace else 0
        progress = self.solver.epoch()
        comm.barrier()  # behind it, all that was sent has arrived somewhere and is counted
        record = self.record
        record.seconds.append(progress.seconds)
        record.communicating.append(progress.communicating)
        if progress.bytes_sent:
            record.bytes_sent.append(progress.bytes_sent)
        if in_namespace:
            record.interface_sent.append(interface_bytes()[0] - before)


# ---- what is found --------------------------------------------------------------------------------


def compare(comm: sw.Communicator, plan: LinearPlan, tell: Callable[[int, int], None]) -> dict[str, Any]:
    """What this rank found about each contender, and about the data."""
    problem = load_problem(plan, comm)
    trainers = [_Trainer.of(name, problem, comm, plan) for name in plan.contenders]
    turns = 0
    order = random.Random(plan.seed)  # the same on every rank
    for _ in range(1 + plan.passes):
        for trainer in order.sample(trainers, len(trainers)):
            tell(turns, (1 + plan.passes) * len(trainers))
            trainer.take_turn(comm, plan.in_namespace)
            turns += 1
    _judge_models(trainers, problem, comm)
    return {"data": data_facts(problem, comm), "records": [asdict(trainer.record) for trainer in trainers]}


def _judge_models(trainers: Sequence[_Trainer], problem: Problem, comm: sw.Communicator) -> None:
    dense = next((t.solver.coefficients()[0] for t in trainers if t.record.contender == DENSE), None)
    for trainer in trainers:
        coef, intercept = coefficients = trainer.solver.coefficients()
        record = trainer.record
        record.loss, record.accuracy = judge(problem, coefficients, comm)
        record.digest = zlib.crc32(intercept.tobytes(), zlib.crc32(coef.view(np.uint8).data))
        if dense is not None:
            record.distance = float(np.linalg.norm(coef - dense) / np.linalg.norm(dense))


def measure_memory(comm: sw.Communicator, plan: LinearPlan) -> dict[str, Any]:
    """How many bytes this rank needs at most, from before it has rows until after the plan's passes.

    Neither making rows nor reading them takes much more at any time than the rows do.
    """
    [name] = plan.contenders
    held = []

    def train(plan: LinearPlan) -> None:
        problem = load_problem(plan, comm)
        solver = _Trainer.of(name, problem, comm, plan).solver
        for _ in range(plan.passes):
            solver.epoch()
        held.append(problem)

    # Connects everybody and loads what is loaded on first use.
    train(replace(plan, data="url", rows=WARM_UP_ROWS * comm.size, features=WARM_UP_ROWS))
    comm.barrier()
    peak = peak_growth(lambda: train(plan))
    rows, model = held[-1].rows, held[-1].zeros()
    shard = (rows.data, rows.indices, rows.indptr, held[-1].targets)
    return {
        "data": data_facts(held[-1], comm),
        "shard_bytes": sum(array.nbytes for array in shard),
        "model_bytes": sum(array.nbytes for array in model),
        "peak_bytes": peak,
    }


if __name__ == "__main__":
    main()
