"""``bench train``: real training under DDP, our methods beside dense, fp16 and PowerSGD."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sparsewire.bench.harness import contenders, table
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.figure import counted, saved_figure, tidy
from sparsewire.bench.harness.options import Json, Network, Options, Plot, Seed, Selected, option
from sparsewire.bench.harness.session import run_ranks
from sparsewire.bench.train.methods import OURS
from sparsewire.bench.train.rank import REFERENCE, TrainPlan
from sparsewire.bench.train.rows import FINAL_STEPS, FLOOR, TrainRow, make_train_rows
from sparsewire.bench.train.tasks import TASKS, Task, choose_task
from sparsewire.compress.schedule import checked_density
from sparsewire.errors import MissingExtraError

# The line of every method that trains, the same in every picture; ours are solid.
STYLES: dict[str, dict[str, Any]] = {
    "dense": {"color": "black", "linestyle": "--"},
    "fp16": {"color": "#888888", "linestyle": "--"},
    "powersgd": {"color": "#9b5fc0", "linestyle": "--"},
    "sparse-gloo": {"color": "#b8860b", "linestyle": "--"},
    "topk": {"color": "#e07b39"},
    "ok_topk": {"color": "#2a6fbb"},
    "block_topk": {"color": "#2a9d6f"},
    "exact": {"color": "#e0533d"},
    "exact-sparse": {"color": "#17a2b8"},
}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """Real training under DDP: time and loss of our methods, of dense, fp16 and PowerSGD, side by side."""

    ranks: int = option(4, "Number of ranks.", flags=("-n", "--ranks"), min=2)
    task: str = option("chars", "chars, embedding or mnist.")
    methods: str | None = option(None, "Names, separated by commas; default: those that suit the task.")
    density: Selected = 0.01
    warmup_steps: int = option(0, "Steps over which the density falls from 25%.", min=0)
    steps: int = option(300, "Of each training.", min=1)
    seeds: int = option(1, "Trainings; the first one is timed.", min=1)
    network: Network = None
    width: int | None = option(None, "Of the model's layers; default: the task's.", min=1)
    data: Path | None = option(None, "Instead of what this machine has: a text; for mnist an .npz.")
    seed: Seed = 0
    json: Json = None
    plot: Plot = None


def run(options: TrainOptions, on_progress: OnProgress) -> list[Result[TrainRow]]:
    """Our methods beside the peers of the task."""
    task = choose_task(options.task, options.data)
    plan = TrainPlan(
        ranks=options.ranks,
        task=options.task,
        methods=choose_methods(options.methods, task),
        steps=options.steps,
        seed=options.seed,
        width=options.width or task.width,
        density=options.density,
        warmup_steps=options.warmup_steps,
        data=str(options.data) if options.data else None,
    )
    return [make_result(run_train(plan, options.seeds, options.network, on_progress))]


def choose_methods(text: str | None, task: Task) -> tuple[str, ...]:
    """The names in ``a,b,c``; by default those that suit the task."""
    return task.methods if text is None else tuple(contenders.choose_names(text, "method", list(OURS)))


def run_train(plan: TrainPlan, seeds: int, network: str | None, on_progress: OnProgress) -> list[TrainRow]:
    """The plan's methods beside the task's peers, trained with ``seeds`` seeds.

    The first training is timed.  The others are for the loss, which no network changes, so they have none.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError.of("torch", "torch")
    checked_density(plan.density)
    task = TASKS[plan.task]
    every = (*task.peers, *plan.methods)
    trained = tuple(method for method in every if method not in (FLOOR, REFERENCE))
    found = []
    for seed in range(seeds):
        of_seed = replace(plan, seed=plan.seed + seed, methods=trained if seed else every)
        doing = f"training {seed + 1} of {seeds}"
        [event] = run_ranks(of_seed, "tcp", None if seed else network, partial(on_progress, doing))
        found.append(event["found"])
    return make_train_rows(plan, task, found, network)


def make_result(rows: Sequence[TrainRow]) -> Result[TrainRow]:
    """The rows, with the whole set-up above them."""
    first = rows[0]
    ours = next(row for row in rows if row.method in OURS)
    header = [
        f"{table.describe_machine('torch')}  {table.describe_driver('tcp', first.network)}",
        f"task {first.task}  parameters {first.parameters:,}  ranks {first.ranks}  "
        f"batch {first.batch} a rank  steps {first.steps}  seeds {max(row.seeds for row in rows)}  "
        f"density {ours.density:g} after {ours.warmup_steps} steps of warm-up",
        "time: slowest rank of each step; barrier before it, not in it; methods take turns",
        f"loss: mean of the last {FINAL_STEPS} steps, all ranks and seeds, on the same batches",
    ]
    return Result(rows, header)


COLUMNS: Columns[TrainRow] = {
    "method": lambda row: row.method,
    "min": lambda row: table.format_seconds(row.step_seconds_min),
    "median": lambda row: table.format_seconds(row.step_seconds_median),
    "x floor": lambda row: f"{row.ratio_to_floor:.2f}",
    "vs\ndense": lambda row: table.format_times(row.speedup_vs_dense),
    "samples\nper second": lambda row: f"{row.samples_per_second:,.0f}",
    "bytes sent\na step": lambda row: table.format_bytes(row.bytes_sent),
    "loss": lambda row: table.format_number(row.final_loss, ".4f"),
    "in dense\nloss": lambda row: table.format_number(row.loss_vs_dense, ".3f"),
    "distance to\nfloat64": lambda row: table.format_number(row.distance_to_float64, ".1e"),
    "wrong": lambda row: table.format_wrong(row.wrong),
}


def conclusion(result: Result[TrainRow]) -> str:
    """What our methods cost and reach, or who is wrong."""
    wrong = [row.method for row in result.rows if row.wrong]
    if wrong:
        return f"[bold red]Ranks ended with different parameters: {', '.join(wrong)}.[/bold red]"
    facts = [
        f"[bold]{row.method}[/bold] {row.ratio_to_floor:.2f}x the floor, "
        f"{table.format_times(row.speedup_vs_dense)} the speed of dense, {row.loss_vs_dense:.3f} of its loss"
        for row in result.rows
        if row.method in OURS
    ]
    return f"{'; '.join(facts)}."


def plot(rows: Sequence[TrainRow], path: Path) -> None:
    """Draw the loss of every method that trains against steps and against time."""
    first = rows[0]
    with saved_figure(path, 12.0, 4.6) as figure:
        against_steps, against_time = figure.subplots(1, 2, sharey=True)
        drawn = [row for row in rows if row.method in STYLES]
        for row in sorted(drawn, key=lambda row: list(STYLES).index(row.method)):
            style = {"linewidth": 1.6, **STYLES[row.method]}
            against_steps.plot(row.curve_steps, row.curve_losses, label=row.method, **style)
            against_time.plot(row.curve_seconds, row.curve_losses, **style)
            end = row.curve_seconds[-1], row.curve_losses[-1]
            against_time.plot(*end, "o", color=style["color"], markersize=5)
        against_steps.set(xlabel="step", ylabel="training loss")
        against_time.set_xlabel("seconds of training, at the slowest rank of each step")
        tidy(against_steps)
        tidy(against_time)
        against_steps.legend(frameon=False, fontsize=9, ncols=2)
        where = f"at {first.network}" if first.network else "over loopback"
        figure.suptitle(
            f"Training {first.parameters / 1e6:.1f}M parameters ({first.task}) on {first.ranks} ranks "
            f"{where}, mean of {counted(max(row.seeds for row in rows), 'seed')}"
        )


BENCHMARK = Benchmark("bench train", TrainOptions, run, COLUMNS, conclusion, plot=plot)
