"""``sparsewire bench ...`` and ``sparsewire simulate ...``: a command for every record of ``BENCHMARKS``."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from sparsewire.bench import BENCHMARKS, load_benchmark


class BenchmarkGroup(TyperGroup):
    """The commands whose first word is the name of this group; a record is imported when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name.split()[1] for name in BENCHMARKS if name.split()[0] == self.name]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = f"{self.name} {cmd_name}"
        return make_command(name) if name in BENCHMARKS else None


def make_group(help_text: str) -> typer.Typer:
    """A group of benchmarks."""
    return typer.Typer(cls=BenchmarkGroup, help=help_text, no_args_is_help=True)


def make_command(name: str) -> Any:
    """The command of a benchmark."""
    from sparsewire.commands.generate import make_callback

    benchmark = load_benchmark(name)
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    callback = make_callback(benchmark.options, lambda options: execute(name, options))
    command.command(name.split()[1])(callback)
    return typer.main.get_command(command)


def execute(name: str, options: Any) -> None:
    """Measure, print tables, write the JSON file and the plot; the exit code is 1 if a result was wrong."""
    from sparsewire.bench.harness.figure import require_plot
    from sparsewire.bench.harness.json_file import save
    from sparsewire.bench.harness.progress import progress
    from sparsewire.bench.harness.table import show, wide_console
    from sparsewire.files import require_writable

    benchmark = load_benchmark(name)
    json, plot = getattr(options, "json", None), getattr(options, "plot", None)
    if json:
        require_writable(json)
    if plot:
        require_plot(plot)
    with progress(name) as on_progress:
        results = benchmark.run(options, on_progress)
    for result in results:
        show(wide_console(), benchmark, result)
    if json:
        save(benchmark, options, results, json)
    if plot and benchmark.plot:
        benchmark.plot([row for result in results for row in result.rows], plot)
    raise typer.Exit(1 if any(result.wrong for result in results) else 0)
