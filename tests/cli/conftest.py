"""The command line as its users have it: another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest

Cli: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = [sys.executable, "-m", "sparsewire"]


@pytest.fixture
def cli() -> Cli:
    """Run ``sparsewire`` with these words; its output and exit code."""

    def run(*words: object, timeout: float = 120.0, **more: object) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **more)  # type: ignore[call-overload]

    return run
