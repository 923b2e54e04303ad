"""From what each rank recorded about steps to the numbers of a row."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sparsewire.bench.harness.problem import Case
from sparsewire.bench.harness.records import (
    OfRanks,
    TimedRow,
    count_wrong_results,
    slowest_rank,
    speedup,
    time_fields,
)

WORD_BYTES = 4  # an entry is two words
# Of k, as a median over all steps.  A method that selects less is fast because it sends next to nothing.
ENOUGH_SELECTED = 0.5


@dataclass(frozen=True, kw_only=True)
class StepRow(TimedRow):
    """The whole step by one method; docs/benchmarking.md says how each number is derived."""

    method: str
    kind: str  # steady, renewal, dense
    ranks: int
    length: int
    dtype: str
    seed: int
    density: float
    k: int | None
    select_seconds: float
    exchange_seconds: float
    apply_seconds: float
    bytes_sent_max: int | None
    bytes_received_max: int | None
    bytes_sent_over_4k: float | None
    bytes_received_over_4k: float | None
    selected: list[int]  # entries of the mean, step by step, from a cold start
    wrong: int
    driver: str
    network: str | None
    speedup_vs_gloo_dense: float | None = None  # this and the next three: None if too little is selected
    speedup_vs_mpi_dense: float | None = None
    speedup_min_vs_gloo_dense: float | None = None
    speedup_min_vs_mpi_dense: float | None = None

    @property
    def selected_over_k(self) -> list[float]:
        return [count / self.k for count in self.selected] if self.k else []

    @property
    def selects_enough(self) -> bool:
        """Whether the row takes part in rankings; a dense step does."""
        return self.k is None or statistics.median(self.selected_over_k) >= ENOUGH_SELECTED

    @property
    def name(self) -> str:
        """The method, with a star if it does not take part in rankings."""
        return self.method if self.selects_enough else f"{self.method}*"


def make_step_rows(case: Case, records: Sequence[OfRanks], driver: str, network: str | None) -> list[StepRow]:
    """One row per method and kind, fastest median first, and rows that select too little at the end.

    ``records[r]`` is what rank r recorded.
    """
    rows = [_step_row(case, of_ranks, driver, network) for of_ranks in zip(*records, strict=True)]
    dense = {row.method: row for row in rows if row.kind == "dense"}

    def against(row: StepRow) -> dict[str, float | None]:
        speedups = {}
        for name in dense if row.selects_enough else ():
            peer, key = dense[name], name.replace("-", "_")
            speedups[f"speedup_vs_{key}"] = speedup(peer.seconds_median, row.seconds_median)
            speedups[f"speedup_min_vs_{key}"] = speedup(peer.seconds_min, row.seconds_min)
        return speedups

    compared = [replace(row, **against(row)) for row in rows]  # type: ignore[arg-type]
    return sorted(compared, key=lambda row: (not row.selects_enough, row.seconds_median))


def fastest_step(rows: Iterable[StepRow]) -> StepRow | None:
    """The fastest steady row that was right and selected enough."""
    able = [row for row in rows if row.kind == "steady" and not row.wrong and row.selects_enough]
    return min(able, key=lambda row: row.seconds_median, default=None)


def _step_row(case: Case, of_ranks: OfRanks, driver: str, network: str | None) -> StepRow:
    first = of_ranks[0]
    sent, received = (_most_in_a_step(of_ranks, name) for name in ("bytes_sent", "bytes_received"))
    k_bytes = WORD_BYTES * first["k"] if first["k"] else None
    select, exchange, apply = (statistics.median(phase) for phase in zip(*_phases(of_ranks), strict=True))
    return StepRow(
        **{name: first[name] for name in ("method", "kind", "k", "selected")},
        **{name: getattr(case, name) for name in ("ranks", "length", "dtype", "seed", "density")},
        **time_fields(slowest_rank(of_ranks)),
        select_seconds=select,
        exchange_seconds=exchange,
        apply_seconds=apply,
        bytes_sent_max=max(sent, default=None),
        bytes_received_max=max(received, default=None),
        bytes_sent_over_4k=statistics.median(sent) / k_bytes if k_bytes else None,
        bytes_received_over_4k=statistics.median(received) / k_bytes if k_bytes else None,
        wrong=count_wrong_results(of_ranks),
        driver=driver,
        network=network,
    )


def _phases(of_ranks: OfRanks) -> list[Sequence[float]]:
    """Of each iteration, the phases at its slowest rank."""
    iterations = zip(
        *(zip(record["seconds"], record["phases"], strict=True) for record in of_ranks), strict=True
    )
    return [max(iteration)[1] for iteration in iterations]


def _most_in_a_step(of_ranks: OfRanks, name: str) -> list[int]:
    """The most that any rank moved in each step, from a cold start; empty if no rank knows."""
    steps = zip(*(record["traffic"] for record in of_ranks), strict=True)
    return [max(moved[name] for moved in step) for step in steps if step[0][name] is not None]
