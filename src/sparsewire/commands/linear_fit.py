"""``sparsewire linear fit`` from the outside: start the ranks, show how far they are, print a summary."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table

from sparsewire.bench.harness.progress import make_bar
from sparsewire.bench.harness.table import format_bytes, format_number, format_seconds
from sparsewire.communicator.join import init
from sparsewire.errors import InputError, SparsewireError
from sparsewire.files import require_writable
from sparsewire.launch.emulation import parse_rate
from sparsewire.launch.events import EventReader
from sparsewire.launch.job import run_job
from sparsewire.linear.fit_rank import FitPlan, Pass
from sparsewire.linear.losses import SQUARED
from sparsewire.linear.model_file import make_model, model_facts
from sparsewire.linear.parameters import SDCA
from sparsewire.linear.scoring import score_name
from sparsewire.linear.training import within_the_optimum

# Shows the events of ``linear.fit_rank`` to the user.
Show: TypeAlias = Callable[[dict[str, Any]], None]

DTYPES = ("float32", "float64")
GAP = 0.001  # where training ends, if the user does not say and the solver knows its gap


class FitError(SparsewireError):
    """A rank failed while it was training; the message ends with what it printed last."""


@dataclass
class Fitted:
    """What the ranks have reported so far."""

    score_name: str
    data: dict[str, int | None] = field(default_factory=dict)  # rows, features, entries, test_rows
    passes: list[Pass] = field(default_factory=list)
    training_score: float | None = None
    refused: str | None = None  # what is wrong with the input, if ranks refused it

    def add(self, event: dict[str, Any]) -> None:
        self.refused = event.get("refused", self.refused)
        self.data = event.get("data", self.data)
        if "pass" in event:
            self.passes.append(Pass(**event["pass"]))
        if "end" in event:
            self.training_score = event["end"]["training_score"]


def run_fit(plan: FitPlan, ranks: int, driver: str, network: str | None) -> Fitted:
    """Train with so many ranks; however it ends, the model of the last complete pass is in its file."""
    rate = parse_rate(network) if network else None
    fitted = Fitted(_checked(plan))
    plan = with_tolerance(plan)
    with _reporting_the_model(plan.model), _shown(plan.parameters["max_iter"], fitted.score_name) as show:

        def on_event(event: dict[str, Any]) -> None:
            fitted.add(event)
            show(event)

        reader = EventReader(on_event)
        arguments = ["-m", "sparsewire.linear.fit_rank", plan.to_json()]
        outcome = run_job(arguments, ranks, driver=driver, bits_per_second=rate, on_line=reader.hear)
        if fitted.refused is not None:
            raise InputError(fitted.refused)
        if outcome.code != 0:
            raise FitError(f"{outcome}; its last words:\n{reader.tail(outcome.rank)}")
    return fitted


def _checked(plan: FitPlan) -> str:
    """The name of the score; raises InputError for an impossible plan before files are read."""
    if plan.dtype not in DTYPES:
        raise InputError(f"unknown dtype {plan.dtype!r}; known are {', '.join(DTYPES)}")
    if plan.loss == SQUARED.name and (plan.positive or plan.parameters.get("class_weight")):
        raise InputError(
            f"--positive and --class-weight are for classes; --loss {SQUARED.name} learns values"
        )
    if plan.model:
        require_writable(plan.model)
    with init() as alone:  # training on two rows shows what is wrong with parameters
        model = make_model(plan.loss, comm=alone, **plan.parameters)
        next(model.iter_fit(np.eye(2, dtype=plan.dtype), np.arange(2)))
    return score_name(model)


def with_tolerance(plan: FitPlan) -> FitPlan:
    """The plan, with a ``tol`` if the user gave none and the solver has a certificate."""
    model = make_model(plan.loss, **plan.parameters)
    if model.tol is not None or model.solver_name() != SDCA:
        return plan
    return replace(plan, parameters=plan.parameters | {"tol": GAP})


@contextmanager
def _reporting_the_model(model: str | None) -> Iterator[None]:
    """Print which pass the model in the file comes from, if training ends early."""
    before = _file_id(model)
    try:
        yield
    except BaseException as error:
        if model and _file_id(model) != before:
            _print(f"{model} is the model after pass {model_facts(model)['epochs']}")
        elif model and not isinstance(error, Exception):  # Ctrl-C, or another signal
            _print(f"no pass was complete, so {model} was not written")
        raise


def _file_id(path: str | None) -> tuple[int, int] | None:
    """A value that changes with every replacement, so that our model differs from an earlier one."""
    if path is None or not os.path.exists(path):
        return None
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns


# ---- progress, on standard error ------------------------------------------------------------------


def _shown(epochs: int, score: str) -> AbstractContextManager[Show]:
    """A bar on a terminal; elsewhere a line for every pass."""
    return _bar(epochs, score) if sys.stderr.isatty() else nullcontext(_lines(epochs, score))


@contextmanager
def _bar(epochs: int, score: str) -> Iterator[Show]:
    with make_bar("{task.fields[figures]}") as bar:
        task = bar.add_task("starting", total=epochs, figures="")
        bar.refresh()

        def show(event: dict[str, Any]) -> None:
            if "note" in event:
                bar.console.print(event["note"], markup=False, highlight=False)
            if "doing" in event or "data" in event:
                bar.update(task, description=event.get("doing", "training"), refresh=True)
            if "pass" in event:
                record = Pass(**event["pass"])
                figures = "  ".join(_figures(record, score))
                bar.update(task, completed=record.epoch, figures=figures, refresh=True)

        yield show


def _lines(epochs: int, score: str) -> Show:
    def show(event: dict[str, Any]) -> None:
        for text in (event.get("note"), event.get("doing")):
            if text:
                _print(text)
        if "pass" in event:
            record = Pass(**event["pass"])
            _print(f"pass {record.epoch} of {epochs}: {', '.join(_figures(record, score))}")

    return show


def _print(text: str) -> None:
    print(f"linear fit: {text}", file=sys.stderr, flush=True)


def _figures(record: Pass, score: str) -> Sequence[str]:
    figures = [f"loss {_loss(record)}"]
    if record.held_out_loss is not None:
        figures.append(f"held out {record.held_out_loss:.6g}")
    if record.test_score is not None:
        figures.append(f"test {score} {record.test_score:.4f}")
    return [
        *figures,
        f"{format_seconds(record.seconds)}",
        f"{format_seconds(record.computing)} computing",
        f"{format_seconds(record.communicating)} communicating",
        f"{format_bytes(record.bytes_sent)} sent",
    ]


def _loss(record: Pass) -> str:
    return f"{record.loss:.6g}" + ("" if record.gap is None else f" ({within_the_optimum(record.gap)})")


def print_fit(console: Console, plan: FitPlan, fitted: Fitted) -> None:
    """Print the data, the result, and what a pass took."""
    table = Table.grid(padding=(0, 2))
    for name, text in _summary(plan, fitted).items():
        table.add_row(name, text)
    console.print(table)


def _summary(plan: FitPlan, fitted: Fitted) -> dict[str, str]:
    data, last = fitted.data, fitted.passes[-1]
    lines = {
        "data": f"{data['rows']:,} rows, {data['features']:,} features, {data['entries']:,} non-zeros",
        "passes": f"{len(fitted.passes)}",
        "loss": _loss(last),
        f"training {fitted.score_name}": format_number(fitted.training_score, ".4f"),
    }
    if plan.test:
        lines[f"test {fitted.score_name}"] = (
            f"{format_number(last.test_score, '.4f')} of {data['test_rows']:,} rows"
        )
    seconds, computing, communicating, sent = (
        statistics.median(getattr(record, name) for record in fitted.passes)
        for name in ("seconds", "computing", "communicating", "bytes_sent")
    )
    lines["a pass"] = (
        f"{format_seconds(seconds)}: {format_seconds(computing)} computing, "
        f"{format_seconds(communicating)} communicating, {format_bytes(round(sent))} sent "
        "(medians; each of the rank where it is most)"
    )
    if plan.model:
        lines["model"] = f"{plan.model}, {format_bytes(os.path.getsize(plan.model))}"
    return lines
