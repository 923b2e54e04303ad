"""Whether figures of ranks grow.

The warm-up is over after a minute, or after a third of a shorter soak.  Memory grows by the difference
between the median of the last tenth of the samples and that of the first tenth after the warm-up.
Descriptors and threads come and go with communicators, and some come with the first use of a connection.
They grow if the late median is above every sample of the first half, and by more than ``FIRST_USES``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARM_UP_S = 60.0
COUNTS = ("descriptors", "threads", "python_threads")
FIRST_USES = 2
MIB = 1 << 20


@dataclass(frozen=True)
class Growth:
    """One figure of one rank."""

    rank: int
    figure: str
    early: float
    late: float

    @property
    def difference(self) -> float:
        return self.late - self.early


def growths(samples: Sequence[Mapping[str, Any]]) -> list[Growth]:
    """The growth of every figure of every rank."""
    warm_up_s = min(WARM_UP_S, samples[-1]["seconds"] / 3)
    warm = [sample for sample in samples if sample["seconds"] >= warm_up_s]
    tenth = max(1, len(warm) // 10)
    found = []
    for rank, first in enumerate(samples[0]["ranks"]):
        for figure in first:
            numbers = [sample["ranks"][rank][figure] for sample in warm]
            late = statistics.median(numbers[-tenth:])
            half = numbers[: max(1, len(numbers) // 2)]
            early = max(half) if figure in COUNTS else statistics.median(numbers[:tenth])
            found.append(Growth(rank, figure, early, late))
    return found


def plot(samples: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Memory of every rank over time, and below it descriptors, threads and objects of rank 0."""
    from sparsewire.bench.harness.figure import saved_figure, tidy

    minutes = [sample["seconds"] / 60 for sample in samples]
    with saved_figure(path, 9.0, 7.0) as figure:
        memory, counts = figure.subplots(2, 1, sharex=True)
        for rank in range(len(samples[0]["ranks"])):
            resident = [sample["ranks"][rank]["rss"] / MIB for sample in samples]
            memory.plot(minutes, resident, linewidth=1.2, label=f"rank {rank}")
        memory.set_ylabel("resident memory, MiB")
        memory.legend(frameon=False, ncols=4)
        for name in ("descriptors", "threads", "objects"):
            values = [sample["ranks"][0][name] for sample in samples]
            counts.plot(minutes, [value / values[0] for value in values], linewidth=1.2, label=name)
        counts.set_ylabel("rank 0, times the first sample")
        counts.set_xlabel("minutes")
        counts.legend(frameon=False, ncols=3, loc="center right")
        for panel in (memory, counts):
            tidy(panel)
