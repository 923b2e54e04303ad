"""Processes that begin with numpy and sparsewire imported, which takes longer than most of what they do.

This file is also a program, which imports both once and forks for every order.  Each fork has its own
environment, executes its source as a main program does, and ends as one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy  # noqa: F401  (for the forks)

import sparsewire  # noqa: F401


class Process:
    """A child of another process, by a handle that names no other process after its end."""

    def __init__(self, pid: int, orders: IO[str]) -> None:
        self._pid = pid
        self._orders = orders
        self._handle = os.pidfd_open(pid)

    def has_ended(self, within_s: float = 0.0) -> bool:
        return bool(select.select([self._handle], [], [], within_s)[0])

    def exit_code(self) -> int | None:
        """Negative after a signal, as in ``subprocess``; None while it runs."""
        if not self.has_ended():
            return None
        # Only its parent can wait for it.  Until it is told to, the kernel tells everybody.
        status = int(Path(f"/proc/{self._pid}/stat").read_text().split()[-1])
        return os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Kill it, if it still runs, and let go of it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self.has_ended(within_s=60.0)
        os.close(self._handle)
        _write(self._orders, self._pid)


def start(source: str, environment: Mapping[str, str], preloaded: tuple[str, ...] = ()) -> Process:
    """A process that executes the source, and begins with these modules imported too."""
    orders, pids = _parent(preloaded)
    _write(orders, [source, dict(environment)])
    return Process(int(pids.readline()), orders)


def _write(orders: IO[str], order: object) -> None:
    orders.write(json.dumps(order) + "\n")
    orders.flush()


@functools.cache
def _parent(preloaded: tuple[str, ...]) -> tuple[IO[str], IO[str]]:
    """Where it takes orders, and where it tells the pids of its children."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, *preloaded],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    atexit.register(process.communicate)  # which closes its input: no more orders
    return process.stdin, process.stdout


def _next_child() -> str:
    """Fork for every source, wait for every pid.  Returns in the child, and gives the source."""
    for line in sys.stdin:
        order = json.loads(line)
        if isinstance(order, int):
            os.waitpid(order, 0)
            continue
        pid = os.fork()
        if pid == 0:
            source, environment = order
            os.environ.clear()
            os.environ.update(environment)
            os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            return source
        print(pid, flush=True)
    sys.exit()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    exec(compile(_next_child(), "rank", "exec"))
