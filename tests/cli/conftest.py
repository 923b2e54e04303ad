"""The command line as its users have it, in another process, and within this one where that is enough."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest

from sparsewire.commands import main

Cli: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = [sys.executable, "-m", "sparsewire"]


@pytest.fixture
def cli() -> Cli:
    """Run ``sparsewire`` with these words; its output and exit code."""

    def run(*words: object, timeout: float = 120.0, **more: object) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **more)  # type: ignore[call-overload]

    return run


@pytest.fixture
def command(monkeypatch, capsys):
    """``sparsewire`` with these words in this process: exit code, and what it wrote on both streams."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["sparsewire", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)
