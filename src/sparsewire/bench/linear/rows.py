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
class DataRow:
    """What all rows say about their contender and its data; ``_data_fields`` has the values."""

    contender: str
    ranks: int
    data: str
    rows: int
    features: int
    nnz: int
    batch: int  # rows of a rank and step
    passes: int


@dataclass(frozen=True, kw_only=True)
class LinearRow(DataRow, records.TimedRow):
    """Training by one contender; docs/benchmarking.md says how each number is derived."""

    driver: str | None  # this and the next: of ranks
    network: str | None
    loss_name: str
    steps_per_pass: int
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


@dataclass(frozen=True, kw_only=True)
class LinearMemoryRow(DataRow):
    """The memory that training takes, at the rank where its ratio to rows and model is largest."""

    shard_bytes: int
    model_bytes: int
    peak_bytes: int
    ratio: float


def make_rows(
    plan: LinearPlan, found: records.OfRanks, driver: str | None, network: str | None
) -> list[LinearRow]:
    """One row per contender without speedups; ``found[r]`` is what rank r found."""
    facts = _data_fields(plan, found) | {"driver": driver, "network": network, "loss_name": plan.loss}
    by_contender = zip(*(of_rank["records"] for of_rank in found), strict=True)
    return [_row(facts, found[0]["data"]["most_rows"], of_ranks) for of_ranks in by_contender]


def _data_fields(plan: LinearPlan, found: records.OfRanks) -> dict[str, Any]:
    """What all rows of a plan say about their data; a file's name is without its folder."""
    sizes = {name: found[0]["data"][name] for name in ("rows", "features", "nnz")}
    name = plan.data if plan.data in DATA else Path(plan.data).name
    return {"ranks": len(found), "data": name, "passes": plan.passes, **sizes}


def _row(facts: Mapping[str, Any], most_rows: int, of_ranks: records.OfRanks) -> LinearRow:
    first = of_ranks[0]
    seconds = records.slowest_rank(of_ranks)[WARM_UP_PASSES:]
    communicating = _means(of_ranks, "communicating")[WARM_UP_PASSES:]
    communicating_median = statistics.median(communicating)
    wrong = records.count_different(of_ranks)
    sent, interface = (
        records.largest_mean(of_ranks, name, WARM_UP_PASSES) for name in ("bytes_sent", "interface_sent")
    )
    return LinearRow(
        **facts,
        **{name: first[name] for name in ("contender", "batch", "loss", "accuracy", "distance")},
        **records.time_fields(seconds),
        steps_per_pass=math.ceil(most_rows / first["batch"]),
        communicating_min=min(communicating),
        communicating_median=communicating_median,
        communication_share=communicating_median / statistics.median(seconds),
        bytes_sent_max=sent or interface,
        interface_bytes_max=interface,
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


def make_memory_row(plan: LinearPlan, found: records.OfRanks) -> LinearMemoryRow:
    """At the rank with the largest ratio; ``found[r]`` is what rank r found."""
    [contender], fullest = plan.contenders, max(found, key=_memory_ratio)
    return LinearMemoryRow(
        **_data_fields(plan, found),
        **{name: fullest[name] for name in ("shard_bytes", "model_bytes", "peak_bytes")},
        contender=contender,
        batch=plan.batch,
        ratio=_memory_ratio(fullest),
    )


def _memory_ratio(of_rank: Mapping[str, Any]) -> float:
    return float(of_rank["peak_bytes"] / (of_rank["shard_bytes"] + of_rank["model_bytes"]))


def _means(of_ranks: records.OfRanks, times: str) -> list[float]:
    """The mean over the ranks, for each pass."""
    return [
        statistics.fmean(of_pass) for of_pass in zip(*(record[times] for record in of_ranks), strict=True)
    ]
