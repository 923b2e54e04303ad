"""Passes over the data, until the optimum is near enough or the loss no longer falls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import ROUND_UP, Context
from typing import Protocol

import numpy as np

from sparsewire.communicator import Communicator
from sparsewire.errors import InputError
from sparsewire.linear.problem import Coefficients, Problem

__all__ = [
    "Clock",
    "Progress",
    "Solver",
    "Stopping",
    "mean_loss",
    "over_ranks",
    "train",
    "within_the_optimum",
]

ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Progress:
    """The result of a pass: the objective over the rows of all ranks, and this rank's time and traffic."""

    loss: float  # the same on every rank
    seconds: float
    communicating: float  # the part of these seconds that communication took
    bytes_sent: int
    held_out_loss: float | None = None  # the loss of the rows for early stopping
    gap: float | None = None  # how far above its minimum the objective is at most, as a share of the minimum


class Solver(Protocol):
    """Minimises a problem pass by pass; all ranks call it together."""

    def epoch(self) -> Progress:
        """Do one pass."""

    def coefficients(self) -> Coefficients:
        """The coefficients found so far; the next pass may write to these arrays."""


@dataclass(frozen=True)
class Stopping:
    """Stop after ``max_iter`` passes, or earlier by ``tol``, unless it is None.

    If the solver knows its gap, training stops when it is at most ``tol``.  Otherwise, and for held-out rows,
    it stops when ``n_iter_no_change`` passes in a row lowered the loss by less than ``tol``.
    """

    max_iter: int
    tol: float | None
    n_iter_no_change: int


def train(
    solver: Solver, stopping: Stopping, held_out: Callable[[], float] | None = None
) -> Iterator[Progress]:
    """Do passes until it is time to stop, and yield the progress of each.

    The loss of held-out rows decides, if there are any.  The decision depends only on numbers that are the
    same on all ranks, so they stop together.
    """
    best, without_gain = np.inf, 0
    for _ in range(stopping.max_iter):
        with np.errstate(over="ignore", invalid="ignore"):  # all ranks raise the error below instead
            progress = solver.epoch()
        if not np.isfinite(progress.loss):
            raise InputError(f"the loss became {progress.loss}: steps are too long, give a smaller eta0")
        if held_out is not None:
            progress = replace(progress, held_out_loss=held_out())
        yield progress
        if progress.gap is not None and held_out is None:
            if stopping.tol is not None and progress.gap <= stopping.tol:
                return
            continue
        loss = progress.loss if progress.held_out_loss is None else progress.held_out_loss
        is_gain = stopping.tol is None or loss < best - stopping.tol
        without_gain = 0 if is_gain else without_gain + 1
        best = min(best, loss)
        if without_gain == stopping.n_iter_no_change:
            return


def within_the_optimum(gap: float) -> str:
    """A gap in words.  It is rounded up, so that the words are true.

    >>> within_the_optimum(0.00213)
    'within 0.22% of the optimum'
    """
    digits = Context(prec=2, rounding=ROUND_UP)
    return f"within {digits.create_decimal(100 * gap):f}% of the optimum"


def mean_loss(problem: Problem, coefficients: Coefficients, comm: Communicator | None) -> float:
    """The mean loss over the problem's rows of all ranks, without penalties."""
    coef, intercept = coefficients
    numbers, loss, weight = problem.numbers(), 0.0, 0.0
    for first in range(0, len(numbers), ROWS_AT_A_TIME):
        some = numbers[first : first + ROWS_AT_A_TIME]
        margins = (problem.rows[some] @ coef + intercept).astype(np.float64)
        weights = problem.weights_of(some)
        loss += float(weights @ problem.loss.value(margins, problem.targets_of(some)).sum(axis=1))
        weight += float(weights.sum())
    loss, weight = over_ranks(comm, [loss, weight])
    return loss / weight if weight else 0.0


class Clock:
    """Measures the time and the traffic of a pass."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._communicating, self.bytes_sent = 0.0, 0

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Count the time of this block as communication."""
        start = time.perf_counter()
        yield
        self._communicating += time.perf_counter() - start

    def progress(self, loss: float, gap: float | None = None) -> Progress:
        seconds = time.perf_counter() - self._start
        return Progress(float(loss), seconds, self._communicating, self.bytes_sent, gap=gap)


def over_ranks(comm: Communicator | None, numbers: Sequence[float], op: str = "sum") -> list[float]:
    """The sums of the ranks' numbers, or their maxima ("max"), with the same bits on every rank."""
    if comm is None or not len(numbers):
        return list(numbers)
    total = comm.allreduce(np.array(numbers, np.float64), op=op, nnz=len(numbers), in_rank_order=True)
    return [float(number) for number in total]
