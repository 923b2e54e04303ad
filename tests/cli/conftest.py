"""The command line as its users have it, in another process; or faster, in the process of the test."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
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
    """Run ``sparsewire`` with these words in this process; its exit code, and its text on both streams."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # those that the command line handles
    handlers = {number: signal.getsignal(number) for number in numbers}

    def run(*words: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["sparsewire", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def script(tmp_path):
    """Write a Python script with this text; its path."""

    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def write(tmp_path):
    """Write a file with this text; its path."""

    def write(text, name="train.svm"):
        path = tmp_path / name
        path.write_text("".join(text))
        return str(path)

    return write
