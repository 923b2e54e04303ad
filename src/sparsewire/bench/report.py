"""Rows as a table and as JSON, from the same records; nothing is measured here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparsewire import kernels
from sparsewire.bench.cases import Case
from sparsewire.bench.coding import PrecisionRow, SupportRow
from sparsewire.bench.contenders import Entrant
from sparsewire.bench.grid import Cell, Summary, Turns
from sparsewire.bench.linear_rows import LinearMemoryRow, LinearRow, fastest_linear, yardstick
from sparsewire.bench.overlap import CALLS
from sparsewire.bench.rows import MemoryRow, OverlapRow, Row, StepRow, best, fastest_step, times_longer_alone
from sparsewire.bench.simulate import Prediction
from sparsewire.bench.timing import WARM_UP_ROUNDS
from sparsewire.bench.trace import Trace
from sparsewire.bench.train_methods import OURS
from sparsewire.bench.train_rows import FINAL_STEPS, TrainRow

if TYPE_CHECKING:  # scipy and scikit-learn are needed only where they are measured
    from sparsewire.bench.libsvm import LibsvmRow

__all__ = [
    "conclusion",
    "environment",
    "format_bytes",
    "format_name",
    "format_seconds",
    "format_size",
    "format_times",
    "package_versions",
    "print_allreduce",
    "print_coding",
    "print_grid",
    "print_kernels",
    "print_libsvm",
    "print_linear",
    "print_linear_memory",
    "print_memory",
    "print_overlap",
    "print_simulation",
    "print_step",
    "print_trace",
    "print_train",
    "wide_console",
    "write_json",
]

WIDEST_TABLE = 180
AnyRow = TypeVar("AnyRow")


def environment() -> dict[str, Any]:
    """Where it ran, by allow-list: no host names, no paths, no variables."""
    return {
        "sparsewire": _version("sparsewire"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": _version("torch"),
        "mpi4py": _version("mpi4py"),
        "isa": kernels.active_isa(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "kernel": platform.release(),
    }


def package_versions(*packages: str) -> dict[str, str | None]:
    """Of what else has a part in it; None if it is not installed."""
    return {package: _version(package) for package in packages}


def write_json(path: Path, command: Sequence[str], rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """One object: the command, the environment, the rows."""
    report = {"command": shlex.join(command), "environment": environment(), "rows": list(rows), **more}
    path.write_text(json.dumps(report, indent=1) + "\n")


def wide_console() -> Console:
    """Standard output, as wide as the widest table: numbers that wrap can be read, cut ones cannot."""
    console = Console(highlight=False, soft_wrap=True)
    return Console(highlight=False, soft_wrap=True, width=max(console.width, WIDEST_TABLE))


def print_allreduce(console: Console, case: Case, rows: Sequence[Row], skipped: Mapping[str, str]) -> None:
    """The whole set-up, one line per contender, and what to conclude."""
    for line in _header(case, rows):
        console.print(f"[dim]# {line}[/dim]")
    console.print(_allreduce_table(rows))
    _print_skipped(console, skipped)
    console.print(conclusion(rows))


def _print_skipped(console: Console, skipped: Mapping[str, str]) -> None:
    """Those with the same reason in one line, each name once."""
    for reason in dict.fromkeys(skipped.values()):
        names = [name.split() for name in skipped if skipped[name] == reason]
        who = ", ".join(dict.fromkeys(name for name, *_ in names))
        precisions = ", ".join(dict.fromkeys(precision for _, *rest in names for precision in rest))
        where = f" in {precisions}" if precisions else ""
        console.print(f"[dim]# {who} did not run{where}: {escape(reason)}[/dim]")


def conclusion(rows: Sequence[Row]) -> str:
    """One sentence, made from the rows."""
    wrong = [str(Entrant(row.algorithm, row.precision)) for row in rows if row.wrong]
    if wrong:
        return f"[bold red]Wrong results from {', '.join(wrong)}: the times mean nothing.[/bold red]"
    winner = best(rows)
    if winner is None:
        return "No exact algorithm of ours ran."
    against = {
        "our best dense algorithm": winner.speedup_vs_dense,
        "gloo-dense": winner.speedup_vs_gloo_dense,
        "gloo-sparse": winner.speedup_vs_gloo_sparse,
        "mpi-dense": winner.speedup_vs_mpi_dense,
        "mpi-same-bytes": winner.speedup_vs_mpi_same_bytes,
    }
    facts = [f"{format_times(factor)} the speed of {name}" for name, factor in against.items() if factor]
    if winner.times_wire_limit:
        facts.append(f"{winner.times_wire_limit:.2f}x its wire limit")
    speed = f": {', '.join(facts)}" if facts else ""
    fastest = f"[bold]{format_name(winner)}[/bold] with {format_seconds(winner.seconds_median)}"
    if any(row.is_rounded for row in rows):
        return f"All results are within their bounds. Fastest of the exact ones is {fastest}{speed}."
    return f"All results are exact. Fastest is {fastest}{speed}."


def print_simulation(console: Console, case: Case, latency: str, prediction: Prediction) -> None:
    """As ``print_allreduce``, with what the cost formulas say beside the simulation."""
    rows, scale = prediction.rows, prediction.scale
    console.print(f"[dim]# {_problem(case)}[/dim]")
    console.print(
        f"[dim]# simulated network: latency {latency}, {rows[0].network} per rank; coding is free[/dim]"
    )
    if scale > 1:
        console.print(
            f"[dim]# simulated at 1/{scale} of the length and of the bandwidth, so that {case.ranks} ranks "
            "fit into memory[/dim]"
        )
    model = prediction.model_seconds
    table = _table(
        *("algorithm", "simulated", "formula", "vs\ndense", "vs\ncoo", "bytes\nsent", "messages"),
        *("x wire\nlimit", "density\nout", "wrong"),
    )
    for row in rows:
        table.add_row(
            str(run := Entrant(row.algorithm, row.precision)),
            format_seconds(row.seconds_median),
            format_seconds(model[str(run)]) if model else "-",
            format_times(row.speedup_vs_dense),
            format_times(row.speedup_vs_coo),
            format_bytes(row.bytes_sent_max),
            str(row.messages_max),
            f"{row.times_wire_limit:.2f}" if row.times_wire_limit else "-",
            f"{row.density_out:.3g}",
            _wrong(row.wrong),
            style="bold green" if row is best(rows) else None,
        )
    console.print(table)
    _print_skipped(console, prediction.skipped)


def print_trace(console: Console, trace: Trace) -> None:
    """What was recorded, step by step."""
    console.print(
        f"[dim]# {trace}: {trace.vocabulary:,} rows of {trace.row}, {trace.ranks} ranks, "
        f"{format_bytes(trace.path.stat().st_size)}[/dim]"
    )
    table = _table("step", "touched by a rank", "by any", "share of\nthe table", "any / rank")
    for number, step in enumerate(trace.steps):
        of_rank, of_any = statistics.mean(map(len, step)), len(np.unique(np.concatenate(step)))
        share, growth = f"{of_rank / trace.vocabulary:.2%}", f"{of_any / of_rank:.1f}"
        table.add_row(str(number), f"{of_rank:,.0f}", f"{of_any:,}", share, growth)
    console.print(table)


def print_memory(console: Console, case: Case, rows: Sequence[MemoryRow]) -> None:
    """One line per algorithm."""
    console.print(f"[dim]# {_problem(case)}[/dim]")
    console.print(
        "[dim]# peak: growth of resident memory during one call, at the rank that needs most; "
        "fresh processes for each algorithm[/dim]"
    )
    table = _table("algorithm", "peak", "in inputs of k x 8 bytes", "result", "wrong")
    for row in rows:
        table.add_row(
            row.algorithm,
            format_bytes(row.peak_bytes_max),
            f"{row.peak_in_inputs:.1f}",
            format_bytes(row.result_bytes_max),
            _wrong(row.wrong),
        )
    console.print(table)


def print_overlap(console: Console, case: Case, rows: Sequence[OverlapRow]) -> None:
    """One line for each of the three, and how much longer both together take than the longer one."""
    first = rows[0]
    console.print(f"[dim]# {_problem(case)}[/dim]")
    console.print(f"[dim]# {_where(first.driver, first.network)}  {CALLS} calls in flight[/dim]")
    table = _table("what", "min", "median", "iterations", "wrong")
    for row in rows:
        table.add_row(
            row.name,
            format_seconds(row.seconds_min),
            format_seconds(row.seconds_median),
            str(len(row.seconds)),
            _wrong(row.wrong),
        )
    console.print(table)
    console.print(f"Together takes [bold]{times_longer_alone(rows):.2f}x[/bold] the longer of the two alone.")


def print_step(console: Console, case: Case, rows: Sequence[StepRow], skipped: Mapping[str, str]) -> None:
    """One line per method and kind, with its phases, and what to conclude."""
    first, facts = rows[0], environment()
    counts = sorted({len(row.seconds) for row in rows})
    console.print(
        f"[dim]# sparsewire {facts['sparsewire']}  isa {facts['isa']}  {facts['cpus']} cpus  "
        f"ranks {case.ranks}  length {case.length:,}  {case.dtype}  density {case.density:g}  "
        f"seed {case.seed}[/dim]"
    )
    console.print(
        f"[dim]# {_where(first.driver, first.network)}  warm-up {WARM_UP_ROUNDS}  "
        f"iterations {counts[0]}-{counts[-1]}[/dim]"
    )
    console.print(
        "[dim]# time: slowest rank of each step; barrier before it, not in it; methods take turns; "
        "a renewal reuses nothing[/dim]"
    )
    console.print(_filled_table(_step_columns(), rows, fastest_step(rows)))
    _print_skipped(console, skipped)
    console.print(_step_conclusion(rows))


def _step_columns() -> dict[str, Callable[[StepRow], str]]:
    return {
        "method": lambda row: row.method,
        "kind": lambda row: row.kind,
        "min": lambda row: format_seconds(row.seconds_min),
        "median": lambda row: format_seconds(row.seconds_median),
        "select": lambda row: format_seconds(row.select_seconds) if row.kind != "dense" else "-",
        "exchange": lambda row: format_seconds(row.exchange_seconds),
        "apply": lambda row: format_seconds(row.apply_seconds),
        "vs gloo\ndense": lambda row: format_times(row.speedup_vs_gloo_dense),
        "vs gloo\nby min": lambda row: format_times(row.speedup_min_vs_gloo_dense),
        "vs mpi\ndense": lambda row: format_times(row.speedup_vs_mpi_dense),
        "vs mpi\nby min": lambda row: format_times(row.speedup_min_vs_mpi_dense),
        "sent\nin 4k": lambda row: _number(row.bytes_sent_over_4k),
        "received\nin 4k": lambda row: _number(row.bytes_received_over_4k),
        "selected\nin k": lambda row: _range(row.selected_over_k),
        "wrong": lambda row: _wrong(row.wrong),
    }


def _range(numbers: Sequence[float]) -> str:
    """Median, smallest and largest."""
    if not numbers:
        return "-"
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f}-{max(numbers):.2f})"


def _step_conclusion(rows: Sequence[StepRow]) -> str:
    wrong = [f"{row.method} {row.kind}" for row in rows if row.wrong]
    if wrong:
        return f"[bold red]Entries lost or invented by {', '.join(wrong)}: the times mean nothing.[/bold red]"
    winner = fastest_step(rows)
    if winner is None:
        return "Nothing is lost, and no method selected as much as it should."
    against = {"gloo-dense": winner.speedup_vs_gloo_dense, "mpi-dense": winner.speedup_vs_mpi_dense}
    facts = [f"{format_times(factor)} the speed of {name}" for name, factor in against.items() if factor]
    speed = f": {', '.join(facts)}" if facts else ""
    return (
        f"Nothing is lost. Fastest of those that select enough is [bold]{winner.method}[/bold] with "
        f"{format_seconds(winner.seconds_median)}{speed}."
    )


def print_train(console: Console, rows: Sequence[TrainRow]) -> None:
    """One line per method, and what to conclude."""
    first, facts = rows[0], environment()
    ours = next(row for row in rows if row.method in OURS)
    console.print(
        f"[dim]# sparsewire {facts['sparsewire']}  torch {facts['torch']}  isa {facts['isa']}  "
        f"{facts['cpus']} cpus  {_where('tcp', first.network)}[/dim]"
    )
    console.print(
        f"[dim]# task {first.task}  parameters {first.parameters:,}  ranks {first.ranks}  "
        f"batch {first.batch} a rank  steps {first.steps}  seeds {max(row.seeds for row in rows)}  "
        f"density {ours.density:g} after {ours.warmup_steps} steps of warm-up[/dim]"
    )
    console.print(
        "[dim]# time: slowest rank of each step; barrier before it, not in it; methods take turns[/dim]"
    )
    console.print(
        f"[dim]# loss: mean of the last {FINAL_STEPS} steps, all ranks and seeds, on the same batches[/dim]"
    )
    console.print(_filled_table(_train_columns(), rows, None))
    console.print(_train_conclusion(rows))


def _train_columns() -> dict[str, Callable[[TrainRow], str]]:
    return {
        "method": lambda row: row.method,
        "min": lambda row: format_seconds(row.step_seconds_min),
        "median": lambda row: format_seconds(row.step_seconds_median),
        "x floor": lambda row: f"{row.ratio_to_floor:.2f}",
        "vs\ndense": lambda row: format_times(row.speedup_vs_dense),
        "samples\nper second": lambda row: f"{row.samples_per_second:,.0f}",
        "bytes sent\na step": lambda row: _bytes(row.bytes_sent),
        "loss": lambda row: "-" if row.final_loss is None else f"{row.final_loss:.4f}",
        "in dense\nloss": lambda row: "-" if row.loss_vs_dense is None else f"{row.loss_vs_dense:.3f}",
        "distance to\nfloat64": lambda row: (
            "-" if row.distance_to_float64 is None else f"{row.distance_to_float64:.1e}"
        ),
        "wrong": lambda row: _wrong(row.wrong),
    }


def _train_conclusion(rows: Sequence[TrainRow]) -> str:
    wrong = [row.method for row in rows if row.wrong]
    if wrong:
        return f"[bold red]Ranks ended with different parameters: {', '.join(wrong)}.[/bold red]"
    facts = [
        f"[bold]{row.method}[/bold] {row.ratio_to_floor:.2f}x the floor, "
        f"{format_times(row.speedup_vs_dense)} the speed of dense, {row.loss_vs_dense:.3f} of its loss"
        for row in rows
        if row.method in OURS
    ]
    return f"{'; '.join(facts)}."


def print_linear(console: Console, rows: Sequence[LinearRow], skipped: Mapping[str, str]) -> None:
    """One line per contender, and what to conclude."""
    facts = environment()
    first = next(row for row in rows if row.driver)
    console.print(
        f"[dim]# sparsewire {facts['sparsewire']}  isa {facts['isa']}  {facts['cpus']} cpus  "
        f"{_where(first.driver or '', first.network)}[/dim]"
    )
    console.print(f"[dim]# {_linear_problem(first)}  loss {first.loss_name}[/dim]")
    console.print(
        f"[dim]# ranks {first.ranks}  batch {first.batch:,} a rank  {first.steps_per_pass} steps a pass  "
        f"passes {first.passes} and one before[/dim]"
    )
    console.print(
        "[dim]# time: of a pass, at its slowest rank; contenders of ranks take turns, pass by pass; "
        "others run after them, in one process[/dim]"
    )
    console.print(_filled_table(_linear_columns(), rows, fastest_linear(rows)))
    _print_skipped(console, skipped)
    console.print(_linear_conclusion(rows))


def _linear_problem(row: LinearRow | LinearMemoryRow) -> str:
    return f"data {row.data}  rows {row.rows:,}  features {row.features:,}  non-zeros {row.nnz:,}"


def _linear_columns() -> dict[str, Callable[[LinearRow], str]]:
    return {
        "contender": lambda row: row.contender,
        "min": lambda row: format_seconds(row.seconds_min),
        "median": lambda row: format_seconds(row.seconds_median),
        "commu-\nnicating": lambda row: _time(row.communicating_median or None),
        "share": lambda row: f"{row.communication_share:.0%}" if row.communicating_median else "-",
        "vs\ndense": lambda row: format_times(row.speedup_vs_dense),
        "its commu-\nnication": lambda row: format_times(row.communication_speedup_vs_dense),
        "vs\nSpark": lambda row: format_times(row.speedup_vs_spark),
        "bytes sent\na pass": lambda row: _bytes(row.bytes_sent_max),
        "steps\na pass": lambda row: f"{row.steps_per_pass:,}",
        "loss": lambda row: f"{row.loss:.4f}",
        "accuracy": lambda row: f"{row.accuracy:.4f}",
        "distance\nto dense": lambda row: "-" if row.distance is None else f"{row.distance:.1e}",
        "wrong": lambda row: _wrong(row.wrong),
    }


def _linear_conclusion(rows: Sequence[LinearRow]) -> str:
    wrong = [row.contender for row in rows if row.wrong]
    if wrong:
        return f"[bold red]Ranks ended with different models: {', '.join(wrong)}.[/bold red]"
    winner, dense = fastest_linear(rows), yardstick(rows)
    if winner is None or dense is None:
        return "All ranks have the same models."
    facts = [
        f"{format_times(winner.speedup_vs_dense)} the speed of {dense.contender}",
        f"{format_times(winner.communication_speedup_vs_dense)} that of its communication",
    ]
    if winner.speedup_vs_spark:
        facts.append(f"{format_times(winner.speedup_vs_spark)} the speed of Spark")
    return (
        f"All ranks have the same models. Fastest of the exact ones is [bold]{winner.contender}[/bold] with "
        f"{format_seconds(winner.seconds_median)} a pass: {', '.join(facts)}."
    )


def print_linear_memory(console: Console, rows: Sequence[LinearMemoryRow]) -> None:
    """One line per contender."""
    first = rows[0]
    console.print(f"[dim]# {_linear_problem(first)}  ranks {first.ranks}  batch {first.batch:,} a rank[/dim]")
    console.print(
        f"[dim]# peak: growth of resident memory from before the rows are there until after {first.passes} "
        "passes, at the rank where the ratio is largest; fresh processes for each contender[/dim]"
    )
    table = _table("contender", "rows", "model", "peak", "peak /\n(rows + model)")
    for row in rows:
        sizes = map(format_bytes, (row.shard_bytes, row.model_bytes, row.peak_bytes))
        table.add_row(row.contender, *sizes, f"{row.ratio:.3f}")
    console.print(table)


def print_grid(console: Console, cells: Sequence[Cell], summary: Summary) -> None:
    """One line per cell, worst cells marked, and how `auto` did over all."""
    table = _table(
        *(
            "where",
            "ranks",
            "length",
            "density",
            "auto took",
            "auto",
            "fastest",
            "its median",
            "auto /\nbest",
        ),
        *("best dense", "auto /\ndense", "wrong"),
    )
    for cell in cells:
        table.add_row(
            cell.environment,
            str(cell.ranks),
            format_size(cell.length),
            f"{cell.density:g}",
            cell.auto.chosen,
            _median(cell.auto),
            cell.fastest.algorithm,
            _median(cell.fastest),
            f"{cell.auto_vs_best:.2f}",
            _median(cell.fastest_dense),
            f"{cell.auto_vs_dense:.2f}",
            _wrong(cell.wrong),
            style="yellow" if cell.auto_vs_best > 1.1 else None,
        )
    console.print(table)
    console.print("[dim]# * was over twice the fastest: dropped after its warm-up, whose time it is[/dim]")
    console.print(
        f"In {summary.within_10_percent:.1%} of {summary.cells} cells auto is within 10% of the best single "
        f"algorithm, in {summary.within_25_percent:.1%} within 25%; worst {summary.worst_vs_best:.2f}x. "
        f"Against the best dense algorithm its worst is {summary.worst_vs_dense:.2f}x."
    )


def _median(turns: Turns) -> str:
    return format_seconds(turns.seconds_median) + ("" if turns.iterations else "*")


def print_kernels(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per kernel, with the bar it is held to."""
    table = _table("kernel", "isa", "length", "density", "min", "median", "reached", "bar", "ok")
    for row in rows:
        reached, bar = _reached(row)
        table.add_row(
            row["name"],
            row["isa"],
            f"{row['n']:,}",
            f"{row['density']:g}",
            format_seconds(row["seconds_min"]),
            format_seconds(row["seconds_median"]),
            reached,
            bar,
            "[green]yes[/green]" if row["ok"] else "[bold red]no[/bold red]",
        )
    console.print(table)


def print_libsvm(console: Console, rows: Sequence[LibsvmRow]) -> None:
    """One line per reader."""
    first = rows[0]
    console.print(
        f"[dim]# {first.file}: {first.megabytes:,.1f} MB, {first.rows:,} rows, {first.nnz:,} non-zeros, "
        "one core, plain text that was read before[/dim]"
    )
    table = _table("reader", "min", "median", "MB/s", "vs sklearn", "wrong")
    for row in rows:
        table.add_row(
            row.reader,
            format_seconds(row.seconds_min),
            format_seconds(row.seconds_median),
            f"{row.megabytes_per_second:,.0f}",
            format_times(row.speedup_vs_sklearn),
            _wrong(row.wrong),
        )
    console.print(table)


def print_coding(
    console: Console, supports: Sequence[SupportRow], precisions: Sequence[PrecisionRow]
) -> None:
    """One line for each support, then one for each precision."""
    facts = environment()
    console.print(
        f"[dim]# sparsewire {facts['sparsewire']}  isa {facts['isa']}  one core, processor time  "
        f"length {supports[0].length:,}[/dim]"
    )
    table = _table(
        *("support", "density", "indices", "form", "bits per\nindex", "limit", "x limit", "vs coo"),
        *("encode\nM/s", "decode\nM/s", "both\nM/s", "wrong"),
    )
    for row in supports:
        table.add_row(
            row.distribution,
            f"{row.density:g}",
            f"{row.nnz:,}",
            row.form,
            f"{row.bits_per_index:.2f}",
            f"{row.bits_per_index_limit:.2f}",
            f"{row.times_limit:.3f}",
            format_times(row.compression_vs_coo),
            *(f"{rate / 1e6:,.0f}" for rate in (row.encoded_per_second, row.decoded_per_second)),
            f"{row.coded_per_second / 1e6:,.0f}",
            _wrong(row.wrong),
        )
    console.print(table)
    console.print()
    table = _table("precision", "bytes per\nvalue", "round\nGB/s", "decode\nGB/s", "both\nGB/s")
    for values in precisions:
        rates = values.rounded_bytes_per_second, values.decoded_bytes_per_second, values.both_bytes_per_second
        table.add_row(
            values.precision, f"{values.bytes_per_value:.3f}", *(f"{rate / 1e9:.2f}" for rate in rates)
        )
    console.print(table)


def _reached(row: Mapping[str, Any]) -> tuple[str, str]:
    """What a kernel reached and what it should: a ratio to one dense addition, or entries per second."""
    bar = row["bar"]
    if "entries_per_second" in row:
        reached = f"{row['entries_per_second'] / 1e6:.0f} M entries/s"
        return reached, f">= {bar / 1e6:.0f} M" if bar else "-"
    return f"{row['ratio_vs_torch_add']:.2f} x {row.get('peer', 'torch.add')}", f"<= {bar:g}" if bar else "-"


def _header(case: Case, rows: Sequence[Row]) -> list[str]:
    facts = environment()
    driver, network = (rows[0].driver, rows[0].network) if rows else ("-", None)
    counts = sorted({len(row.seconds) for row in rows})
    iterations = "-".join(map(str, counts[:1] + counts[1:][-1:]))
    aggregators = max((row.aggregators for row in rows), default=0)
    dedicated = f"  aggregators {aggregators}" if aggregators else ""
    time_is = (
        "the computing of all ranks, one after another; nothing travels"
        if driver == "local"
        else "slowest rank of each iteration; barrier before it, not in it; contenders take turns"
    )
    return [
        f"sparsewire {facts['sparsewire']}  python {facts['python']}  numpy {facts['numpy']}  "
        f"torch {facts['torch']}  mpi4py {facts['mpi4py']}  isa {facts['isa']}  {facts['cpus']} cpus",
        _problem(case),
        f"{_where(driver, network)}{dedicated}  warm-up {WARM_UP_ROUNDS}  iterations {iterations}",
        f"time: {time_is}",
    ]


def _where(driver: str, network: str | None) -> str:
    if driver == "local":
        return "driver local: all ranks in one process"
    if network:
        return f"driver {driver}  network {network}, one namespace per rank"
    wires = {"tcp": "loopback, unlimited", "mpi": "whatever MPI uses on one machine"}
    return f"driver {driver}  {wires.get(driver, '')}"


def _problem(case: Case) -> str:
    return (
        f"ranks {case.ranks}  length {case.length:,}  {case.dtype}  density {case.density:g} "
        f"(entries per rank: {case.nnz:,}, {case.distribution_name})  seed {case.seed}"
    )


def _allreduce_table(rows: Sequence[Row]) -> Table:
    """A column appears only if some row has something to say in it; frames do if precisions are compared."""
    several = len({row.precision for row in rows}) > 1
    columns: dict[str, Callable[[Row], str]] = {
        "algorithm": format_name,
        "precision": lambda row: row.precision if several else "-",
        "min": lambda row: format_seconds(row.seconds_min),
        "median": lambda row: format_seconds(row.seconds_median),
        "vs\ncoo": lambda row: format_times(row.speedup_vs_coo),
        "vs\ndense": lambda row: format_times(row.speedup_vs_dense),
        "vs gloo\ndense": lambda row: format_times(row.speedup_vs_gloo_dense),
        "vs gloo\nsparse": lambda row: format_times(row.speedup_vs_gloo_sparse),
        "vs mpi\ndense": lambda row: format_times(row.speedup_vs_mpi_dense),
        "vs mpi\nsame bytes": lambda row: format_times(row.speedup_vs_mpi_same_bytes),
        "bytes\nsent": lambda row: format_bytes(row.bytes_sent_max),
        "messages": lambda row: str(row.messages_max) if row.messages_max is not None else "-",
        "x wire\nlimit": lambda row: f"{row.times_wire_limit:.2f}" if row.times_wire_limit else "-",
        "model": lambda row: _time(row.model_seconds),
        "x model": lambda row: f"{row.times_model:.2f}" if row.times_model else "-",
        "x touched\nbytes": lambda row: _number(row.times_touched_bytes),
        "bytes per\nnon-zero": lambda row: _number(row.bytes_per_nonzero if several else None),
        "bytes\nvs coo": lambda row: format_times(row.compression_vs_coo if several else None),
        "encode": lambda row: _time(row.encode_seconds if several else None),
        "decode": lambda row: _time(row.decode_seconds if several else None),
        "density\nout": lambda row: f"{row.density_out:.3g}",
        "wrong": lambda row: _wrong(row.wrong),
    }
    return _filled_table(columns, rows, best(rows))


def _filled_table(
    columns: Mapping[str, Callable[[AnyRow], str]], rows: Sequence[AnyRow], winner: AnyRow | None
) -> Table:
    """The columns in which some row has something to say."""
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    shown = [name for name, column in cells.items() if set(column) != {"-"}]
    table = _table(*shown)
    for number, row in enumerate(rows):
        style = "bold green" if row is winner else None
        table.add_row(*(cells[name][number] for name in shown), style=style)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True, vertical="bottom")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def format_name(row: Row) -> str:
    """The algorithm; for auto also what it took."""
    return f"auto: {row.chosen}" if row.chosen else row.algorithm


def _wrong(count: int) -> str:
    return f"[bold red]{count:,}[/bold red]" if count else "0"


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}"


def _bytes(count: float | None) -> str:
    return "-" if count is None else format_bytes(round(count))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def format_seconds(seconds: float) -> str:
    """Three digits and a unit.

    >>> format_seconds(0.0123), format_seconds(2.5), format_seconds(4.2e-5)
    ('12.3 ms', '2.50 s', '42.0 us')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"


def format_size(length: int) -> str:
    """As ``--size`` takes it.

    >>> format_size(1 << 24), format_size(4096), format_size(1000)
    ('16M', '4k', '1000')
    """
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)):
        if length % size == 0:
            return f"{length // size}{unit}"
    return str(length)


def format_bytes(count: int | None) -> str:
    """Three digits and a decimal unit.

    >>> format_bytes(5_300_000), format_bytes(812), format_bytes(None)
    ('5.30 MB', '812 B', '-')
    """
    if count is None:
        return "-"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def format_times(factor: float | None) -> str:
    """A factor with as many digits as it deserves.

    >>> format_times(18.24), format_times(0.5), format_times(140.2), format_times(None)
    ('18.2x', '0.50x', '140x', '-')
    """
    if factor is None:
        return "-"
    return f"{factor:.0f}x" if factor >= 100 else f"{factor:.1f}x" if factor >= 1 else f"{factor:.2f}x"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
