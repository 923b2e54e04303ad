"""``bench grid``: does `auto` take the best algorithm for every size, density, number of ranks and network?

A cell is one problem in one environment.  One job for each environment and number of ranks goes through all
of its cells, and in each of them every algorithm and `auto` take turns.  An algorithm that is far slower than
the fastest is dropped after its warm-up, so that time is spent on those that could be best.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.allreduce.rank import AllreducePlan
from sparsewire.bench.harness import json_file, session, table, variants
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.figure import power_of_two, saved_figure
from sparsewire.bench.harness.options import Json, Options, Plot, option, parse_numbers
from sparsewire.bench.harness.problem import Case, parse_size
from sparsewire.bench.harness.records import OfRanks, slowest_rank
from sparsewire.errors import InputError
from sparsewire.launch.emulation import parse_rate

DROP_ABOVE = 2.0
# Upper end of a class of `auto` / best -> its colour.
CLASSES = {1.05: "#2a9d6f", 1.10: "#a6d96a", 1.25: "#fee08b", math.inf: "#e0533d"}
NOT_MEASURED = "#eeeeee"
WIDTH_OF_LEGEND = 9.0  # inches


@dataclass(frozen=True, kw_only=True)
class GridOptions(Options):
    """Is `auto` as fast as the best algorithm?  Every size, density, number of ranks and environment."""

    environments: str = option("tcp@1gbit,tcp,mpi", "Drivers, behind an emulated link or not.")
    ranks: str = option("2,4,8", "Numbers of ranks.")
    sizes: str = option("4k,64k,1M,16M", "Lengths of the vector.")
    densities: str = option("1e-5,1e-4,1e-3,1e-2,0.1,0.5", "Shares of entries that are not zero.")
    seconds: float = option(4.0, "Time to spend on measuring each cell.", min=0.01)
    tuning: float = option(20.0, "Time to spend on tuning each job first.", min=0)
    json: Json = None
    plot: Plot = None


@dataclass(frozen=True)
class Environment:
    """A driver and its network, written ``tcp@1gbit``, or ``tcp`` where nothing limits it."""

    driver: str
    network: str | None = None

    @classmethod
    def parse(cls, text: str) -> Environment:
        driver, _, network = text.strip().partition("@")
        if driver not in ("tcp", "mpi"):
            raise InputError(f"unknown environment {text!r}; write for example tcp@1gbit, tcp or mpi")
        if network:
            parse_rate(network)
        return cls(driver, network or None)

    def __str__(self) -> str:
        return f"{self.driver}@{self.network}" if self.network else self.driver


@dataclass(frozen=True)
class Turns:
    """The times of one contender in one cell; without iterations it was dropped after its warm-up."""

    algorithm: str
    seconds_median: float
    seconds_min: float
    iterations: int
    wrong: int
    chosen: str | None = None  # what "auto" took


@dataclass(frozen=True)
class Cell:
    """One problem in one environment, and the times of every contender."""

    environment: str
    ranks: int
    length: int
    density: float
    nnz_in: int
    nnz_out: int
    figures: dict[str, float]  # of the network and of computing, by which `auto` chose
    turns: tuple[Turns, ...]

    @property
    def auto(self) -> Turns:
        return next(turns for turns in self.turns if turns.algorithm == "auto")

    @property
    def fastest(self) -> Turns:
        """The best single algorithm."""
        return self._fastest(list(ALGORITHMS))

    @property
    def fastest_dense(self) -> Turns:
        return self._fastest(list(filter(variants.is_dense, ALGORITHMS)))

    @property
    def auto_vs_best(self) -> float:
        return self.auto.seconds_median / self.fastest.seconds_median

    @property
    def auto_vs_dense(self) -> float:
        return self.auto.seconds_median / self.fastest_dense.seconds_median

    @property
    def wrong(self) -> int:
        return sum(turns.wrong for turns in self.turns)

    def _fastest(self, names: Sequence[str]) -> Turns:
        return min((t for t in self.turns if t.algorithm in names), key=lambda turns: turns.seconds_median)


@dataclass(frozen=True)
class Summary:
    """How far `auto` is from the best, over all cells."""

    cells: int
    within_10_percent: float
    within_25_percent: float
    worst_vs_best: float
    worst_vs_dense: float


def summarise(cells: Sequence[Cell]) -> Summary:
    ratios = [cell.auto_vs_best for cell in cells]
    return Summary(
        cells=len(cells),
        within_10_percent=sum(ratio <= 1.10 for ratio in ratios) / len(cells),
        within_25_percent=sum(ratio <= 1.25 for ratio in ratios) / len(cells),
        worst_vs_best=max(ratios),
        worst_vs_dense=max(cell.auto_vs_dense for cell in cells),
    )


def grid_cases(ranks: Sequence[int], lengths: Sequence[int], densities: Sequence[float]) -> list[Case]:
    """Every combination in which a rank has an entry at all."""
    cases = [
        Case(size, length, density)
        for size in ranks
        for length in lengths
        for density in densities
        if length * density >= 1
    ]
    if not cases:
        raise InputError("the grid has no cell: size x density must be at least 1 somewhere")
    return cases


def run(options: GridOptions, on_progress: OnProgress) -> list[Result[Cell]]:
    """Every case in every environment; the JSON file is written after each cell, for an interrupted run."""
    environments = [Environment.parse(word) for word in options.environments.split(",")]
    cases = grid_cases(
        parse_numbers(int, options.ranks),
        [parse_size(word) for word in options.sizes.split(",")],
        parse_numbers(float, options.densities),
    )
    cells: list[Cell] = []
    total = len(environments) * len(cases)
    for environment in environments:
        for ranks in dict.fromkeys(case.ranks for case in cases):
            job = [case for case in cases if case.ranks == ranks]
            _run_job(environment, job, options, cells, lambda what: on_progress(what, len(cells), total))
    return [make_result(cells)]


def _run_job(
    environment: Environment,
    cases: Sequence[Case],
    options: GridOptions,
    cells: list[Cell],
    on_case: Callable[[str], None],
) -> None:
    """Measure all cases of one number of ranks in one job, and add a cell for each."""
    plan = AllreducePlan(
        tuple(cases),
        (*ALGORITHMS, "auto"),
        budget_s=options.seconds,
        drop_above=DROP_ABOVE,
        tune_s=options.tuning,
        timeout_s=max(session.timeout_s(case, environment.network) for case in cases),
    )
    left = list(cases)

    def on_step(done: int, total: int) -> None:
        case = left[0]
        on_case(f"{environment}, {case.ranks} ranks, {case.length:,} at density {case.density:g}")

    def on_found(event: Mapping[str, Any]) -> None:
        cells.append(make_cell(environment, left.pop(0), event))
        if options.json:
            json_file.save(BENCHMARK, options, [make_result(cells)], options.json)

    session.run_ranks(plan, environment.driver, environment.network, on_step, on_found)


def make_cell(environment: Environment, case: Case, event: Mapping[str, Any]) -> Cell:
    """A cell from what the ranks found."""
    return Cell(
        environment=str(environment),
        ranks=case.ranks,
        length=case.length,
        density=case.density,
        nnz_in=case.nnz,
        nnz_out=event["nnz_out"],
        figures=event["figures"],
        turns=tuple(_turns(of_ranks) for of_ranks in zip(*event["found"], strict=True)),
    )


def _turns(of_ranks: OfRanks) -> Turns:
    name, seconds = of_ranks[0]["name"], slowest_rank(of_ranks)
    times = seconds or slowest_rank(of_ranks, "warm_up_seconds")
    return Turns(
        algorithm=name,
        seconds_median=statistics.median(times),
        seconds_min=min(times),
        iterations=len(seconds),
        wrong=sum(record["wrong"] for record in of_ranks),
        chosen=of_ranks[0]["moved"]["algorithm"] if name == "auto" else None,
    )


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """Everything that was measured, and what follows from it."""
    return {
        **asdict(cell),
        "chosen": cell.auto.chosen,
        "fastest": cell.fastest.algorithm,
        "auto_vs_best": cell.auto_vs_best,
        "auto_vs_dense": cell.auto_vs_dense,
    }


def make_result(cells: Sequence[Cell]) -> Result[Cell]:
    """The cells so far, with their summary."""
    return Result(cells, more={"summary": asdict(summarise(cells))})


COLUMNS: Columns[Cell] = {
    "where": lambda cell: cell.environment,
    "ranks": lambda cell: str(cell.ranks),
    "length": lambda cell: table.format_size(cell.length),
    "density": lambda cell: f"{cell.density:g}",
    "auto took": lambda cell: cell.auto.chosen or "-",
    "auto": lambda cell: _median(cell.auto),
    "fastest": lambda cell: cell.fastest.algorithm,
    "its median": lambda cell: _median(cell.fastest),
    "auto /\nbest": lambda cell: f"{cell.auto_vs_best:.2f}",
    "best dense": lambda cell: _median(cell.fastest_dense),
    "auto /\ndense": lambda cell: f"{cell.auto_vs_dense:.2f}",
    "wrong": lambda cell: table.format_wrong(cell.wrong),
}


def _median(turns: Turns) -> str:
    return table.format_seconds(turns.seconds_median) + ("" if turns.iterations else "*")


def conclusion(result: Result[Cell]) -> str:
    """How `auto` did over all cells."""
    summary = summarise(result.rows)
    return (
        f"[dim]# * took over {DROP_ABOVE:g} times as long as the fastest: dropped after its warm-up, "
        "whose time it is[/dim]\n"
        f"In {summary.within_10_percent:.1%} of {summary.cells} cells auto is within 10% of the best single "
        f"algorithm, in {summary.within_25_percent:.1%} within 25%; worst {summary.worst_vs_best:.2f}x. "
        f"Against the best dense algorithm its worst is {summary.worst_vs_dense:.2f}x."
    )


def _style(cell: Cell, cells: Sequence[Cell]) -> str | None:
    return "yellow" if cell.auto_vs_best > 1.1 else None


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Draw one heat map for each environment and number of ranks, length against density."""
    environments = list(dict.fromkeys(cell.environment for cell in cells))
    ranks = sorted({cell.ranks for cell in cells})
    lengths = sorted({cell.length for cell in cells})
    densities = sorted({cell.density for cell in cells})
    width, height = len(densities) * 0.72 + 0.4, len(lengths) * 0.62 + 0.5
    size = (max(WIDTH_OF_LEGEND, width * len(ranks) + 1.0), height * len(environments) + 1.9)
    with saved_figure(path, *size) as figure:
        axes = figure.subplots(len(environments), len(ranks), squeeze=False)
        for row, environment in enumerate(environments):
            for column, count in enumerate(ranks):
                panel = axes[row, column]
                mine = [cell for cell in cells if (cell.environment, cell.ranks) == (environment, count)]
                _draw_panel(panel, mine, lengths, densities)
                panel.set_title(f"{environment}, {count} ranks", fontsize=10)
                panel.set_xlabel("density" if row == len(environments) - 1 else "")
                panel.set_ylabel("length" if column == 0 else "")
        figure.suptitle(
            "Time of auto / time of the best single algorithm\n"
            "In a cell: ratio, what auto took (what was best)"
        )
        place = {"loc": "outside lower center", "ncols": len(CLASSES)}
        figure.legend(handles=_legend(), fontsize=9, frameon=False, **place)


def initials(algorithm: str) -> str:
    """A name that fits into a cell.

    >>> initials("dense_halving_doubling"), initials("hybrid")
    ('DHD', 'H')
    """
    return "".join(word[0].upper() for word in algorithm.split("_"))


def _draw_panel(
    panel: Any, cells: Sequence[Cell], lengths: Sequence[int], densities: Sequence[float]
) -> None:
    panel.set_facecolor(NOT_MEASURED)
    for cell in cells:
        x, y = densities.index(cell.density), lengths.index(cell.length)
        colour = next(colour for limit, colour in CLASSES.items() if cell.auto_vs_best <= limit)
        panel.bar(x, 1, 1, bottom=y - 0.5, color=colour, edgecolor="white")
        panel.text(x, y, _words(cell), ha="center", va="center", fontsize=8)
    panel.set_xlim(-0.5, len(densities) - 0.5)
    panel.set_ylim(-0.5, len(lengths) - 0.5)
    panel.set_xticks(range(len(densities)), [f"{density:g}" for density in densities], fontsize=8)
    panel.set_yticks(range(len(lengths)), [power_of_two(length) for length in lengths], fontsize=8)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)


def _words(cell: Cell) -> str:
    words = f"{cell.auto_vs_best:.2f}\n{initials(cell.auto.chosen or '?')}"
    if cell.fastest.algorithm != cell.auto.chosen:
        words += f" ({initials(cell.fastest.algorithm)})"
    return words


def _legend() -> list[Any]:
    """Colours in the first row, then algorithms; matplotlib fills a legend column by column."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    labels = [f"up to {limit:.2f}" if limit < math.inf else "above" for limit in CLASSES]
    colours = [
        Patch(color=colour, label=label) for colour, label in zip(CLASSES.values(), labels, strict=True)
    ]
    names = [Line2D([], [], linestyle="", label=f"{initials(name)} = {name}") for name in ALGORITHMS]
    nothing = Line2D([], [], linestyle="", label=" ")
    rows: list[list[Any]] = [
        colours,
        *(names[first : first + len(CLASSES)] for first in range(0, len(names), len(CLASSES))),
    ]
    return [handle for column in zip_longest(*rows, fillvalue=nothing) for handle in column]


BENCHMARK = Benchmark("bench grid", GridOptions, run, COLUMNS, conclusion, _style, plot, cell_to_json)
