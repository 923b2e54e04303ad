"""What ranks are told by the process that started them, and what they tell it: both as JSON.

They are told one command-line argument.  They tell lines on standard output, each behind an ASCII record
separator (RFC 7464), because libraries print there too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EventReader", "JobSpec", "parse_event", "say"]

SEPARATOR = b"\x1e"
TAIL_LINES = 15  # lines of a failed rank that are worth showing


@dataclass(frozen=True)
class JobSpec:
    """What all ranks do, as one command-line argument; sequences come back as tuples."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        return cls(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        )


def say(event: dict[str, Any]) -> None:
    """One event, at once."""
    sys.stdout.buffer.write(SEPARATOR + json.dumps(event).encode() + b"\n")
    sys.stdout.buffer.flush()


def parse_event(line: bytes) -> dict[str, Any] | None:
    """The event of this line; None if it is somebody else's.

    >>> parse_event(b'\\x1e{"done": 3}'), parse_event(b"hello")
    ({'done': 3}, None)
    """
    if not line.startswith(SEPARATOR):
        return None
    event: dict[str, Any] = json.loads(line[len(SEPARATOR) :])
    return event


class EventReader:
    """Sorts what ranks print into events, which ``on_event`` hears, and words."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        self._on_event = on_event
        self._words: dict[int | None, list[str]] = {}

    def hear(self, rank: int, stream: str, line: bytes) -> None:
        event = parse_event(line)
        if event is None:
            self._words.setdefault(rank, []).append(line.decode(errors="replace"))
        else:
            self._on_event(event)

    def tail(self, rank: int | None) -> str:
        """The end of what a rank has said that was no event."""
        return "\n".join(self._words.get(rank, [])[-TAIL_LINES:])
