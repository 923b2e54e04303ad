"""From what ranks recorded about linear models to the numbers of a row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.harness import records
from sparsewire.bench.linear.plan import DATA, DENSE, SPARK_SGD, LinearPlan

# Dense contenders; the first that ran is the one to compare with.
BASELINES = ("gloo-dense", "mpi-dense", DENSE)
WARM_UP_PASSES = 1


@dataclass(frozen=True, kw_only=True)
class LinearRow(records.TimedRow):
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
    communicating_min: float  # of a pass, on average over ranks
    communicating_median: float
    communication_share: float
    bytes_sent_max: float | None  # of a pass, by the rank that sends most
    interface_bytes_max: float | None
    loss: float  # of all rows, at the end
    accuracy: float
    distance: float | None  # to the model of our dense contender, in units of its norm
    same_model: bool  # on all ranks
    wrong: int  # ranks with another model than rank 0
    speedup_vs_dense: float | None = None
    communication_speedup_vs_dense: float | None = None
    speedup_vs_spark: float | None = None


@dataclass(frozen=True)
class LinearMemoryRow:
    """The memory that training takes, at the rank where its ratio to rows and model is largest."""

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
    plan: LinearPlan, found: records.OfRanks, driver: str | None, network: str | None
) -> list[LinearRow]:
    """One row per contender without speedups; ``found[r]`` is what rank r found."""
    data = found[0]["data"]
    by_contender = zip(*(of_rank["records"] for of_rank in found), strict=True)
    return [_row(plan, data, of_ranks, driver, network) for of_ranks in by_contender]


def _row(
    plan: LinearPlan,
    data: Mapping[str, int],
    of_ranks: records.OfRanks,
    driver: str | None,
    network: str | None,
) -> LinearRow:
    first = of_ranks[0]
    seconds = records.slowest_rank(of_ranks)[WARM_UP_PASSES:]
    communicating = _means(of_ranks, "communicating")[WARM_UP_PASSES:]
    communicating_median = statistics.median(communicating)
    wrong = records.count_different(of_ranks)
    sent, interface = (
        records.largest_mean(of_ranks, name, WARM_UP_PASSES) for name in ("bytes_sent", "interface_sent")
    )
    return LinearRow(
        contender=first["contender"],
        driver=driver,
        network=network,
        ranks=len(of_ranks),
        data=_data_name(plan),
        **_sizes(data),
        loss_name=plan.loss,
        batch=first["batch"],
        steps_per_pass=math.ceil(data["most_rows"] / first["batch"]),
        passes=plan.passes,
        **records.time_fields(seconds),
        communicating_min=min(communicating),
        communicating_median=communicating_median,
        communication_share=communicating_median / statistics.median(seconds),
        bytes_sent_max=sent or interface,
        interface_bytes_max=interface,
        loss=first["loss"],
        accuracy=first["accuracy"],
        distance=first["distance"],
        same_model=not wrong,
        wrong=wrong,
    )


def compared(rows: Sequence[LinearRow]) -> list[LinearRow]:
    """The rows with speedups over dense and over Spark, as far as these ran, fastest first."""
    dense = dense_baseline(rows)
    spark = next((row.seconds_median for row in rows if row.contender == SPARK_SGD), None)
    with_speedups = []
    for row in rows:
        row = replace(row, speedup_vs_spark=records.speedup(spark, row.seconds_median))
        if dense:
            row = replace(row, speedup_vs_dense=records.speedup(dense.seconds_median, row.seconds_median))
        if dense and row.communicating_median:
            ratio = dense.communicating_median / row.communicating_median
            row = replace(row, communication_speedup_vs_dense=ratio)
        with_speedups.append(row)
    return sorted(with_speedups, key=lambda row: row.seconds_median)


def dense_baseline(rows: Sequence[LinearRow]) -> LinearRow | None:
    """The dense contender that others are compared with: the driver's peer, or else ours."""
    by_name = {row.contender: row for row in rows}
    return next((by_name[name] for name in BASELINES if name in by_name), None)


def fastest_linear(rows: Sequence[LinearRow]) -> LinearRow | None:
    """The fastest of our exact sparse contenders."""
    exact = [row for row in rows if row.contender in (*ALGORITHMS, "auto")]
    return min(exact, key=lambda row: row.seconds_median, default=None)


def make_linear_memory_row(plan: LinearPlan, found: records.OfRanks) -> LinearMemoryRow:
    """At the rank with the largest ratio; ``found[r]`` is what rank r found."""
    [contender], data = plan.contenders, found[0]["data"]
    rank = max(found, key=_memory_ratio)
    return LinearMemoryRow(
        contender=contender,
        ranks=len(found),
        data=_data_name(plan),
        **_sizes(data),
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
    """The name of the data, without the folder of a file."""
    return plan.data if plan.data in DATA else Path(plan.data).name


def _means(of_ranks: records.OfRanks, times: str) -> list[float]:
    """The mean over the ranks, for each pass."""
    return [
        statistics.fmean(of_pass) for of_pass in zip(*(record[times] for record in of_ranks), strict=True)
    ]


def _sizes(data: Mapping[str, int]) -> dict[str, Any]:
    """What a row says about the size of the data."""
    return {name: data[name] for name in ("rows", "features", "nnz")}
