"""What ranks tell the process that started them: JSON lines on standard output.

Each is behind an ASCII record separator (RFC 7464), because libraries print there too.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["heard", "say"]

SEPARATOR = b"\x1e"


def say(event: dict[str, Any]) -> None:
    """One event, at once."""
    sys.stdout.buffer.write(SEPARATOR + json.dumps(event).encode() + b"\n")
    sys.stdout.buffer.flush()


def heard(line: bytes) -> dict[str, Any] | None:
    """The event of this line; None if it is somebody else's.

    >>> heard(b'\\x1e{"done": 3}'), heard(b"hello")
    ({'done': 3}, None)
    """
    if not line.startswith(SEPARATOR):
        return None
    event: dict[str, Any] = json.loads(line[len(SEPARATOR) :])
    return event
