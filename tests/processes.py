"""Processes that tests start: how they begin, what they say, and that they are gone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0  # until a process must have done what is asked of it, on a machine that is busy


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process whose output the test reads; it is killed at the end of the block if it still runs."""
    pipes: Mapping[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(command), **{**pipes, **options}) as process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: subprocess.Popen[str], stream: str = "stdout") -> str:
    """The next line that the process writes; if it ends instead, the test fails with all that it said."""
    line: str = getattr(process, stream).readline()
    if not line:
        said = [text for text in process.communicate(timeout=PATIENCE_S) if text]
        raise AssertionError("\n".join([f"ended early with exit code {process.returncode}", *said]))
    return line


def ignoring(*signals: str) -> Callable[[Sequence[str]], list[str]]:
    """What makes of a command one that begins with these signals ignored, such as "INT"."""
    return lambda command: ["sh", "-c", f'trap "" {" ".join(signals)}; exec "$@"', "sh", *command]


def is_gone(pid: int) -> bool:
    """Is this process dead, whether or not its parent has waited for it?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def assert_all_gone(pids: Iterable[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while alive := [pid for pid in pids if not is_gone(pid)]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.01)
