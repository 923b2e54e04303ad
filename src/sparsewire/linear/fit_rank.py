"""One rank of ``sparsewire linear fit``, as a process: ``python -m sparsewire.linear.fit_rank PLAN``.

Only rank 0 sends events to the command:

    {"doing": "reading ..."}   what takes so long, after some seconds
    {"note": ...}              what the user should know
    {"data": {...}}            the size of the data
    {"pass": {...}}            the figures of a pass, after its model is in the file
    {"end": {...}}             the score on the training rows
    {"refused": ...}           what is wrong with the input; no event follows

Errors in the input are raised on every rank, and the user sees them once.
"""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sparsewire.communicator import Communicator
from sparsewire.communicator.agreement import gather, refused_by_all
from sparsewire.communicator.join import init
from sparsewire.errors import InputError, MissingExtraError, SparsewireError
from sparsewire.launch.events import JobSpec, say
from sparsewire.launch.signals import leave_by_exception
from sparsewire.linear.libsvm import ReadOptions, read_libsvm
from sparsewire.linear.model import LinearModel
from sparsewire.linear.model_file import make_model, save_model
from sparsewire.linear.problem import Array
from sparsewire.linear.reading import read_for_model, targets_of, unknown_entries
from sparsewire.linear.scoring import in_portions, score
from sparsewire.linear.training import Progress, over_ranks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["FitPlan", "Pass", "fit", "main", "run"]

Tell: TypeAlias = Callable[[dict[str, Any]], None]

QUIET_S = 2.0  # no event is sent for what takes less


@dataclass(frozen=True)
class FitPlan(JobSpec):
    """What all ranks do, as one command-line argument; its sequences are lists."""

    train: str
    loss: str
    parameters: dict[str, Any]  # of the estimator
    test: str | None = None
    model: str | None = None
    features: int | None = None
    zero_based: bool | str = "auto"  # "auto": found in the training file
    dtype: str = "float32"
    positive: list[float] | None = None  # labels of one class; all other labels are the other class

    @classmethod
    def from_json(cls, text: str) -> FitPlan:
        return cls(**json.loads(text))  # ``parameters`` may hold sequences too, which stay as they are


@dataclass(frozen=True)
class Pass:
    """The result of a pass, and its time and traffic: each figure of the rank where it is largest."""

    epoch: int
    loss: float
    held_out_loss: float | None
    test_score: float | None
    seconds: float
    computing: float
    communicating: float
    bytes_sent: int
    gap: float | None = None  # None: the solver has no certificate


def main() -> None:
    """Be one rank: train as the plan in the command line says, and end with an exit code."""
    leave_by_exception()  # so that an unfinished file is removed
    plan = FitPlan.from_json(sys.argv[1])
    with init() as comm:
        tell = say if comm.rank == 0 else _send_nothing
        _tell_warnings(tell)
        sys.exit(run(comm, plan, tell))


def run(comm: Communicator, plan: FitPlan, tell: Tell) -> int:
    """Call ``fit``; returns an exit code, which is 2 if the input is wrong."""
    try:
        fit(comm, plan, tell)
    except (InputError, MissingExtraError) as error:
        tell({"refused": _reason(comm, error)})
        comm.barrier()  # the launcher stops all ranks when the first of them ends with 2
        return 2
    return 0


def fit(comm: Communicator, plan: FitPlan, tell: Tell) -> LinearModel:
    """The model, trained with this rank's rows and those of the others; rank 0 saves it after every pass."""
    model = make_model(plan.loss, comm=comm, **plan.parameters)
    with _telling_if_slow(tell, f"reading {plan.train}"):
        options = ReadOptions(plan.features, plan.zero_based, plan.dtype)
        rows, labels, zero_based = read_libsvm(plan.train, options, comm)
    with refused_by_all(comm):
        targets = targets_of(model, labels, plan.positive, plan.train)
    test = _read_test(comm, plan, model, rows.shape[1], zero_based, tell) if plan.test else None
    _tell_data(comm, rows, test, tell)
    for progress in model.iter_fit(rows, targets):
        if plan.model and comm.rank == 0:
            with refused_by_all(comm):
                save_model(plan.model, model, zero_based=zero_based, positive=plan.positive)
        test_score = _score(comm, model, *test) if test else None
        tell({"pass": asdict(_make_pass(comm, model.n_iter_, progress, test_score))})
        comm.barrier()  # otherwise the next pass would count waiting for rank 0 as communication
    tell({"end": {"training_score": _score(comm, model, rows, targets)}})
    return model


def _read_test(
    comm: Communicator, plan: FitPlan, model: LinearModel, features: int, zero_based: bool, tell: Tell
) -> tuple[csr_array, Array]:
    assert plan.test is not None
    with _telling_if_slow(tell, f"reading {plan.test}"):
        rows, labels, left_out = read_for_model(
            plan.test, features=features, zero_based=zero_based, dtype=plan.dtype, comm=comm
        )
    if left_out:
        tell({"note": unknown_entries(plan.test, left_out, features)})
    with refused_by_all(comm):
        return rows, targets_of(model, labels, plan.positive, plan.test)


def _tell_data(comm: Communicator, rows: csr_array, test: tuple[csr_array, Array] | None, tell: Tell) -> None:
    count, entries, test_count = over_ranks(comm, [rows.shape[0], rows.nnz, test[0].shape[0] if test else 0])
    data = {"rows": int(count), "features": rows.shape[1], "entries": int(entries)}
    tell({"data": {**data, "test_rows": int(test_count) if test else None}})


def _make_pass(comm: Communicator, epoch: int, progress: Progress, test_score: float | None) -> Pass:
    computing = progress.seconds - progress.communicating
    mine = [progress.seconds, computing, progress.communicating, progress.bytes_sent]
    seconds, computing, communicating, bytes_sent = over_ranks(comm, mine, "max")
    return Pass(
        epoch,
        progress.loss,
        progress.held_out_loss,
        test_score,
        seconds,
        computing,
        communicating,
        int(bytes_sent),
        progress.gap,
    )


def _score(comm: Communicator, model: LinearModel, rows: csr_array, targets: Array) -> float | None:
    return score(model, in_portions(model.predict, rows), targets, comm)


def _reason(comm: Communicator, error: SparsewireError) -> str:
    """The error's text on the rank that found it, without the rank, to which all others refer."""
    prefix = f"rank {comm.rank}: "
    found = str(error).removeprefix(prefix) if str(error).startswith(prefix) else None
    return next((reason for reason in gather(comm, found) if reason is not None), str(error))


@contextmanager
def _telling_if_slow(tell: Tell, what: str) -> Iterator[None]:
    timer = threading.Timer(QUIET_S, tell, [{"doing": what}])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell_warnings(tell: Tell) -> None:
    """From now on send warnings for the user (UserWarning) as notes."""
    show = warnings.showwarning

    def tell_or_show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            tell({"note": str(message)})
        else:
            show(message, category, *where, **more)

    warnings.showwarning = tell_or_show


def _send_nothing(event: dict[str, Any]) -> None:
    """Used by all ranks but rank 0."""


if __name__ == "__main__":
    main()
