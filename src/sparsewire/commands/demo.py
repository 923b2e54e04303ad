"""``sparsewire demo``: four processes, sixteen million floats, every algorithm against dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.allreduce import AllreduceOptions, format_name, run
from sparsewire.bench.allreduce.rows import Row, best
from sparsewire.bench.harness.progress import progress
from sparsewire.bench.harness.table import format_bytes, format_seconds, format_times
from sparsewire.bench.harness.variants import is_dense

RANKS = 4
LENGTH = 1 << 24
DENSITIES = (0.01, 0.001)
BUDGET_S = 8.0  # for each density; with starting the ranks the whole stays well below a minute
BAR_CELLS = 28


def run_demo(console: Console, length: int = LENGTH, budget_s: float = BUDGET_S) -> int:
    """Print a table for each density and what follows from them; 1 if any result was wrong."""
    options = AllreduceOptions(
        ranks=RANKS,
        size=str(length),
        density=",".join(map(str, DENSITIES)),
        algorithms=",".join(ALGORITHMS),
        no_peers=True,
        seconds=budget_s,
    )
    with progress("demo") as on_progress:
        results = run(options, on_progress)
    measured = {density: result.rows for density, result in zip(DENSITIES, results, strict=True)}
    console.print()
    console.print(
        f"[bold]The sum of {RANKS} vectors of {length:,} floats, in {RANKS} processes over TCP[/bold]"
    )
    for density, rows in measured.items():
        console.print()
        console.print(_table(density, rows))
    console.print()
    console.print(sentence(measured))
    return 1 if any(row.wrong for rows in measured.values() for row in rows) else 0


def sentence(measured: Mapping[float, Sequence[Row]]) -> str:
    """What follows from the rows."""
    if any(row.wrong for rows in measured.values() for row in rows):
        return "[bold red]Some results are wrong (see the last column): do not use this build.[/bold red]"
    clauses = []
    for density, rows in measured.items():
        winner = best(rows)
        if winner is not None and winner.speedup_vs_dense is not None:
            speed = f"[bold]{format_times(winner.speedup_vs_dense)}[/bold] as fast as the best dense one"
            clauses.append(f"at {density:.1%} non-zeros {format_name(winner)} is {speed}")
    return f"Every sum is exact; {', '.join(clauses)}: you pay for the non-zeros, not for the length."


def bar(value: float, largest: float, cells: int = BAR_CELLS) -> str:
    """A bar of eighths of a cell; the largest value fills all cells.

    >>> bar(1, 4, cells=4), bar(4, 4, cells=4), bar(1.5, 4, cells=4)
    ('█', '████', '█▌')
    """
    eighths = max(1, round(value / largest * cells * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _table(density: float, rows: Sequence[Row]) -> Table:
    title = f"[bold]{density:.1%} non-zeros[/bold] [dim]({rows[0].nnz_in:,} per rank)[/dim]"
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.title, table.title_justify, table.title_style = title, "left", ""
    table.add_column("algorithm", no_wrap=True, min_width=max(map(len, ALGORITHMS)))
    for name, width in (("median", 9), ("sent by a rank", 14), ("vs dense", 8)):
        table.add_column(name, justify="right", min_width=width)
    table.add_column("", min_width=BAR_CELLS, no_wrap=True)
    table.add_column("wrong", justify="right")
    winner = best(rows)
    fastest = max(row.speedup_vs_dense or 1.0 for row in rows)
    for row in rows:
        speedup = row.speedup_vs_dense or 1.0
        color = "dim" if is_dense(row.algorithm) else "green"
        table.add_row(
            format_name(row),
            format_seconds(row.seconds_median),
            format_bytes(row.bytes_sent_max),
            format_times(speedup),
            f"[{color}]{bar(speedup, fastest)}[/{color}]",
            str(row.wrong),
            style="bold" if row is winner else "",
        )
    return table
