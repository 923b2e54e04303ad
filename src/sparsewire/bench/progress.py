"""How far a long command is: a bar on a terminal, a line now and then elsewhere, always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["progress"]

QUIET_S = 2.0  # what is over by then needs no line
LINE_EVERY_S = 5.0


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with what is going on, and how many of how many steps are done."""
    if sys.stderr.isatty():
        with _bar(title) as tell:
            yield tell
    else:
        yield _lines(title)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Redrawn when something happened, not by a thread: that would take turns from the ranks.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{title}: {what}", completed=done, total=total, refresh=True)

        yield tell


def _lines(title: str) -> Callable[[str, int, int], None]:
    next_line = time.monotonic() + QUIET_S

    def tell(what: str, done: int, total: int) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_EVERY_S
            print(f"{title}: {what}, {done} of {total}", file=sys.stderr, flush=True)

    return tell
