"""One rank of ``sparsewire linear fit``, as a process: ``python -m sparsewire.linear.fit_rank PLAN``.

Rank 0 alone speaks to the command, in events:

    {"doing": "reading ..."}   what takes longer than it looks
    {"note": ...}              what the user should know
    {"data": {...}}            what there is to learn from
    {"pass": {...}}            after every pass, whose model is then in the file
    {"end": {...}}
    {"refused": ...}           instead of all that follows: what is wrong with the input

Errors in the input are raised on every rank, and the user hears of them once.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from sparsewire.communicator import Communicator
from sparsewire.communicator.agreement import gather, refused_by_all
from sparsewire.communicator.join import init
from sparsewire.errors import InputError, MissingExtraError, SparsewireError
from sparsewire.launch.events import JobSpec, say
from sparsewire.linear.estimators import LinearModel
from sparsewire.linear.libsvm import read_libsvm
from sparsewire.linear.model_file import make_model, save_model
from sparsewire.linear.problem import Array
from sparsewire.linear.reading import read_for_model, targets_of, unknown_entries
from sparsewire.linear.scoring import in_portions, score
from sparsewire.linear.training import Progress, over_ranks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["FitPlan", "Pass", "fit", "main", "run"]

Tell: TypeAlias = Callable[[dict[str, Any]], None]

QUIET_S = 2.0  # what is over by then needs no word


@dataclass(frozen=True)
class FitPlan(JobSpec):
    """What all ranks do, as one command-line argument."""

    train: str
    loss: str
    parameters: dict[str, Any]  # of the estimator
    test: str | None = None
    model: str | None = None
    features: int | None = None
    zero_based: bool | str = "auto"  # as the training file looks
    dtype: str = "float32"
    positive: list[float] | None = None  # labels that are one class, against the rest

    @classmethod
    def from_json(cls, text: str) -> FitPlan:
        return cls(**json.loads(text))  # its sequences are lists, as those of parameters are


@dataclass(frozen=True)
class Pass:
    """What a pass has brought, and what it took: each figure that of the rank where it is largest."""

    epoch: int
    loss: float
    held_out_loss: float | None
    test_score: float | None
    seconds: float
    computing: float
    communicating: float
    bytes_sent: int


def main() -> None:
    signal.signal(signal.SIGTERM, _leave)
    plan = FitPlan.from_json(sys.argv[1])
    with init() as comm:
        tell = say if comm.rank == 0 else _keep_quiet
        _tell_warnings(tell)
        sys.exit(run(comm, plan, tell))


def run(comm: Communicator, plan: FitPlan, tell: Tell) -> int:
    """``fit``; an exit code, which is 2 where the input is wrong."""
    try:
        fit(comm, plan, tell)
    except (InputError, MissingExtraError) as error:
        tell({"refused": _reason(comm, error)})
        comm.barrier()  # the first to leave takes the others with it
        return 2
    return 0


def fit(comm: Communicator, plan: FitPlan, tell: Tell) -> LinearModel:
    """Train with this rank's rows; after every pass rank 0 saves the model, which all have."""
    model = make_model(plan.loss, comm=comm, **plan.parameters)
    with _telling_if_slow(tell, f"reading {plan.train}"):
        rows, labels, zero_based = read_libsvm(
            plan.train, features=plan.features, zero_based=plan.zero_based, dtype=plan.dtype, comm=comm
        )
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
        comm.barrier()  # or the next pass's communication would seem to take what rank 0 did since
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
    )


def _score(comm: Communicator, model: LinearModel, rows: csr_array, targets: Array) -> float | None:
    return score(model, in_portions(model.predict, rows), targets, comm)


def _reason(comm: Communicator, error: SparsewireError) -> str:
    """In the words of the rank that found it, to whom all refer."""
    mine = f"rank {comm.rank}: "
    found = str(error).removeprefix(mine) if str(error).startswith(mine) else None
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
    """Those for the user become notes."""
    show = warnings.showwarning

    def tell_or_show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            tell({"note": str(message)})
        else:
            show(message, category, *where, **more)

    warnings.showwarning = tell_or_show


def _keep_quiet(event: dict[str, Any]) -> None:
    """For other ranks than 0."""


def _leave(number: int, frame: object) -> NoReturn:
    """End as an exception does: an unfinished file is removed on the way out."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
