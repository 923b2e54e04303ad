"""From what every rank recorded to the numbers of a row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sparsewire.bench.harness.problem import Case

# What each rank recorded about one contender, in rank order.
OfRanks: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ProblemRow:
    """What a row says about its problem; ``problem_fields`` has the values."""

    ranks: int
    length: int
    dtype: str
    distribution: str
    seed: int
    density_in: float
    nnz_in: int


@dataclass(frozen=True, kw_only=True)
class TimedRow:
    """What a row says about its times; ``time_fields`` has the values."""

    seconds_min: float
    seconds_median: float
    seconds: list[float]


@dataclass(kw_only=True)
class TrainingRecord:
    """What one rank recorded about one way to train; lists have an entry for each pass or step."""

    seconds: list[float] = field(default_factory=list)
    bytes_sent: list[float] = field(default_factory=list)  # empty if nothing counts
    interface_sent: list[float] = field(default_factory=list)  # empty likewise
    digest: int = 0  # of the model at the end


def problem_fields(case: Case) -> dict[str, Any]:
    """What a row says about its problem."""
    return {
        "ranks": case.ranks,
        "length": case.length,
        "dtype": case.dtype,
        "distribution": case.distribution_name,
        "seed": case.seed,
        "density_in": case.nnz / case.length,
        "nnz_in": case.nnz,
    }


def time_fields(seconds: list[float]) -> dict[str, Any]:
    """What a row says about its times."""
    return {"seconds_min": min(seconds), "seconds_median": statistics.median(seconds), "seconds": seconds}


def slowest_rank(of_ranks: OfRanks, times: str = "seconds") -> list[float]:
    """The time of each iteration, which is that of its slowest rank."""
    return [max(iteration) for iteration in zip(*(record[times] for record in of_ranks), strict=True)]


def largest_mean(of_ranks: OfRanks, count: str, warm_up: int) -> float | None:
    """The largest mean count of a rank after the warm-up; None if no rank counts."""
    counts = [record[count] for record in of_ranks if record[count]]
    return max((statistics.fmean(one[warm_up:] or one) for one in counts), default=None)


def count_wrong_results(of_ranks: OfRanks) -> int:
    """Wrong entries on all ranks, and one more for each digest that differs from the first."""
    wrong: int = sum(record["wrong"] for record in of_ranks)
    digests = [digest for record in of_ranks for digest in record["digests"]]
    return wrong + sum(int(digest != digests[0]) for digest in digests)


def count_different(of_ranks: OfRanks) -> int:
    """How many ranks ended with something else than rank 0."""
    return sum(record["digest"] != of_ranks[0]["digest"] for record in of_ranks)


def speedup(baseline: float | None, seconds: float) -> float | None:
    """How many times as fast as the baseline, if there is one."""
    return baseline / seconds if baseline else None
