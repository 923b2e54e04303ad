"""From what ranks recorded about training to the numbers of a row."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from sparsewire.bench.harness.records import OfRanks, count_different, largest_mean, slowest_rank
from sparsewire.bench.train.methods import OURS
from sparsewire.bench.train.rank import TrainPlan
from sparsewire.bench.train.tasks import Task

FLOOR = "none"
WARM_UP_STEPS = 10  # in which buckets are rebuilt and thresholds are found
FINAL_STEPS = 20  # whose mean loss is the final one, because the loss of one batch is noisy
CURVE_POINTS = 30


@dataclass(frozen=True)
class TrainRow:
    """Training by one method; docs/benchmarking.md says how each number is derived."""

    task: str
    method: str
    ranks: int
    parameters: int
    batch: int  # examples of a rank and step
    steps: int
    seeds: int
    density: float | None  # this and the next: only of our methods
    warmup_steps: int | None
    network: str | None
    step_seconds_min: float
    step_seconds_median: float
    seconds: list[float]
    samples_per_second: float
    bytes_sent: float | None  # this and the next: of a step, at the rank that sends most
    interface_bytes_sent: float | None
    final_loss: float | None  # the floor's ranks do not train together, and have none
    final_losses: list[float]  # of each seed
    distance_to_float64: float | None
    wrong: int  # ranks that ended with other parameters than rank 0
    curve_steps: list[int]
    curve_seconds: list[float]
    curve_losses: list[float]  # each the mean since the last point, over all ranks and seeds
    ratio_to_floor: float = 1.0
    speedup_vs_dense: float = 1.0
    loss_vs_dense: float | None = None


def make_train_rows(
    plan: TrainPlan, task: Task, found: Sequence[Sequence[OfRanks]], network: str | None
) -> list[TrainRow]:
    """One row per method, fastest first; ``found[s][r]`` is what rank r recorded with seed s.

    Times are those of the first seed.
    """
    by_method: dict[str, list[OfRanks]] = {}
    for of_seed in found:
        for of_ranks in zip(*of_seed, strict=True):
            by_method.setdefault(of_ranks[0]["method"], []).append(of_ranks)
    rows = {method: _row(plan, task, of_seeds, network) for method, of_seeds in by_method.items()}
    floor, dense = rows[FLOOR], rows["dense"]
    assert dense.final_loss is not None
    compared = [
        replace(
            row,
            ratio_to_floor=row.step_seconds_median / floor.step_seconds_median,
            speedup_vs_dense=dense.step_seconds_median / row.step_seconds_median,
            loss_vs_dense=row.final_loss / dense.final_loss if row.final_loss else None,
        )
        for row in rows.values()
    ]
    return sorted(compared, key=lambda row: row.step_seconds_median)


def _row(plan: TrainPlan, task: Task, of_seeds: Sequence[OfRanks], network: str | None) -> TrainRow:
    timed, first = of_seeds[0], of_seeds[0][0]
    method, is_ours = first["method"], first["method"] in OURS
    seconds, warm_up = slowest_rank(timed), max(WARM_UP_STEPS, plan.warmup_steps)
    steady = seconds[warm_up:] or seconds
    median = statistics.median(steady)
    sent, interface = (largest_mean(timed, name, warm_up) for name in ("bytes_sent", "interface_sent"))
    curves = [_means(zip(*(record["losses"] for record in of_ranks), strict=True)) for of_ranks in of_seeds]
    is_floor = method == FLOOR
    final_losses = [] if is_floor else [statistics.fmean(curve[-FINAL_STEPS:]) for curve in curves]
    points = _points(plan.steps)
    passed = [0.0, *accumulate(seconds)]
    return TrainRow(
        task=plan.task,
        method=method,
        ranks=plan.ranks,
        parameters=first["parameters"],
        batch=task.batch,
        steps=plan.steps,
        seeds=len(of_seeds),
        density=plan.density if is_ours else None,
        warmup_steps=plan.warmup_steps if is_ours else None,
        network=network,
        step_seconds_min=min(steady),
        step_seconds_median=median,
        seconds=seconds,
        samples_per_second=plan.ranks * task.batch / median,
        bytes_sent=sent or interface,
        interface_bytes_sent=interface,
        final_loss=None if is_floor else statistics.fmean(final_losses),
        final_losses=final_losses,
        distance_to_float64=None if is_floor else first["distance_to_float64"],
        wrong=0 if is_floor else sum(count_different(of_ranks) for of_ranks in of_seeds),
        curve_steps=points[1:],
        curve_seconds=[passed[point] for point in points[1:]],
        curve_losses=_between(points, _means(zip(*curves, strict=True))),
    )


def _points(steps: int) -> list[int]:
    """Numbers of steps, from 0 to all of them, between which a curve takes its means."""
    count = min(steps, CURVE_POINTS)
    return [steps * point // count for point in range(count + 1)]


def _between(points: Sequence[int], of_steps: Sequence[float]) -> list[float]:
    return [statistics.fmean(of_steps[start:end]) for start, end in pairwise(points)]


def _means(columns: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.fmean(column) for column in columns]
