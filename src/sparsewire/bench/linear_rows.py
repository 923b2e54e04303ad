"""From what was recorded about linear models to the numbers that are reported: one LinearRow a contender."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.linear_plan import DATA, DENSE, SPARK_SGD, LinearPlan
from sparsewire.bench.rows import slowest_rank

__all__ = [
    "LinearMemoryRow",
    "LinearRow",
    "compared",
    "fastest_linear",
    "make_linear_memory_row",
    "make_linear_rows",
    "yardstick",
]

# Dense contenders, the one to compare with first.
YARDSTICKS = ("gloo-dense", "mpi-dense", DENSE)
WARM_UP_PASSES = 1


@dataclass(frozen=True)
class LinearRow:
    """Training by one contender; docs/benchmarking.md says how each number is derived."""

    contender: str
    driver: str | None  # this and the next: of ranks
    network: str | None
    ranks: int
    data: str
    rows: int
    features: int
    nnz: int
    loss_name: str
    batch: int  # rows of a rank and step
    steps_per_pass: int
    passes: int
    seconds_min: float  # of a pass, at its slowest rank
    seconds_median: float
    seconds: list[float]
    communicating_min: float  # of these, on average over ranks
    communicating_median: float
    communication_share: float
    bytes_sent_max: float | None  # of a pass, by the rank that sends most
    interface_bytes_max: float | None
    loss: float  # of all rows, at the end
    accuracy: float
    distance: float | None  # to the model of our dense contender, in units of its norm
    same_model: bool  # on all ranks
    wrong: int  # ranks with another model than rank 0
    speedup_vs_dense: float | None
    communication_speedup_vs_dense: float | None
    speedup_vs_spark: float | None


@dataclass(frozen=True)
class LinearMemoryRow:
    """What training takes at the rank where that is most, in units of its rows and its model."""

    contender: str
    ranks: int
    data: str
    rows: int
    features: int
    nnz: int
    batch: int
    passes: int
    shard_bytes: int
    model_bytes: int
    peak_bytes: int
    ratio: float


def make_linear_rows(
    plan: LinearPlan, found: Sequence[Mapping[str, Any]], driver: str | None, network: str | None
) -> list[LinearRow]:
    """One row per contender, not compared yet; ``found[r]`` is what rank r found."""
    data = found[0]["data"]
    by_contender = zip(*(of_rank["records"] for of_rank in found), strict=True)
    return [_row(plan, data, of_ranks, driver, network) for of_ranks in by_contender]


def _row(
    plan: LinearPlan,
    data: Mapping[str, int],
    of_ranks: Sequence[Mapping[str, Any]],
    driver: str | None,
    network: str | None,
) -> LinearRow:
    first = of_ranks[0]
    seconds = slowest_rank(of_ranks)[WARM_UP_PASSES:]
    communicating = _means(of_ranks, "communicating")[WARM_UP_PASSES:]
    median, communicating_median = statistics.median(seconds), statistics.median(communicating)
    wrong = sum(record["digest"] != first["digest"] for record in of_ranks)
    return LinearRow(
        contender=first["contender"],
        driver=driver,
        network=network,
        ranks=len(of_ranks),
        data=_data_name(plan),
        rows=data["rows"],
        features=data["features"],
        nnz=data["nnz"],
        loss_name=plan.loss,
        batch=first["batch"],
        steps_per_pass=math.ceil(data["most_rows"] / first["batch"]),
        passes=plan.passes,
        seconds_min=min(seconds),
        seconds_median=median,
        seconds=seconds,
        communicating_min=min(communicating),
        communicating_median=communicating_median,
        communication_share=communicating_median / median,
        bytes_sent_max=_most(of_ranks, "bytes_sent") or _most(of_ranks, "interface_sent"),
        interface_bytes_max=_most(of_ranks, "interface_sent"),
        loss=first["loss"],
        accuracy=first["accuracy"],
        distance=first["distance"],
        same_model=not wrong,
        wrong=wrong,
        speedup_vs_dense=None,
        communication_speedup_vs_dense=None,
        speedup_vs_spark=None,
    )


def compared(rows: Sequence[LinearRow]) -> list[LinearRow]:
    """Fastest first, each against dense and against Spark, as far as these ran."""
    dense = yardstick(rows)
    spark = next((row for row in rows if row.contender == SPARK_SGD), None)
    with_ratios = [
        replace(
            row,
            speedup_vs_dense=dense.seconds_median / row.seconds_median if dense else None,
            communication_speedup_vs_dense=(
                dense.communicating_median / row.communicating_median
                if dense and row.communicating_median
                else None
            ),
            speedup_vs_spark=spark.seconds_median / row.seconds_median if spark else None,
        )
        for row in rows
    ]
    return sorted(with_ratios, key=lambda row: row.seconds_median)


def yardstick(rows: Sequence[LinearRow]) -> LinearRow | None:
    """The dense contender that others are compared with: the driver's peer, or else ours."""
    by_name = {row.contender: row for row in rows}
    return next((by_name[name] for name in YARDSTICKS if name in by_name), None)


def fastest_linear(rows: Sequence[LinearRow]) -> LinearRow | None:
    """The fastest of our exact sparse contenders."""
    exact = [row for row in rows if row.contender in (*ALGORITHMS, "auto")]
    return min(exact, key=lambda row: row.seconds_median, default=None)


def make_linear_memory_row(plan: LinearPlan, found: Sequence[Mapping[str, Any]]) -> LinearMemoryRow:
    """At the rank with the largest ratio; ``found[r]`` is what rank r found."""
    [contender], data = plan.contenders, found[0]["data"]
    rank = max(found, key=_memory_ratio)
    return LinearMemoryRow(
        contender=contender,
        ranks=len(found),
        data=_data_name(plan),
        rows=data["rows"],
        features=data["features"],
        nnz=data["nnz"],
        batch=plan.batch,
        passes=plan.passes,
        shard_bytes=rank["shard_bytes"],
        model_bytes=rank["model_bytes"],
        peak_bytes=rank["peak_bytes"],
        ratio=_memory_ratio(rank),
    )


def _memory_ratio(of_rank: Mapping[str, Any]) -> float:
    return float(of_rank["peak_bytes"] / (of_rank["shard_bytes"] + of_rank["model_bytes"]))


def _data_name(plan: LinearPlan) -> str:
    """Without what is only so on this machine."""
    return plan.data if plan.data in DATA else Path(plan.data).name


def _means(of_ranks: Sequence[Mapping[str, Any]], times: str) -> list[float]:
    """Of each pass, over the ranks."""
    return [
        statistics.fmean(of_pass) for of_pass in zip(*(record[times] for record in of_ranks), strict=True)
    ]


def _most(of_ranks: Sequence[Mapping[str, Any]], count: str) -> float | None:
    """What the rank with most has in a pass; None if nobody counts."""
    return max(
        (statistics.fmean(record[count][WARM_UP_PASSES:]) for record in of_ranks if record[count]),
        default=None,
    )
