"""``sparsewire run`` with ranks that stay until somebody ends them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from processes import next_line, started

COMMAND = [sys.executable, "-m", "sparsewire"]

SAY_PID_AND_STAY = """
import os, time
print(os.getpid(), flush=True)
time.sleep(600)
"""


@contextmanager
def staying(
    script: Path, ranks: int, start: Callable[[Sequence[str]], list[str]] = list, **options: Any
) -> Iterator[tuple[Popen[str], list[int]]]:
    """A launcher whose ranks do not end by themselves, and what each rank says first: a process id."""
    command = start([*COMMAND, "run", "-n", str(ranks), str(script)])
    with started(command, **options) as launcher:
        yield launcher, [int(next_line(launcher).split()[1]) for _ in range(ranks)]
