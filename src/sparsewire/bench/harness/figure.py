"""Figures: what all plots have in common.  Matplotlib is imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsewire.errors import SparsewireError
from sparsewire.files import replaced_file, require_writable

DPI = 110


class PlotError(SparsewireError):
    """Nothing can be drawn; the message says what to install, or which names a file may have."""


def require_plot(path: Path) -> None:
    """Raise an error if nothing can be drawn into this file; called before a long measurement."""
    try:
        from matplotlib import backend_bases
    except ImportError:
        raise PlotError("matplotlib is not installed: pip install 'sparsewire[report]'") from None
    known = sorted(backend_bases.FigureCanvasBase.get_supported_filetypes())
    if _format(path) not in known:
        raise PlotError(f"{path} cannot be drawn: the suffix decides the format, one of {', '.join(known)}")
    require_writable(path)


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """A figure of so many inches that is written to the file at the end; the suffix decides the format."""
    require_plot(path)
    from matplotlib.figure import Figure  # without pyplot there is no display and no global state

    figure = Figure((width, height), layout="constrained")
    yield figure
    with replaced_file(path, "wb") as file:
        figure.savefig(file, dpi=DPI, format=_format(path))


def _format(path: Path) -> str:
    return path.suffix.removeprefix(".").lower() or "png"


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
