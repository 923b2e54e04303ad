"""Recorded traces: which rows of an embedding table each rank touches in each step over a real text.

An .npz file has four arrays: ``rows``, all touched rows one after another, sorted within a rank and step;
``counts`` of shape (steps, ranks), how many each has; and the numbers ``vocabulary`` and ``row``, rows of the
table and positions of a row.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.bench.harness.draws import Indices
from sparsewire.errors import InputError
from sparsewire.files import replaced_file

KEYS = ("counts", "row", "rows", "vocabulary")


@dataclass(frozen=True)
class Trace:
    """``steps[s][r]`` are the rows that rank r touched in step s."""

    path: Path
    vocabulary: int
    row: int
    steps: Sequence[Sequence[npt.NDArray[np.uint32]]]

    def __str__(self) -> str:
        return self.path.name

    @property
    def length(self) -> int:
        return self.vocabulary * self.row

    @property
    def ranks(self) -> int:
        return len(self.steps[0])

    def check(self, ranks: int, step: int) -> None:
        """Raise InputError unless that many ranks were recorded, and that step."""
        if ranks > self.ranks:
            raise InputError(
                f"{self} has {self.ranks} ranks, not {ranks}: use at most as many, or record another trace"
            )
        if step >= len(self.steps):
            raise InputError(
                f"{self} has {len(self.steps)} steps, of which the seed is one: use 0 to "
                f"{len(self.steps) - 1}, not {step}"
            )

    def density(self, ranks: int, step: int) -> float:
        """The share of the table that the rank with most rows touched."""
        return max(len(rows) for rows in self.steps[step][:ranks]) / self.vocabulary

    def touched(self, step: int, rank: int) -> Indices:
        return self.steps[step][rank].astype(np.int64)


def write_trace(trace: Trace) -> None:
    """Write the trace to its file."""
    counts = np.array([[len(rows) for rows in step] for step in trace.steps], np.uint32)
    with replaced_file(trace.path, "wb") as file:
        np.savez_compressed(
            file,
            rows=np.concatenate([rows for step in trace.steps for rows in step]),
            counts=counts,
            vocabulary=trace.vocabulary,
            row=trace.row,
        )


def read_trace(path: Path) -> Trace:
    """The trace in a file of ``write_trace``; any other file is refused."""
    arrays = _arrays(path)
    rows, counts = arrays["rows"], arrays["counts"]
    vocabulary, row = arrays["vocabulary"], arrays["row"]
    if not (
        all(array.dtype.kind in "iu" for array in arrays.values())
        and (rows.ndim, counts.ndim, vocabulary.ndim, row.ndim) == (1, 2, 0, 0)
        and counts.size
        and counts.min() >= 1
        and counts.sum() == len(rows)
        and 0 <= rows.min() <= rows.max() < vocabulary
        and row >= 1
    ):
        raise InputError(f"{path.name} has arrays that do not belong together; {_REMEDY}")
    ends = np.cumsum(counts.astype(np.int64))
    parts = np.split(rows.astype(np.uint32), ends[:-1])
    if any(np.any(np.diff(part.astype(np.int64)) <= 0) for part in parts):
        raise InputError(f"{path.name} has rows that are not sorted, or twice; {_REMEDY}")
    ranks = counts.shape[1]
    steps = [parts[first : first + ranks] for first in range(0, len(parts), ranks)]
    return Trace(path, int(vocabulary), int(row), steps)


_REMEDY = "`sparsewire bench trace FILE` records one"


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"there is no trace {path}; {_REMEDY}") from None
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path.name} is no trace ({error}); {_REMEDY}") from error
    if sorted(arrays) != sorted(KEYS):
        raise InputError(f"{path.name} has {', '.join(arrays)}; a trace has {', '.join(KEYS)}; {_REMEDY}")
    return arrays
