"""``bench linear``: linear models by sparse sums of gradients, against dense ones, scikit-learn and Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsewire.bench.harness import json_file, table
from sparsewire.bench.harness import options as opt
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.figure import counted, legend_above, saved_figure, tidy, where
from sparsewire.bench.linear.plan import LinearPlan
from sparsewire.bench.linear.rows import LinearMemoryRow, LinearRow, dense_baseline, fastest_linear
from sparsewire.errors import InputError

WHOLE_PASS, COMMUNICATING = "#a9c6e3", "#e07b39"


@dataclass(frozen=True, kw_only=True)
class LinearOptions(opt.Options):
    """Linear models, pass by pass: sparse sums of gradients against dense ones, scikit-learn and Spark."""

    file: Path | None = opt.option(
        None, "A LIBSVM file with two labels, instead of --data.", by_position=True
    )
    data: str = opt.option("url", "Generated rows: url or webspam.")
    rows: int = opt.option(200_000, "To generate, on all ranks together.", min=2)
    features: int | None = opt.option(None, "Default: as many as url, webspam or the file has.", min=1)
    ranks: opt.Ranks = 4
    batch: int = opt.option(1000, "Rows of a rank and step.", min=1)
    passes: int = opt.option(5, "To time, after one that is not.", min=1)
    algorithms: opt.Names = "all"
    methods: str = opt.option("exact", "exact: by all algorithms. Others send the largest entries: topk, ...")
    density: float = opt.option(0.01, "Share of the gradient that other methods send.")
    loss: str = opt.option("logistic", "logistic, squared_hinge or hinge.")
    driver: opt.Driver = "tcp"
    network: opt.Network = None
    no_peers: opt.NoPeers = False
    no_alone: bool = opt.option(False, "Leave out scikit-learn and Spark.")
    memory: bool = opt.option(False, "Measure peak memory instead of time.")
    seed: opt.Seed = 0
    json: opt.Json = None
    plot: opt.Plot = None

    def unused(self) -> tuple[str, ...]:
        """A file has rows of its own."""
        return ("data", "rows") if self.file else ()


def run(options: LinearOptions, on_progress: OnProgress) -> list[Result[Any]]:
    """Times or, with --memory, peak memory."""
    from sparsewire.bench.linear.session import choose_contenders, run_linear, run_linear_memory

    if options.memory and options.plot:
        raise InputError("there is no plot of --memory: leave out --plot")
    plan = LinearPlan(
        ranks=options.ranks,
        data=str(options.file or options.data),
        rows=None if options.file else options.rows,
        features=options.features,
        contenders=choose_contenders(options.algorithms, options.methods),
        passes=options.passes,
        batch=options.batch,
        loss=options.loss,
        density=options.density,
        seed=options.seed,
    )
    if options.memory:
        return [make_memory_result(run_linear_memory(plan, options.driver, on_progress))]
    rows, skipped = run_linear(
        plan,
        options.driver,
        options.network,
        peers=not options.no_peers,
        alone=not options.no_alone,
        on_progress=on_progress,
    )
    return [make_result(rows, skipped)]


def make_result(rows: Sequence[LinearRow], skipped: dict[str, str]) -> Result[LinearRow]:
    """The rows, with the whole set-up above them."""
    first = next(row for row in rows if row.driver)
    header = [
        f"{table.describe_machine()}  {table.describe_driver(first.driver or '', first.network)}",
        f"{_describe_data(first)}  loss {first.loss_name}",
        f"ranks {first.ranks}  batch {first.batch:,} a rank  {first.steps_per_pass} steps a pass  "
        f"passes {first.passes} and one before",
        "time: of a pass, at its slowest rank; contenders of ranks take turns, pass by pass; "
        "others run after them, in one process",
    ]
    packages = {name: json_file.version(name) for name in ("scikit-learn", "pyspark")}
    return Result(rows, header, skipped, {"packages": packages})


def make_memory_result(rows: Sequence[LinearMemoryRow]) -> Result[LinearMemoryRow]:
    """The rows of --memory, with the whole set-up above them."""
    first = rows[0]
    header = [
        f"{_describe_data(first)}  ranks {first.ranks}  batch {first.batch:,} a rank",
        f"peak: growth of resident memory from before the rows are there until after {first.passes} "
        "passes, at the rank where the ratio is largest; fresh processes for each contender",
    ]
    return Result(rows, header, columns=MEMORY_COLUMNS)


def _describe_data(row: LinearRow | LinearMemoryRow) -> str:
    return f"data {row.data}  rows {row.rows:,}  features {row.features:,}  non-zeros {row.nnz:,}"


COLUMNS: Columns[LinearRow] = {
    "contender": lambda row: row.contender,
    "min": lambda row: table.format_seconds(row.seconds_min),
    "median": lambda row: table.format_seconds(row.seconds_median),
    "commu-\nnicating": lambda row: table.format_seconds(row.communicating_median or None),
    "share": lambda row: f"{row.communication_share:.0%}" if row.communicating_median else "-",
    "vs\ndense": lambda row: table.format_times(row.speedup_vs_dense),
    "its commu-\nnication": lambda row: table.format_times(row.communication_speedup_vs_dense),
    "vs\nSpark": lambda row: table.format_times(row.speedup_vs_spark),
    "bytes sent\na pass": lambda row: table.format_bytes(row.bytes_sent_max),
    "steps\na pass": lambda row: f"{row.steps_per_pass:,}",
    "loss": lambda row: f"{row.loss:.4f}",
    "accuracy": lambda row: f"{row.accuracy:.4f}",
    "distance\nto dense": lambda row: table.format_number(row.distance, ".1e"),
    "wrong": lambda row: table.format_wrong(row.wrong),
}
MEMORY_COLUMNS: Columns[LinearMemoryRow] = {
    "contender": lambda row: row.contender,
    "rows": lambda row: table.format_bytes(row.shard_bytes),
    "model": lambda row: table.format_bytes(row.model_bytes),
    "peak": lambda row: table.format_bytes(row.peak_bytes),
    "peak /\n(rows + model)": lambda row: f"{row.ratio:.3f}",
}


def conclusion(result: Result[Any]) -> str | None:
    """One sentence, made from the rows; none for --memory."""
    if result.columns is MEMORY_COLUMNS:
        return None
    wrong = [row.contender for row in result.rows if row.wrong]
    if wrong:
        return f"[bold red]Ranks ended with different models: {', '.join(wrong)}.[/bold red]"
    winner, dense = fastest_linear(result.rows), dense_baseline(result.rows)
    if winner is None or dense is None:
        return "All ranks have the same models."
    facts = [
        *table.facts_about_speed({dense.contender: winner.speedup_vs_dense}),
        f"{table.format_times(winner.communication_speedup_vs_dense)} that of its communication",
        *table.facts_about_speed({"Spark": winner.speedup_vs_spark}),
    ]
    return (
        f"All ranks have the same models. Fastest of the exact ones is [bold]{winner.contender}[/bold] with "
        f"{table.format_seconds(winner.seconds_median)} a pass: {', '.join(facts)}."
    )


def _style(row: LinearRow, rows: Sequence[LinearRow]) -> str | None:
    return "bold green" if isinstance(row, LinearRow) and row is fastest_linear(rows) else None


def plot(rows: Sequence[LinearRow], path: Path) -> None:
    """Draw a pass of every contender, and its communication."""
    first = next(row for row in rows if row.driver)
    with saved_figure(path, 9.0, 0.42 * len(rows) + 1.8) as figure:
        panel = figure.subplots()
        names, seconds = [row.contender for row in rows], [row.seconds_median for row in rows]
        communicating = [row.communicating_median for row in rows]
        # The bars overlap and are not stacked, because lengths do not add up on a logarithmic scale.
        panel.barh(names, seconds, color=WHOLE_PASS, label="a pass")
        panel.barh(names, communicating, height=0.35, color=COMMUNICATING, label="of it, communicating")
        for place in zip(seconds, names, strict=True):
            label = f"{place[0]:.3g} s"
            panel.annotate(label, place, (4, 0), textcoords="offset points", va="center", fontsize=9)
        panel.set_xscale("log")
        panel.set_xlim(min(filter(None, [*seconds, *communicating])) / 3, 3 * max(seconds))
        panel.invert_yaxis()
        panel.set_xlabel("seconds of a pass over the data, medians")
        tidy(panel, grid=False)
        legend_above(panel, 2)
        figure.suptitle(
            f"{first.rows:,} rows of {first.features:,} features ({first.data}): "
            f"{counted(first.ranks, 'rank')} over {where(first.driver, first.network)}, "
            f"batches of {first.batch:,}"
        )


BENCHMARK = Benchmark("bench linear", LinearOptions, run, COLUMNS, conclusion, _style, plot)
