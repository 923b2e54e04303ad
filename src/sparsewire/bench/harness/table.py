"""Rows as text: tables, and numbers with units.  Nothing is measured here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparsewire.bench.harness.benchmark import Benchmark, Columns, R, Result
from sparsewire.bench.harness.json_file import environment
from sparsewire.bench.harness.problem import Case

WIDEST_TABLE = 180


def wide_console() -> Console:
    """Standard output, at least as wide as the widest table: lines may wrap, but no number is cut."""
    width = max(Console().width, WIDEST_TABLE)
    return Console(highlight=False, soft_wrap=True, width=width)


def show(console: Console, benchmark: Benchmark[Any, R], result: Result[R]) -> None:
    """Print the header, the table, what did not run, and the conclusion."""
    for line in result.header:
        console.print(f"[dim]# {line}[/dim]")
    styles = [benchmark.style(row, result.rows) for row in result.rows]
    console.print(make_table(result.columns or benchmark.columns, result.rows, styles))
    for line in _skipped_lines(result.skipped or {}):
        console.print(f"[dim]# {line}[/dim]")
    if conclusion := benchmark.conclusion(result):
        console.print(conclusion)


def make_table(columns: Columns[R], rows: Sequence[R], styles: Sequence[str | None] = ()) -> Table:
    """The columns in which some row has more than a dash."""
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    first, *others = [name for name, column in cells.items() if set(column) != {"-"}]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True, vertical="bottom")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    for number in range(len(rows)):
        style = styles[number] if styles else None
        table.add_row(*(cells[name][number] for name in (first, *others)), style=style)
    return table


def _skipped_lines(skipped: Mapping[str, str]) -> list[str]:
    """One line for each reason, in which every name occurs once."""
    lines = []
    for reason in dict.fromkeys(skipped.values()):
        names = [name.split() for name in skipped if skipped[name] == reason]
        who = ", ".join(dict.fromkeys(name for name, *_ in names))
        precisions = ", ".join(dict.fromkeys(precision for _, *rest in names for precision in rest))
        where = f" in {precisions}" if precisions else ""
        lines.append(f"{who} did not run{where}: {escape(reason)}")
    return lines


def describe_machine(*packages: str) -> str:
    """The versions and the processor, as a line of a header."""
    facts = environment()
    versions = "".join(f"{name} {facts[name]}  " for name in ("sparsewire", *packages))
    return f"{versions}isa {facts['isa']}  {facts['cpus']} cpus"


def describe_problem(case: Case) -> str:
    """What is added up, as a line of a header."""
    return (
        f"ranks {case.ranks}  length {case.length:,}  {case.dtype}  density {case.density:g} "
        f"(entries per rank: {case.nnz:,}, {case.distribution_name})  seed {case.seed}"
    )


def describe_driver(driver: str, network: str | None) -> str:
    """What the ranks talk through, as a part of a header."""
    if driver == "local":
        return "driver local: all ranks in one process"
    if network:
        return f"driver {driver}  network {network}, one namespace per rank"
    links = {"tcp": "loopback, unlimited", "mpi": "whatever MPI uses on one machine"}
    return f"driver {driver}  {links.get(driver, '')}"


def facts_about_speed(speedups: Mapping[str, float | None]) -> list[str]:
    """A phrase for each peer that there is a factor for."""
    return [f"{format_times(factor)} the speed of {name}" for name, factor in speedups.items() if factor]


def format_wrong(count: int) -> str:
    """The count, in red unless it is zero."""
    return f"[bold red]{count:,}[/bold red]" if count else "0"


def format_number(number: float | None, form: str = ".3g") -> str:
    """The number in a form of ``format``; a dash if there is none.

    >>> format_number(2.5, ".2f"), format_number(None)
    ('2.50', '-')
    """
    return "-" if number is None else format(number, form)


def format_range(numbers: Sequence[float]) -> str:
    """Median, smallest and largest number."""
    if not numbers:
        return "-"
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f}-{max(numbers):.2f})"


def format_seconds(seconds: float | None) -> str:
    """Three digits and a unit.

    >>> format_seconds(0.0123), format_seconds(2.5), format_seconds(4.2e-5), format_seconds(None)
    ('12.3 ms', '2.50 s', '42.0 us', '-')
    """
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"


def format_size(length: int) -> str:
    """A length as ``--size`` takes it.

    >>> format_size(1 << 24), format_size(4096), format_size(1000)
    ('16M', '4k', '1000')
    """
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)):
        if length % size == 0:
            return f"{length // size}{unit}"
    return str(length)


def format_bytes(count: float | None) -> str:
    """Three digits and a decimal unit.

    >>> format_bytes(5_300_000), format_bytes(812), format_bytes(None)
    ('5.30 MB', '812 B', '-')
    """
    if count is None:
        return "-"
    count = round(count)
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
