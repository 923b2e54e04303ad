"""``bench step``: the whole training step, from gradient to mean, sparse methods against dense ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparsewire.bench.harness import clock, contenders, session, table
from sparsewire.bench.harness import options as opt
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.figure import legend_above, power_of_two, saved_figure, tidy, where
from sparsewire.bench.harness.peers import dense_peer, reason_to_skip
from sparsewire.bench.harness.problem import Case, parse_size
from sparsewire.bench.step.rank import StepPlan
from sparsewire.bench.step.rows import ENOUGH_SELECTED, StepRow, fastest_step, make_step_rows
from sparsewire.sync import METHODS

PHASES = {"select": "#2a6fbb", "exchange": "#e07b39", "apply": "#2a9d6f"}
LONGEST_DENSE = 2.0  # of the longest sparse bar
MUCH_SELECTED = 1.25  # of k


@dataclass(frozen=True, kw_only=True)
class StepOptions(opt.Options):
    """The whole training step, from gradient to mean: sparse methods against dense gloo or MPI."""

    ranks: opt.Ranks = 4
    size: opt.Size = "16M"
    density: opt.Selected = 0.01
    methods: opt.Names = "all"
    driver: opt.Driver = "tcp"
    network: opt.Network = None
    seconds: opt.Seconds = 20.0
    seed: opt.Seed = 0
    json: opt.Json = None
    plot: opt.Plot = None


def run(options: StepOptions, on_progress: OnProgress) -> list[Result[StepRow]]:
    """The whole step of each method beside dense, in turns."""
    case = Case(options.ranks, parse_size(options.size), options.density, seed=options.seed)
    known = list(METHODS)
    methods = known if options.methods == "all" else contenders.choose_names(options.methods, "method", known)
    dense = dense_peer(options.driver)
    reason = reason_to_skip(dense, case.dtype)
    limit = session.timeout_s(case, options.network)
    peers = () if reason else (dense,)
    plan = StepPlan((case,), tuple(methods), options.seconds, peers=peers, timeout_s=limit)
    [event] = session.run_ranks(plan, options.driver, options.network, partial(on_progress, "measuring"))
    rows = make_step_rows(case, event["found"], options.driver, options.network)
    return [make_result(case, rows, {dense: reason} if reason else {})]


def make_result(case: Case, rows: Sequence[StepRow], skipped: Mapping[str, str]) -> Result[StepRow]:
    """The rows, with the whole set-up above them."""
    first, counts = rows[0], sorted({len(row.seconds) for row in rows})
    header = [
        f"{table.describe_machine()}  ranks {case.ranks}  length {case.length:,}  {case.dtype}  "
        f"density {case.density:g}  seed {case.seed}",
        f"{table.describe_driver(first.driver, first.network)}  warm-up {clock.WARM_UP_ROUNDS}  "
        f"iterations {counts[0]}-{counts[-1]}",
        "time: slowest rank of each step; barrier before it, not in it; methods take turns; "
        "a renewal reuses nothing",
    ]
    if not all(row.selects_enough for row in rows):
        header.append(f"* selects less than {ENOUGH_SELECTED:g} k, so it is not compared")
    return Result(rows, header, skipped)


COLUMNS: Columns[StepRow] = {
    "method": lambda row: row.name,
    "kind": lambda row: row.kind,
    "min": lambda row: table.format_seconds(row.seconds_min),
    "median": lambda row: table.format_seconds(row.seconds_median),
    "select": lambda row: table.format_seconds(row.select_seconds) if row.kind != "dense" else "-",
    "exchange": lambda row: table.format_seconds(row.exchange_seconds),
    "apply": lambda row: table.format_seconds(row.apply_seconds),
    "vs gloo\ndense": lambda row: table.format_times(row.speedup_vs_gloo_dense),
    "vs gloo\nby min": lambda row: table.format_times(row.speedup_min_vs_gloo_dense),
    "vs mpi\ndense": lambda row: table.format_times(row.speedup_vs_mpi_dense),
    "vs mpi\nby min": lambda row: table.format_times(row.speedup_min_vs_mpi_dense),
    "sent\nin 4k": lambda row: table.format_number(row.bytes_sent_over_4k),
    "received\nin 4k": lambda row: table.format_number(row.bytes_received_over_4k),
    "selected\nin k": lambda row: table.format_range(row.selected_over_k),
    "wrong": lambda row: table.format_wrong(row.wrong),
}


def conclusion(result: Result[StepRow]) -> str:
    """One sentence, made from the rows."""
    wrong = [f"{row.method} {row.kind}" for row in result.rows if row.wrong]
    if wrong:
        return f"[bold red]Entries lost or invented by {', '.join(wrong)}: the times mean nothing.[/bold red]"
    winner = fastest_step(result.rows)
    if winner is None:
        return "Nothing is lost, and no method selected as much as it should."
    facts = table.facts_about_speed(
        {"gloo-dense": winner.speedup_vs_gloo_dense, "mpi-dense": winner.speedup_vs_mpi_dense}
    )
    speed = f": {', '.join(facts)}" if facts else ""
    return (
        f"Nothing is lost. Fastest of those that select enough is [bold]{winner.method}[/bold] with "
        f"{table.format_seconds(winner.seconds_median)}{speed}."
    )


def _style(row: StepRow, rows: Sequence[StepRow]) -> str | None:
    return "bold green" if row is fastest_step(rows) else None


def plot(rows: Sequence[StepRow], path: Path) -> None:
    """Draw the phases of every row, and how many entries the steady ones selected."""
    first = rows[0]
    with saved_figure(path, 12.0, 0.42 * len(rows) + 2.6) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
        _draw_phases(left, rows)
        _draw_selected(right, [row for row in rows if row.kind == "steady"])
        figure.suptitle(
            f"A step of {first.ranks} ranks over {where(first.driver, first.network)}: "
            f"a gradient of {power_of_two(first.length)}, {first.density:.3g} of it selected"
        )


def _draw_phases(panel: Any, rows: Sequence[StepRow]) -> None:
    """Stacked bars, fastest on top; a dense bar that is far longer than the others is cut at the border."""
    names = [f"{row.name}, renewal" if row.kind == "renewal" else row.name for row in rows]
    ends = [0.0] * len(rows)
    for phase, colour in PHASES.items():
        lengths = [1e3 * getattr(row, f"{phase}_seconds") for row in rows]
        panel.barh(names, lengths, left=ends, color=colour, label=phase)
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    longest_sparse = max((end for row, end in zip(rows, ends, strict=True) if row.k), default=max(ends))
    border = 1.15 * min(max(ends), LONGEST_DENSE * longest_sparse)
    for name, row, end in zip(names, rows, ends, strict=True):
        label, is_cut = _milliseconds(row.seconds_median), end > border
        panel.annotate(
            f"{label} →" if is_cut else label,
            (min(end, border), name),
            (-6 if is_cut else 4, 0),
            textcoords="offset points",
            ha="right" if is_cut else "left",
            va="center",
            color="white" if is_cut else "black",
        )
    panel.set_xlim(0, border)
    panel.invert_yaxis()
    starred = (
        "" if all(row.selects_enough for row in rows) else f"; * selects less than {ENOUGH_SELECTED:g} k"
    )
    panel.set_xlabel(f"milliseconds at the slowest rank, medians{starred}")
    tidy(panel, grid=False)
    legend_above(panel, len(PHASES))


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def _draw_selected(panel: Any, rows: Sequence[StepRow]) -> None:
    from matplotlib.ticker import FuncFormatter

    panel.axhspan(ENOUGH_SELECTED, MUCH_SELECTED, color="#eeeeee")
    for number, row in enumerate(rows):
        width = 1 + (len(rows) - number) / 2  # lines on top are thinner, so that those below are seen
        panel.plot(range(1, len(row.selected) + 1), row.selected_over_k, linewidth=width, label=row.name)
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:.2g}"))
    panel.set(xlabel="step, from a cold start", ylabel="entries of the mean, in k")
    tidy(panel, grid=False)
    legend_above(panel, 3)


BENCHMARK = Benchmark("bench step", StepOptions, run, COLUMNS, conclusion, _style, plot)
