"""One rank of ``bench linear``.

Every contender has a model of its own; rows, batches and steps are the same for all.  Contenders differ in
how the gradients of all ranks are added up.  They take turns, pass by pass.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import sparsewire as sw
from sparsewire import kernels
from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.harness.peers import PEER_NAMES, allreduce_in_place
from sparsewire.bench.harness.variants import is_dense
from sparsewire.bench.harness.worker import OnStep
from sparsewire.bench.linear.plan import DENSE, LinearPlan, LinearRecord
from sparsewire.bench.memory import peak_growth
from sparsewire.communicator.agreement import gather
from sparsewire.errors import InputError
from sparsewire.launch.emulation import interface_bytes
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

GENERATORS = {"url": url_like, "webspam": webspam_like}
DENSE_ALGORITHM = next(name for name in ALGORITHMS if is_dense(name))
ALPHA = 1e-4  # of the l2 penalty, the default of our estimators and of scikit-learn's
WARM_UP_ROWS = 64  # of a rank


# ---- the problem ----------------------------------------------------------------------------------


def load_problem(plan: LinearPlan, comm: sw.Communicator | None = None) -> Problem:
    """This rank's rows of the data set, with two classes, and the plan's loss."""
    rows, labels = _load(plan, comm)
    some = np.unique(labels)[:3].tolist()  # three are enough to know that there are too many
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
    """Sizes of all ranks' rows together, and how many rows the rank with most of them has."""
    rows, nnz = over_ranks(comm, [problem.rows.shape[0], problem.rows.nnz])
    [most_rows] = over_ranks(comm, [problem.rows.shape[0]], "max")
    return {"rows": int(rows), "features": problem.features, "nnz": int(nnz), "most_rows": int(most_rows)}


def evaluate(
    problem: Problem, coefficients: Coefficients, comm: sw.Communicator | None = None
) -> tuple[float, float]:
    """The objective over all ranks' rows, and the share of rows that are classified right."""
    coef, intercept = coefficients
    loss = mean_loss(problem, coefficients, comm) + problem.penalty(coef)
    predicted = in_portions(lambda rows: (rows @ coef + intercept)[:, 0] > 0, problem.rows)
    is_right = np.concatenate([np.empty(0, np.bool_), *predicted]) == (problem.targets == 1)
    right, count = over_ranks(comm, [int(np.count_nonzero(is_right)), len(is_right)])
    return loss, right / count


# ---- contenders -----------------------------------------------------------------------------------


class DenseSum:
    """Sums the gradient with all its zeros in place, as one has to do without sparse sums.

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
    if name in PEER_NAMES:
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
    """A model that one contender trains, and its record."""

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
        comm.barrier()  # after it, everything that was sent has arrived and is counted
        record = self.record
        record.seconds.append(progress.seconds)
        record.communicating.append(progress.communicating)
        if progress.bytes_sent:
            record.bytes_sent.append(progress.bytes_sent)
        if in_namespace:
            record.interface_sent.append(interface_bytes()[0] - before)


# ---- measurements ---------------------------------------------------------------------------------


def compare(comm: sw.Communicator, plan: LinearPlan, on_step: OnStep) -> dict[str, Any]:
    """What this rank recorded about each contender, and the sizes of the data."""
    problem = load_problem(plan, comm)
    trainers = [_Trainer.of(name, problem, comm, plan) for name in plan.contenders]
    turns = 0
    order = random.Random(plan.seed)  # the same on every rank
    for _ in range(1 + plan.passes):
        for trainer in order.sample(trainers, len(trainers)):
            on_step(turns, (1 + plan.passes) * len(trainers))
            trainer.take_turn(comm, plan.in_namespace)
            turns += 1
    _evaluate_models(trainers, problem, comm)
    return {"data": data_facts(problem, comm), "records": [asdict(trainer.record) for trainer in trainers]}


def _evaluate_models(trainers: Sequence[_Trainer], problem: Problem, comm: sw.Communicator) -> None:
    dense = next((t.solver.coefficients()[0] for t in trainers if t.record.contender == DENSE), None)
    for trainer in trainers:
        coef, intercept = coefficients = trainer.solver.coefficients()
        record = trainer.record
        record.loss, record.accuracy = evaluate(problem, coefficients, comm)
        record.digest = zlib.crc32(intercept.tobytes(), zlib.crc32(coef.view(np.uint8).data))
        if dense is not None:
            record.distance = float(np.linalg.norm(coef - dense) / np.linalg.norm(dense))


def measure_memory(comm: sw.Communicator, plan: LinearPlan, on_step: OnStep) -> dict[str, Any]:
    """This rank's peak memory, from before it has rows until after the plan's passes.

    Neither generating rows nor reading them takes much more memory than the rows themselves.
    """
    [name] = plan.contenders
    held = []

    def train(plan: LinearPlan) -> None:
        problem = load_problem(plan, comm)
        solver = _Trainer.of(name, problem, comm, plan).solver
        for _ in range(plan.passes):
            solver.epoch()
        held.append(problem)

    # The warm-up connects all ranks and loads what is loaded on first use.
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
