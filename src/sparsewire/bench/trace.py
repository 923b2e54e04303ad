"""``bench trace``: record which rows of an embedding table a text touches.

The text is that of ``bench train --task embedding``: the standard library's source, or a file.  Its words are
rows, the most frequent word first.  Batches of consecutive words go to the ranks in turn.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.options import Option, Options, Ranks, option
from sparsewire.bench.harness.table import format_bytes
from sparsewire.bench.harness.trace_file import Trace, write_trace
from sparsewire.bench.train.tasks import words
from sparsewire.errors import InputError


@dataclass(frozen=True, kw_only=True)
class TraceOptions(Options):
    """Record which rows of an embedding table a text touches, for --distribution trace:FILE."""

    file: Annotated[Path, Option("Where to write it, an .npz file.", by_position=True)]
    ranks: Ranks = 8
    row: int = option(64, "Positions of a row of the table.", min=1)
    batch: int = option(2048, "Words of a rank and step.", min=1)
    steps: int = option(8, "To record.", min=1)
    data: Path | None = option(None, "A text, instead of the standard library's source.")


@dataclass(frozen=True)
class TraceRow:
    """One step of a trace."""

    step: int
    of_rank: float  # rows that a rank touched, on average
    of_any: int
    share: float  # of the table, by a rank


def run(options: TraceOptions, on_progress: OnProgress) -> list[Result[TraceRow]]:
    """Write the trace; a row for each of its steps."""
    trace = record_trace(options.file, options.ranks, options.row, options.batch, options.steps, options.data)
    write_trace(trace)
    rows = []
    for number, step in enumerate(trace.steps):
        of_rank, of_any = statistics.mean(map(len, step)), len(np.unique(np.concatenate(step)))
        rows.append(TraceRow(number, of_rank, of_any, of_rank / trace.vocabulary))
    header = (
        f"{trace}: {trace.vocabulary:,} rows of {trace.row}, {trace.ranks} ranks, "
        f"{format_bytes(trace.path.stat().st_size)}"
    )
    return [Result(rows, [header])]


def record_trace(path: Path, ranks: int, row: int, batch: int, steps: int, data: Path | None = None) -> Trace:
    """The rows that batches of words touch; the text is that of the file, if there is one."""
    text, needed = words(data), steps * ranks * batch
    if needed > len(text):
        raise InputError(
            f"{steps} steps of {ranks} ranks take {needed:,} words, and the text has {len(text):,}: "
            "record fewer steps, ranks or words a batch"
        )
    batches = text[:needed].reshape(steps, ranks, batch).astype(np.uint32)
    touched = [[np.unique(of_rank) for of_rank in step] for step in batches]
    return Trace(path, int(text.max()) + 1, row, touched)


COLUMNS: Columns[TraceRow] = {
    "step": lambda row: str(row.step),
    "touched by a rank": lambda row: f"{row.of_rank:,.0f}",
    "by any": lambda row: f"{row.of_any:,}",
    "share of\nthe table": lambda row: f"{row.share:.2%}",
    "any / rank": lambda row: f"{row.of_any / row.of_rank:.1f}",
}

BENCHMARK = Benchmark("bench trace", TraceOptions, run, COLUMNS)
