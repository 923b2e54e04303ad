"""Pictures.

The grid: one heat map for each environment and number of ranks, length against density.
Coding: bits per index against density, between plain indices and the information limit.
The step: its phases by each method beside dense, and how many entries each selected as it went on.
Training: the loss of every method against steps and against time.
Linear models: a pass of every contender, and how much of it is communication.
Allreduce: the time of every contender against density, and what the model says of OmniReduce.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.coding import SupportRow, bits_at_the_limit
from sparsewire.bench.grid import Cell
from sparsewire.bench.linear_rows import LinearRow
from sparsewire.bench.rows import ENOUGH_SELECTED, Row, StepRow
from sparsewire.bench.train_rows import TrainRow
from sparsewire.errors import SparsewireError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "PlotError",
    "initials",
    "plot_allreduce",
    "plot_coding",
    "plot_grid",
    "plot_linear",
    "plot_step",
    "plot_train",
    "require_matplotlib",
]

# Upper end of a class of `auto` / best -> its colour.
CLASSES = {1.05: "#2a9d6f", 1.10: "#a6d96a", 1.25: "#fee08b", math.inf: "#e0533d"}
NOT_MEASURED = "#eeeeee"
WIDTH_OF_LEGEND = 9.0  # inches
# Colour, marker and its size: where supports take the same, all of them are to be seen.
SUPPORT_STYLES = {"uniform": ("#2a6fbb", "o", 12), "zipf": ("#e07b39", "s", 7), "rows": ("#2a9d6f", "^", 4)}
BITS_OF_COO = 32
CURVE_STEPS = 200
PHASES = {"select": "#2a6fbb", "exchange": "#e07b39", "apply": "#2a9d6f"}
LONGEST_DENSE = 2.0  # of the longest sparse bar
MUCH_SELECTED = 1.25  # of k
WHOLE_PASS, COMMUNICATING = "#a9c6e3", "#e07b39"
# A method's line, the same in every picture: ours are solid.
TRAIN_STYLES: dict[str, dict[str, Any]] = {
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
# A contender's line; others take the next colour.
ALLREDUCE_STYLES: dict[str, dict[str, Any]] = {
    "gloo-dense": {"color": "black"},
    "dense_ring": {"color": "#888888"},
    "omnireduce": {"color": "#2a6fbb"},
    "omnireduce-dedicated": {"color": "#e07b39"},
}


class PlotError(SparsewireError):
    """There is nothing to draw with; the message says what to install."""


def require_matplotlib() -> None:
    """Better before a long measurement than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotError("matplotlib is not installed: pip install 'sparsewire[report]'") from None


def plot_grid(cells: Sequence[Cell], path: Path) -> None:
    """Draw all cells into a file; its name's suffix says the format."""
    require_matplotlib()
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    environments = list(dict.fromkeys(cell.environment for cell in cells))
    ranks = sorted({cell.ranks for cell in cells})
    lengths = sorted({cell.length for cell in cells})
    densities = sorted({cell.density for cell in cells})
    width, height = len(densities) * 0.72 + 0.4, len(lengths) * 0.62 + 0.5
    size = (max(WIDTH_OF_LEGEND, width * len(ranks) + 1.0), height * len(environments) + 1.9)
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(len(environments), len(ranks), squeeze=False)
    for row, environment in enumerate(environments):
        for column, count in enumerate(ranks):
            panel: Axes = axes[row, column]
            mine = [cell for cell in cells if (cell.environment, cell.ranks) == (environment, count)]
            _panel(panel, mine, lengths, densities)
            panel.set_title(f"{environment}, {count} ranks", fontsize=10)
            panel.set_xlabel("density" if row == len(environments) - 1 else "")
            panel.set_ylabel("length" if column == 0 else "")
    figure.suptitle(
        "Time of auto / time of the best single algorithm\nIn a cell: ratio, what auto took (what was best)"
    )
    figure.legend(
        handles=_legend(), loc="outside lower center", ncols=len(CLASSES), fontsize=9, frameon=False
    )
    figure.savefig(path, dpi=110)


def plot_allreduce(rows: Sequence[Row], path: Path) -> None:
    """Draw the medians of every contender against density into a file, and the model where there is one."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure((8.0, 5.0), layout="constrained")
    panel: Axes = figure.subplots()
    for name in dict.fromkeys(row.algorithm for row in rows):
        mine = sorted((row for row in rows if row.algorithm == name), key=lambda row: row.density_in)
        densities, style = [row.density_in for row in mine], ALLREDUCE_STYLES.get(name, {})
        [line] = panel.plot(densities, [row.seconds_median for row in mine], "o-", label=name, **style)
        model = [row.model_seconds for row in mine if row.model_seconds]
        if len(model) == len(mine):
            panel.plot(densities, model, color=line.get_color(), linestyle=":", label=f"{name}, model")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("density: share of blocks" if ":" in rows[0].distribution else "density")
    panel.set_ylabel("seconds at the slowest rank, medians")
    first = rows[0]
    where = f"{first.driver}, {first.network}" if first.network else first.driver
    panel.set_title(
        f"Sum of {first.ranks} vectors of {_power_of_two(first.length)} over {where} ({first.distribution})"
    )
    panel.grid(color="#dddddd", linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def plot_coding(rows: Sequence[SupportRow], path: Path) -> None:
    """Draw the bits per index of every support into a file."""
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    lowest, highest = (edge(row.density for row in rows) for edge in (min, max))
    densities = [lowest * (highest / lowest) ** (step / CURVE_STEPS) for step in range(CURVE_STEPS + 1)]
    figure = Figure((8.0, 5.0), layout="constrained")
    panel: Axes = figure.subplots()
    panel.axhline(BITS_OF_COO, color="#888888", linestyle="--", label="COO: 32 bits each")
    panel.plot(densities, [1 / d for d in densities], color="#888888", linestyle=":", label="bitmap")
    for distribution, (colour, marker, size) in SUPPORT_STYLES.items():
        mine = [row for row in rows if row.distribution == distribution]
        panel.plot(
            [row.density for row in mine],
            [row.bits_per_index for row in mine],
            color=colour,
            marker=marker,
            markersize=size,
            label=f"ours, {distribution}",
        )
    limits = [bits_at_the_limit(d) for d in densities]
    panel.plot(densities, limits, color="black", linewidth=1.0, label="entropy of uniform supports")
    panel.set_xscale("log")
    panel.set_yscale("log", base=2)
    panel.set_ylim(0.9, 2 * BITS_OF_COO)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda bits, _: f"{bits:g}"))
    panel.set_xlabel("density")
    panel.set_ylabel("bits per index")
    panel.set_title(f"What an index takes on the wire, in a vector of {_power_of_two(rows[0].length)}")
    panel.grid(color="#dddddd", linewidth=0.5)
    panel.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def plot_step(rows: Sequence[StepRow], path: Path) -> None:
    """Draw the phases of every row, and the selected counts of the steady ones, into a file."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure((12.0, 0.42 * len(rows) + 2.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    _draw_phases(left, rows)
    _draw_selected(right, [row for row in rows if row.kind == "steady"])
    first = rows[0]
    where = f"{first.driver}, {first.network}" if first.network else first.driver
    figure.suptitle(
        f"A step of {first.ranks} ranks over {where}: a gradient of {_power_of_two(first.length)}, "
        f"{first.density:.3g} of it selected"
    )
    figure.savefig(path, dpi=110)


def _draw_phases(panel: Axes, rows: Sequence[StepRow]) -> None:
    """Bars on bars, fastest on top; a dense bar that would dwarf the others is cut at the border."""
    names = [f"{row.method}, renewal" if row.kind == "renewal" else row.method for row in rows]
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
    panel.set_xlabel("milliseconds at the slowest rank, medians")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=9, ncols=len(PHASES), loc="lower left", bbox_to_anchor=(0, 1))


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def _draw_selected(panel: Axes, rows: Sequence[StepRow]) -> None:
    from matplotlib.ticker import FuncFormatter

    panel.axhspan(ENOUGH_SELECTED, MUCH_SELECTED, color="#eeeeee")
    for number, row in enumerate(rows):
        width = 1 + (len(rows) - number) / 2  # of lines upon lines all are to be seen
        panel.plot(range(1, len(row.selected) + 1), row.selected_over_k, linewidth=width, label=row.method)
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:.2g}"))
    panel.set_xlabel("step, from a cold start")
    panel.set_ylabel("entries of the mean, in k")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=9, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))


def plot_train(rows: Sequence[TrainRow], path: Path) -> None:
    """Draw the loss of every method that trains against steps and against time into a file."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure((12.0, 4.6), layout="constrained")
    against_steps, against_time = figure.subplots(1, 2, sharey=True)
    drawn = [row for row in rows if row.method in TRAIN_STYLES]
    for row in sorted(drawn, key=lambda row: list(TRAIN_STYLES).index(row.method)):
        style = {"linewidth": 1.6, **TRAIN_STYLES[row.method]}
        against_steps.plot(row.curve_steps, row.curve_losses, label=row.method, **style)
        against_time.plot(row.curve_seconds, row.curve_losses, **style)
        against_time.plot(
            row.curve_seconds[-1], row.curve_losses[-1], "o", color=style["color"], markersize=5
        )
    against_steps.set_ylabel("training loss")
    against_steps.set_xlabel("step")
    against_time.set_xlabel("seconds of training, at the slowest rank of each step")
    for panel in (against_steps, against_time):
        panel.grid(color="#dddddd", linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    against_steps.legend(frameon=False, fontsize=9, ncols=2)
    first = rows[0]
    where = f"at {first.network}" if first.network else "over loopback"
    figure.suptitle(
        f"Training {first.parameters / 1e6:.1f}M parameters ({first.task}) on {first.ranks} ranks {where}, "
        f"mean of {_count(max(row.seeds for row in rows), 'seed')}"
    )
    figure.savefig(path, dpi=110)


def plot_linear(rows: Sequence[LinearRow], path: Path) -> None:
    """Draw a pass of every contender, and its communication, into a file."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure((9.0, 0.42 * len(rows) + 1.8), layout="constrained")
    panel: Axes = figure.subplots()
    names, seconds = [row.contender for row in rows], [row.seconds_median for row in rows]
    communicating = [row.communicating_median for row in rows]
    # One in front of the other, not behind each other in a row: on this scale, lengths do not add up.
    panel.barh(names, seconds, color=WHOLE_PASS, label="a pass")
    panel.barh(names, communicating, height=0.35, color=COMMUNICATING, label="of it, communicating")
    for place in zip(seconds, names, strict=True):
        label = f"{place[0]:.3g} s"
        panel.annotate(label, place, (4, 0), textcoords="offset points", va="center", fontsize=9)
    panel.set_xscale("log")
    panel.set_xlim(min(filter(None, [*seconds, *communicating])) / 3, 3 * max(seconds))
    panel.invert_yaxis()
    panel.set_xlabel("seconds of a pass over the data, medians")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=9, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    first = next(row for row in rows if row.driver)
    where = f"{first.driver}, {first.network}" if first.network else first.driver
    figure.suptitle(
        f"{first.rows:,} rows of {first.features:,} features ({first.data}): "
        f"{_count(first.ranks, 'rank')} over {where}, batches of {first.batch:,}"
    )
    figure.savefig(path, dpi=110)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def initials(algorithm: str) -> str:
    """A name that fits into a cell.

    >>> initials("dense_halving_doubling"), initials("hybrid")
    ('DHD', 'H')
    """
    return "".join(word[0].upper() for word in algorithm.split("_"))


def _panel(panel: Axes, cells: Sequence[Cell], lengths: Sequence[int], densities: Sequence[float]) -> None:
    panel.set_facecolor(NOT_MEASURED)
    for cell in cells:
        x, y = densities.index(cell.density), lengths.index(cell.length)
        colour = next(colour for limit, colour in CLASSES.items() if cell.auto_vs_best <= limit)
        panel.bar(x, 1, 1, bottom=y - 0.5, color=colour, edgecolor="white")
        panel.text(x, y, _words(cell), ha="center", va="center", fontsize=8)
    panel.set_xlim(-0.5, len(densities) - 0.5)
    panel.set_ylim(-0.5, len(lengths) - 0.5)
    panel.set_xticks(range(len(densities)), [f"{density:g}" for density in densities], fontsize=8)
    panel.set_yticks(range(len(lengths)), [_power_of_two(length) for length in lengths], fontsize=8)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)


def _words(cell: Cell) -> str:
    words = f"{cell.auto_vs_best:.2f}\n{initials(cell.auto.chosen or '?')}"
    if cell.fastest.algorithm != cell.auto.chosen:
        words += f" ({initials(cell.fastest.algorithm)})"
    return words


def _power_of_two(length: int) -> str:
    exponent = length.bit_length() - 1
    return f"$2^{{{exponent}}}$" if length == 1 << exponent else f"{length:,}"


def _legend() -> list[Any]:
    """Colours in the first row, then algorithms; a legend is filled column by column."""
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
