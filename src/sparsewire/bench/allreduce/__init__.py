"""``bench allreduce``: every algorithm against dense ones, and against gloo or MPI, in turns and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire.bench.allreduce.frames import with_frames
from sparsewire.bench.allreduce.rank import AllreducePlan
from sparsewire.bench.allreduce.rows import Row, best, make_rows
from sparsewire.bench.harness import bounds, clock, contenders, session, table, variants
from sparsewire.bench.harness import options as opt
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.figure import power_of_two, saved_figure, tidy, where
from sparsewire.bench.harness.peers import PEER_NAMES, choose_peers, reason_to_skip
from sparsewire.bench.harness.problem import Case, exact_sum
from sparsewire.bench.harness.records import OfRanks
from sparsewire.cost import CostFigures
from sparsewire.errors import InputError

DRIVERS = ("tcp", "mpi", "local")


@dataclass(frozen=True, kw_only=True)
class AllreduceOptions(opt.ProblemOptions):
    """Every algorithm against dense, and against gloo or MPI, in one run, each result checked."""

    density: str = opt.option("0.01", "Share of each rank's entries that are not zero; several: 0.01,0.1.")
    algorithms: opt.Names = "all"
    precision: opt.Precisions = "exact"
    driver: str = opt.option("tcp", "tcp, mpi: real processes. local: one process.")
    network: opt.Network = None
    peers: str = opt.option("all", "Names, separated by commas, or 'all' of the driver.")
    no_peers: opt.NoPeers = False
    aggregators: int = opt.option(0, "Further ranks, for omnireduce-dedicated (tcp only).", min=0)
    seconds: opt.Seconds = 20.0
    iterations: int | None = opt.option(None, "Of every row; default: as many as fit in --seconds.", min=1)
    json: opt.Json = None
    plot: opt.Plot = None


def run(options: AllreduceOptions, on_progress: OnProgress) -> list[Result[Row]]:
    """One result for each density; the ranks go through all of them."""
    cases = options.cases()
    algorithms = tuple(contenders.choose_algorithms(options.algorithms, options.driver, options.aggregators))
    precisions = tuple(contenders.choose_precisions(options.precision, options.dtype))
    peers = () if options.no_peers else choose_peers(options.peers, options.driver)
    if options.aggregators and options.driver != "tcp":
        raise InputError(f"--aggregators needs --driver tcp, not {options.driver}")
    if options.driver not in DRIVERS:
        raise InputError(f"unknown driver {options.driver!r}; known are {', '.join(DRIVERS)}")
    running, skipped = contenders.configurations(algorithms, precisions, options.driver)
    if options.driver == "local":
        return [_run_in_this_process(case, options, running, skipped, on_progress) for case in cases]
    skipped |= {peer: reason for peer in peers if (reason := reason_to_skip(peer, options.dtype))}
    plan = AllreducePlan(
        tuple(cases),
        algorithms,
        precisions,
        options.iterations,
        options.seconds,
        peers=tuple(peer for peer in peers if peer not in skipped),
        aggregators=options.aggregators,
        timeout_s=max(session.timeout_s(case, options.network) for case in cases),
    )
    results: list[Result[Row]] = []

    def on_step(done: int, total: int) -> None:
        on_progress(f"measuring at density {cases[len(results)].density:g}", done, total)

    def on_found(event: dict[str, Any]) -> None:
        case, figures = cases[len(results)], CostFigures(**event["figures"])
        rows = _rows(case, event["found"], event["nnz_out"], options)
        results.append(make_result(case, with_frames(rows, case, figures.index_price), skipped))

    session.run_ranks(plan, options.driver, options.network, on_step, on_found)
    return results


def _run_in_this_process(
    case: Case,
    options: AllreduceOptions,
    running: Sequence[contenders.Configuration],
    skipped: dict[str, str],
    on_progress: OnProgress,
) -> Result[Row]:
    if options.network:
        raise InputError("--network needs real ranks: use --driver tcp or mpi")
    inputs = [contenders.input_vector(case, rank) for rank in range(case.ranks)]
    expected = exact_sum(case)
    records = clock.measure(
        [contenders.LocalAllreduce(one, case, inputs) for one in running],
        contenders.SingleProcess(),
        expected,
        budget_s=options.seconds,
        bound=bounds.Bounds(case, expected).of,
        iterations=options.iterations,
        on_progress=lambda done, total: on_progress("measuring", done, total),
    )
    nnz_out = int(np.count_nonzero(expected))
    rows = _rows(case, [[asdict(record) for record in records]], nnz_out, options)
    return make_result(case, with_frames(rows, case, index_price=0.0), skipped)


def _rows(case: Case, records: Sequence[OfRanks], nnz_out: int, options: AllreduceOptions) -> list[Row]:
    where = options.driver, options.network, options.aggregators
    return make_rows(case, records, nnz_out, *where)


def make_result(case: Case, rows: Sequence[Row], skipped: dict[str, str]) -> Result[Row]:
    """The rows of one case, with the whole set-up above them."""
    several = len({row.precision for row in rows}) > 1
    columns = {name: cell for name, cell in COLUMNS.items() if several or name not in OF_PRECISIONS}
    return Result(rows, _header(case, rows), skipped, columns=columns)


def _header(case: Case, rows: Sequence[Row]) -> list[str]:
    first = rows[0]
    counts = sorted({len(row.seconds) for row in rows})
    iterations = "-".join(map(str, counts[:1] + counts[1:][-1:]))
    aggregators = max(row.aggregators for row in rows)
    dedicated = f"  aggregators {aggregators}" if aggregators else ""
    time_is = (
        "the computing of all ranks, one after another; nothing travels"
        if first.driver == "local"
        else "slowest rank of each iteration; barrier before it, not in it; contenders take turns"
    )
    return [
        table.describe_machine("python", "numpy", "torch", "mpi4py"),
        table.describe_problem(case),
        f"{table.describe_driver(first.driver, first.network)}{dedicated}  warm-up {clock.WARM_UP_ROUNDS}  "
        f"iterations {iterations}",
        f"time: {time_is}",
    ]


def format_name(row: Row) -> str:
    """The algorithm; for auto also what it took."""
    return f"auto: {row.chosen}" if row.chosen else row.algorithm


COLUMNS: Columns[Row] = {
    "algorithm": format_name,
    "precision": lambda row: row.precision,
    "min": lambda row: table.format_seconds(row.seconds_min),
    "median": lambda row: table.format_seconds(row.seconds_median),
    "vs\ncoo": lambda row: table.format_times(row.speedup_vs_coo),
    "vs\ndense": lambda row: table.format_times(row.speedup_vs_dense),
    "vs gloo\ndense": lambda row: table.format_times(row.speedup_vs_gloo_dense),
    "vs gloo\nsparse": lambda row: table.format_times(row.speedup_vs_gloo_sparse),
    "vs mpi\ndense": lambda row: table.format_times(row.speedup_vs_mpi_dense),
    "vs mpi\nsame bytes": lambda row: table.format_times(row.speedup_vs_mpi_same_bytes),
    "bytes\nsent": lambda row: table.format_bytes(row.bytes_sent_max),
    "messages": lambda row: table.format_number(row.messages_max, "d"),
    "x wire\nlimit": lambda row: table.format_number(row.times_wire_limit, ".2f"),
    "model": lambda row: table.format_seconds(row.model_seconds),
    "x model": lambda row: table.format_number(row.times_model, ".2f"),
    "x touched\nbytes": lambda row: table.format_number(row.times_touched_bytes),
    "bytes per\nnon-zero": lambda row: table.format_number(row.bytes_per_nonzero),
    "bytes\nvs coo": lambda row: table.format_times(row.compression_vs_coo),
    "encode": lambda row: table.format_seconds(row.encode_seconds),
    "decode": lambda row: table.format_seconds(row.decode_seconds),
    "density\nout": lambda row: f"{row.density_out:.3g}",
    "wrong": lambda row: table.format_wrong(row.wrong),
}
# Shown if precisions are compared.
OF_PRECISIONS = ("precision", "bytes per\nnon-zero", "bytes\nvs coo", "encode", "decode")


def conclusion(result: Result[Row]) -> str:
    """One sentence, made from the rows."""
    rows = result.rows
    wrong = [str(contenders.Configuration(row.algorithm, row.precision)) for row in rows if row.wrong]
    if wrong:
        return f"[bold red]Wrong results from {', '.join(wrong)}: the times mean nothing.[/bold red]"
    winner = best(rows)
    if winner is None:
        return "No exact algorithm of ours ran."
    facts = table.facts_about_speed(
        {
            "our best dense algorithm": winner.speedup_vs_dense,
            "gloo-dense": winner.speedup_vs_gloo_dense,
            "gloo-sparse": winner.speedup_vs_gloo_sparse,
            "mpi-dense": winner.speedup_vs_mpi_dense,
            "mpi-same-bytes": winner.speedup_vs_mpi_same_bytes,
        }
    )
    if winner.times_wire_limit:
        facts.append(f"{winner.times_wire_limit:.2f}x its wire limit")
    speed = f": {', '.join(facts)}" if facts else ""
    fastest = f"[bold]{format_name(winner)}[/bold] with {table.format_seconds(winner.seconds_median)}"
    if any(row.is_rounded for row in rows):
        return f"All results are within their bounds. Fastest of the exact ones is {fastest}{speed}."
    return f"All results are exact. Fastest is {fastest}{speed}."


def best_in_green(row: Row, rows: Sequence[Row]) -> str | None:
    """The style of the fastest of our rows."""
    return "bold green" if row is best(rows) else None


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the medians of every contender against density, and the model where there is one."""
    first = rows[0]
    with saved_figure(path, 8.0, 5.0) as figure:
        panel = figure.subplots()
        for name in dict.fromkeys(row.algorithm for row in rows):
            mine = sorted((row for row in rows if row.algorithm == name), key=lambda row: row.density_in)
            densities = [row.density_in for row in mine]
            medians = [row.seconds_median for row in mine]
            [line] = panel.plot(densities, medians, "o-", label=name, color=_color(name))
            model = [row.model_seconds for row in mine if row.model_seconds]
            if len(model) == len(mine):
                panel.plot(densities, model, color=line.get_color(), linestyle=":", label=f"{name}, model")
        panel.set(xscale="log", yscale="log", ylabel="seconds at the slowest rank, medians")
        panel.set_xlabel("density: share of blocks" if ":" in first.distribution else "density")
        panel.set_title(
            f"Sum of {first.ranks} vectors of {power_of_two(first.length)} over "
            f"{where(first.driver, first.network)} ({first.distribution})"
        )
        tidy(panel)
        panel.legend(frameon=False, fontsize=9)


def _color(name: str) -> str | None:
    """Peers are black and our dense algorithms grey; the others take the next colour."""
    return "black" if name in PEER_NAMES else "#888888" if variants.is_dense(name) else None


BENCHMARK = Benchmark("bench allreduce", AllreduceOptions, run, COLUMNS, conclusion, best_in_green, plot)
