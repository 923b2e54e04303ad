"""How much is computed, in the two kinds of work that decide the time.

These are entries that go through a merge, where each step depends on a comparison, and values that are
added, copied or compared one after the other.  The simulator measures the work of scripts, and cost functions
predict it.  Where nobody measures, counting does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

__all__ = ["NOTHING", "Meter", "Work", "count", "measured"]


class Work(NamedTuple):
    """Entries merged, and values streamed through."""

    entries: float = 0
    values: float = 0


NOTHING = Work()


class Meter:
    """The work that was done while it was installed."""

    def __init__(self) -> None:
        self.work = NOTHING


_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


def count(entries: int = 0, values: int = 0) -> None:
    """Tell the meter, if one is installed, that so much is computed."""
    meter = _meter.get()
    if meter is not None:
        meter.work = Work(meter.work.entries + entries, meter.work.values + values)


@contextmanager
def measured() -> Iterator[Meter]:
    """A meter for the work that the caller's thread does inside the ``with`` statement.

    >>> with measured() as meter:
    ...     count(entries=3)
    ...     count(values=5)
    >>> meter.work
    Work(entries=3, values=5)
    """
    meter = Meter()
    installed = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(installed)
