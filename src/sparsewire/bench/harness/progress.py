"""How far a long command is, on standard error: a bar on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sparsewire.bench.harness.benchmark import OnProgress

QUIET_S = 2.0  # a command that ends earlier prints no line
LINE_EVERY_S = 5.0


@contextmanager
def progress(title: str) -> Iterator[OnProgress]:
    """A function to call with what is going on, and how many of how many steps are done."""
    if sys.stderr.isatty():
        with _bar(title) as show:
            yield show
    else:
        yield _lines(title)


@contextmanager
def _bar(title: str) -> Iterator[OnProgress]:
    with make_bar() as bar:
        task = bar.add_task(title, total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{title}: {what}", completed=done, total=total, refresh=True)

        yield show


def make_bar(*further: str) -> Progress:
    """A bar, with further texts before the time; it is gone when it ends."""
    texts = map(TextColumn, further)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *texts)
    # The bar is redrawn by calls and not by a thread, which would take processor time from the ranks.
    return Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True, auto_refresh=False
    )


def _lines(title: str) -> OnProgress:
    next_line = time.monotonic() + QUIET_S

    def show(what: str, done: int, total: int) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_EVERY_S
            print(f"{title}: {what}, {done} of {total}", file=sys.stderr, flush=True)

    return show
