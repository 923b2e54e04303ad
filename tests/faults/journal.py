"""What a rank writes down while it runs: lines of JSON that are still there after it was killed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from sparsewire.errors import SparsewireError

NAME = "journal-{rank}.jsonl"


class Journal:
    """Times are those of the machine's monotonic clock, which all processes share."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = folder / NAME.format(rank=rank)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **event: Any) -> None:
        os.write(self._file, (json.dumps({"at": time.monotonic(), **event}) + "\n").encode())

    def failed(self, call: int, error: BaseException) -> None:
        self.write(
            call=call,
            error=type(error).__name__,
            message=str(error),
            named=isinstance(error, SparsewireError),
        )


def read(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / NAME.format(rank=rank)
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
