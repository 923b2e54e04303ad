"""Passes over the data, as many as are of use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from sparsewire.communicator import Communicator
from sparsewire.errors import InputError
from sparsewire.linear.problem import Coefficients, Problem

__all__ = ["Clock", "Progress", "Solver", "Stopping", "mean_loss", "over_ranks", "train"]

ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Progress:
    """A pass: the objective over all ranks' rows, and what it took on this rank."""

    loss: float  # the same on every rank
    seconds: float
    communicating: float  # of these seconds
    bytes_sent: int
    held_out_loss: float | None = None  # of the rows kept for early stopping


class Solver(Protocol):
    """Something that minimises a problem, pass after pass; all ranks call it together."""

    def epoch(self) -> Progress:
        """One pass."""

    def coefficients(self) -> Coefficients:
        """What has been found so far; the next pass may write to these arrays."""


@dataclass(frozen=True)
class Stopping:
    """After ``max_iter`` passes, or ``n_iter_no_change`` in a row of which none gained ``tol``."""

    max_iter: int
    tol: float | None
    n_iter_no_change: int


def train(
    solver: Solver, stopping: Stopping, held_out: Callable[[], float] | None = None
) -> Iterator[Progress]:
    """Passes until it is time to stop, by the loss of the held-out rows if there are any.

    Whether it is, is a function of numbers that all ranks share, so that they stop together.
    """
    best, idle = np.inf, 0
    for _ in range(stopping.max_iter):
        with np.errstate(over="ignore", invalid="ignore"):  # said below, by all ranks
            progress = solver.epoch()
        if not np.isfinite(progress.loss):
            raise InputError(f"the loss became {progress.loss}: steps are too long, give a smaller eta0")
        if held_out is not None:
            progress = replace(progress, held_out_loss=held_out())
        yield progress
        loss = progress.loss if progress.held_out_loss is None else progress.held_out_loss
        idle = idle + 1 if stopping.tol is not None and not loss < best - stopping.tol else 0
        best = min(best, loss)
        if idle == stopping.n_iter_no_change:
            return


def mean_loss(problem: Problem, coefficients: Coefficients, comm: Communicator | None) -> float:
    """Over the problem's rows of all ranks, without penalties."""
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
    """What a pass takes."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._communicating, self.bytes_sent = 0.0, 0

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """For what is done inside."""
        start = time.perf_counter()
        yield
        self._communicating += time.perf_counter() - start

    def progress(self, loss: float) -> Progress:
        return Progress(float(loss), time.perf_counter() - self._start, self._communicating, self.bytes_sent)


def over_ranks(comm: Communicator | None, numbers: Sequence[float], op: str = "sum") -> list[float]:
    """What all ranks' numbers add up to, or their maxima ("max"), the same bits on every rank."""
    if comm is None or not len(numbers):
        return list(numbers)
    total = comm.allreduce(np.array(numbers, np.float64), algorithm="allgather_sum", op=op)
    return [float(number) for number in total]
