"""Figures: what all plots have in common.  Matplotlib is imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsewire.errors import SparsewireError

DPI = 110


class PlotError(SparsewireError):
    """There is nothing to draw with; the message says what to install."""


def require_matplotlib() -> None:
    """Raise PlotError if there is no matplotlib; called before a long measurement, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotError("matplotlib is not installed: pip install 'sparsewire[report]'") from None


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """A figure of so many inches that is written to the file at the end; the suffix decides the format."""
    require_matplotlib()
    from matplotlib.figure import Figure  # without pyplot there is no display and no global state

    figure = Figure((width, height), layout="constrained")
    yield figure
    figure.savefig(path, dpi=DPI)


def tidy(panel: Any, *, grid: bool = True) -> None:
    """Leave out the frame at the top and on the right, and draw a light grid."""
    panel.spines[["top", "right"]].set_visible(False)
    if grid:
        panel.grid(color="#dddddd", linewidth=0.5)


def legend_above(panel: Any, columns: int) -> None:
    """Put the legend above the panel, where it hides nothing."""
    panel.legend(frameon=False, fontsize=9, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1))


def where(driver: str | None, network: str | None) -> str:
    """What the ranks talk through, in a title."""
    return f"{driver}, {network}" if network else f"{driver}"


def power_of_two(length: int) -> str:
    """A length in a title or at an axis, as a power of two if it is one."""
    exponent = length.bit_length() - 1
    return f"$2^{{{exponent}}}$" if length == 1 << exponent else f"{length:,}"


def counted(number: int, what: str) -> str:
    """A number and a noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
