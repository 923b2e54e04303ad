"""How fast LIBSVM files are read, on one core: ours and scikit-learn's reader, in turns, on the same file.

The file is plain text that was read before, so the disk has no part in it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.errors import InputError, MissingExtraError
from sparsewire.linear.generate import url_like
from sparsewire.linear.libsvm import load_libsvm
from sparsewire.linear.text_file import TextFile

__all__ = ["LibsvmRow", "measure_libsvm"]

MADE = "url-like"  # the file's name, if it is made here
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class LibsvmRow:
    """One reader on one file; rates are by the median."""

    reader: str
    file: str
    megabytes: float
    rows: int
    nnz: int
    seconds_min: float
    seconds_median: float
    seconds: list[float]
    megabytes_per_second: float
    speedup_vs_sklearn: float
    wrong: int  # labels and entries that differ from scikit-learn's


def measure_libsvm(
    path: str | None = None,
    rows: int = 20_000,
    budget_s: float = 20.0,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[LibsvmRow]:
    """A row for each reader, ours first; without a file, of one that is made, like the URL data set.

    Rounds are as many as fit into the budget, and at least three.  ``tell`` hears which of how many is next.
    """
    readers = {"sparsewire": load_libsvm, "sklearn": _sklearn_reader()}
    with _file(path, rows) as file:
        if TextFile.at(file).compression is not None:
            raise InputError(f"{file} is compressed, and what is measured is reading text: decompress it")
        tell("first read", 0, 1)
        start = time.perf_counter()
        matrices = {name: read(file) for name, read in readers.items()}
        rounds = max(FEWEST_ROUNDS, int(budget_s / (time.perf_counter() - start)))
        seconds: dict[str, list[float]] = {name: [] for name in readers}
        for done in range(rounds):
            tell("reading in turns", done, rounds)
            for name, read in readers.items():
                seconds[name].append(_seconds(read, file))
        megabytes = os.path.getsize(file) / 1e6
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return [
        LibsvmRow(
            reader=name,
            file=MADE if path is None else os.path.basename(path),
            megabytes=megabytes,
            rows=matrices[name][0].shape[0],
            nnz=matrices[name][0].nnz,
            seconds_min=min(times),
            seconds_median=medians[name],
            seconds=times,
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

    if rows < 1:
        raise InputError(f"rows is {rows}; a file to be measured has at least one")
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, MADE)
        dump_svmlight_file(*url_like(rows), made)
        yield made


def _seconds(read: Callable[[str], Any], file: str) -> float:
    start = time.perf_counter()
    read(file)
    return time.perf_counter() - start


def _count_wrong(found: Any, expected: Any) -> int:
    """Labels, row lengths, indices and values that differ; all of an array of another length."""
    (rows, labels), (peer_rows, peer_labels) = found, expected
    pairs = [
        (labels, peer_labels),
        (rows.indptr, peer_rows.indptr),
        (rows.indices, peer_rows.indices),
        (rows.data, peer_rows.data),
    ]
    return sum(len(a) if len(a) != len(b) else int(np.count_nonzero(a != b)) for a, b in pairs)
