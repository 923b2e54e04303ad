"""Results as JSON files, with the command and the environment that they come from."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.bench.harness.benchmark import Benchmark, O, R, Result
from sparsewire.files import replaced_file


def environment() -> dict[str, Any]:
    """Facts about this machine from a fixed list: no host names, no paths, no variables."""
    return {
        "sparsewire": version("sparsewire"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": version("torch"),
        "mpi4py": version("mpi4py"),
        "isa": kernels.active_isa(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "kernel": platform.release(),
    }


def version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def save(benchmark: Benchmark[O, R], options: O, results: Sequence[Result[R]], path: Path) -> None:
    """Write the rows of all results; further keys are those of the first."""
    first = results[0]
    rows = [benchmark.to_json(row) for result in results for row in result.rows]
    skipped = {} if first.skipped is None else {"skipped": first.skipped}
    write_json(path, benchmark.command(options), rows, **first.more, **skipped)


def write_json(path: Path, command: Sequence[str], rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Write one object: the command, the environment, the rows, and more."""
    report = {"command": shlex.join(command), "environment": environment(), "rows": list(rows), **more}
    with replaced_file(path) as file:
        file.write(json.dumps(report, indent=1) + "\n")
