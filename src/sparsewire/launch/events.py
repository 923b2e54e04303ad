"""What a process sends to the ranks that it starts, and what they send back: both as JSON.

Ranks get a ``JobSpec`` as one command-line argument.  They send events as lines on standard output.  An event
begins with an ASCII record separator (RFC 7464), which tells it from what libraries print there.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sparsewire.errors import InputError
from sparsewire.launch.local import LONGEST_LINE

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EventReader", "JobSpec", "parse_event", "say"]

SEPARATOR = b"\x1e"
TAIL_LINES = 15  # of the output of a failed rank, to be shown to the user
TAIL_BYTES = 4096  # of each of these lines


@dataclass(frozen=True)
class JobSpec:
    """What all ranks of a job do; subclasses add the fields.  Sequences are tuples after ``from_json``."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        return cls(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        )


def say(event: dict[str, Any]) -> None:
    """Write an event to standard output, and flush it."""
    line = SEPARATOR + json.dumps(event).encode()
    if len(line) >= LONGEST_LINE:
        raise InputError(
            f"an event has {len(line):,} bytes, and the launcher takes lines up to {LONGEST_LINE:,}"
        )
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def parse_event(line: bytes) -> dict[str, Any] | None:
    """The event in this line; None if the line is no event.

    >>> parse_event(b'\\x1e{"done": 3}'), parse_event(b"hello")
    ({'done': 3}, None)
    """
    if not line.startswith(SEPARATOR):
        return None
    try:
        event = json.loads(line[len(SEPARATOR) :])
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


class EventReader:
    """Separates the lines of ranks: events go to ``on_event``, and other lines are kept for ``tail``."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        self._on_event = on_event
        self._others: dict[int | None, deque[str]] = {}

    def hear(self, rank: int, stream: str, line: bytes) -> None:
        """Take one line; this is the ``on_line`` of ``launch``."""
        event = parse_event(line)
        if event is None:
            text = line[-TAIL_BYTES:].decode(errors="replace")
            self._others.setdefault(rank, deque(maxlen=TAIL_LINES)).append(text)
        else:
            self._on_event(event)

    def tail(self, rank: int | None) -> str:
        """The ends of the last lines of a rank that were no events."""
        return "\n".join(self._others.get(rank, ()))
