"""How much has been computed: the odometer that the simulator reads, and cost functions are held against.

Two kinds of work decide the time: entries that go through a merge, where each step depends on a comparison,
and values that are added, copied or looked at one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NOTHING", "Work", "count", "done"]


class Work(NamedTuple):
    """Entries merged, and values streamed through."""

    entries: float = 0
    values: float = 0

    def __sub__(self, earlier: Work) -> Work:
        return Work(self.entries - earlier.entries, self.values - earlier.values)


NOTHING = Work()
_done = NOTHING


def count(entries: int = 0, values: int = 0) -> None:
    """Note that so much is computed."""
    global _done
    _done = Work(_done.entries + entries, _done.values + values)


def done() -> Work:
    """All that this process has computed so far."""
    return _done
