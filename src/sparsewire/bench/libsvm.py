"""``bench libsvm``: how fast our reader and scikit-learn's read the same LIBSVM file, in turns, on one core.

The file is plain text that was read before, so the disk does not matter.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire.bench.harness import table
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.clock import seconds_of
from sparsewire.bench.harness.options import Json, Options, Seconds, option
from sparsewire.bench.harness.records import TimedRow, time_fields
from sparsewire.errors import InputError, MissingExtraError
from sparsewire.files import replaced_file

MADE = "url-like"  # the file's name, if it is made here
FEWEST_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class LibsvmOptions(Options):
    """How fast LIBSVM files are read on one core, ours and scikit-learn's reader in turns."""

    file: Path | None = option(None, "Plain text; by default one like URL is made.", by_position=True)
    rows: int = option(20_000, "Of a file that is made.", min=1)
    seconds: Seconds = 20.0
    json: Json = None

    def unused(self) -> tuple[str, ...]:
        """A file has rows of its own."""
        return ("rows",) if self.file else ()


@dataclass(frozen=True, kw_only=True)
class LibsvmRow(TimedRow):
    """One reader on one file; rates are by the median."""

    reader: str
    file: str
    megabytes: float
    rows: int
    nnz: int
    megabytes_per_second: float
    speedup_vs_sklearn: float
    wrong: int  # labels and entries that differ from scikit-learn's


def measure_libsvm(
    path: str | None = None,
    rows: int = 20_000,
    budget_s: float = 20.0,
    on_progress: OnProgress = lambda what, done, total: None,
) -> list[LibsvmRow]:
    """A row for each reader, ours first; without a file, one like the URL data set is made.

    There are as many rounds as fit into the budget, and at least three.
    """
    from sparsewire.linear.libsvm import load_libsvm
    from sparsewire.linear.text_file import TextFile

    readers = {"sparsewire": load_libsvm, "sklearn": _sklearn_reader()}
    with _file(path, rows) as file:
        if TextFile.at(file).compression is not None:
            raise InputError(f"{file} is compressed, and what is measured is reading text: decompress it")
        on_progress("first read", 0, 1)
        start = time.perf_counter()
        matrices = {name: read(file) for name, read in readers.items()}
        rounds = max(FEWEST_ROUNDS, int(budget_s / (time.perf_counter() - start)))
        seconds: dict[str, list[float]] = {name: [] for name in readers}
        for done in range(rounds):
            on_progress("reading in turns", done, rounds)
            for name, read in readers.items():
                seconds[name].append(seconds_of(read, file))
        megabytes = os.path.getsize(file) / 1e6
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return [
        LibsvmRow(
            reader=name,
            file=MADE if path is None else os.path.basename(path),
            megabytes=megabytes,
            rows=matrices[name][0].shape[0],
            nnz=matrices[name][0].nnz,
            **time_fields(times),
            megabytes_per_second=megabytes / medians[name],
            speedup_vs_sklearn=medians["sklearn"] / medians[name],
            wrong=_count_wrong(matrices[name], matrices["sklearn"]),
        )
        for name, times in seconds.items()
    ]


def _sklearn_reader() -> Callable[[str], Any]:
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError as missing:
        raise MissingExtraError.of("scikit-learn", "linear") from missing
    return lambda file: load_svmlight_file(file, dtype=np.float32)


@contextmanager
def _file(path: str | None, rows: int) -> Iterator[str]:
    if path is not None:
        yield path
        return
    from sklearn.datasets import dump_svmlight_file

    from sparsewire.linear.generate import url_like

    if rows < 1:
        raise InputError(f"rows is {rows}; a file to be measured has at least one")
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, MADE)
        with replaced_file(made, "wb") as file:
            dump_svmlight_file(*url_like(rows), file)
        yield made


def _count_wrong(found: Any, expected: Any) -> int:
    """How many labels, row lengths, indices and values differ; all of an array of another length."""
    (rows, labels), (peer_rows, peer_labels) = found, expected
    pairs = [
        (labels, peer_labels),
        (rows.indptr, peer_rows.indptr),
        (rows.indices, peer_rows.indices),
        (rows.data, peer_rows.data),
    ]
    return sum(len(a) if len(a) != len(b) else int(np.count_nonzero(a != b)) for a, b in pairs)


def run(options: LibsvmOptions, on_progress: OnProgress) -> list[Result[LibsvmRow]]:
    """A row for each reader."""
    file = str(options.file) if options.file else None
    rows = measure_libsvm(file, options.rows, options.seconds, on_progress)
    first = rows[0]
    header = (
        f"{first.file}: {first.megabytes:,.1f} MB, {first.rows:,} rows, {first.nnz:,} non-zeros, "
        "one core, plain text that was read before"
    )
    return [Result(rows, [header])]


COLUMNS: Columns[LibsvmRow] = {
    "reader": lambda row: row.reader,
    "min": lambda row: table.format_seconds(row.seconds_min),
    "median": lambda row: table.format_seconds(row.seconds_median),
    "MB/s": lambda row: f"{row.megabytes_per_second:,.0f}",
    "vs sklearn": lambda row: table.format_times(row.speedup_vs_sklearn),
    "wrong": lambda row: table.format_wrong(row.wrong),
}

BENCHMARK = Benchmark("bench libsvm", LibsvmOptions, run, COLUMNS)
