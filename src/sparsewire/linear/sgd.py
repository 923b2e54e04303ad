"""Mini-batch stochastic gradient descent; each step sums the gradients of all ranks by a sparse allreduce.

Every rank takes a batch of its own rows, so the batch of a step is P times as large.  Ranks that have used
all their rows before the pass ends continue with empty batches, so that all call the same collectives.  All
ranks make the same steps from the same sums: they exchange only gradients and, once a pass, a few numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sparsewire.communicator import Communicator
from sparsewire.linear.batches import Batch, Doubles, Rows
from sparsewire.linear.exchange import Exchange
from sparsewire.linear.problem import Array, Coefficients, Numbers, Problem
from sparsewire.linear.schedule import Schedule
from sparsewire.linear.training import Clock, Progress, over_ranks
from sparsewire.linear.weights import EVERYWHERE, make_weights
from sparsewire.vector import SparseVector, index_dtype

__all__ = ["SGD", "Options"]

# Enough to find the largest curvature to some per cent; a step could be twice as long without harm.
POWER_ITERATIONS = 20
CURVATURE = 1  # seeds the random numbers that are not those of a pass


@dataclass(frozen=True)
class Options:
    """The options of ``SGD``.

    ``batch_size`` is the largest number of rows of a rank in a step.  ``eta0`` is the length of the first
    step; with None it is the largest that the curvature of a batch allows.
    """

    batch_size: int = 1000
    eta0: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    momentum: float = 0.0
    average: bool = False
    shuffle: bool = True
    seed: int = 0


class SGD:
    """Minimises a problem pass by pass, beginning at ``start`` or at zero; the module says how.

    ``exchange`` sums gradients over the ranks of ``comm``; without both this process is alone.
    """

    def __init__(
        self,
        problem: Problem,
        options: Options,
        comm: Communicator | None = None,
        exchange: Exchange | None = None,
        start: Coefficients | None = None,
    ) -> None:
        self._options = options
        coef, intercept = start or problem.zeros()
        make = partial(make_weights, momentum=options.momentum, average=options.average)
        self._coef = make(coef.reshape(-1), l1=problem.l1, l2=problem.l2)
        self._intercept = make(intercept)
        self._steps = self._epochs = 0
        self.set_problem(problem, comm, exchange)
        self._eta0 = options.eta0 or 1.0 / self._largest_curvature()

    def set_problem(
        self, problem: Problem, comm: Communicator | None = None, exchange: Exchange | None = None
    ) -> None:
        """Continue with other rows."""
        self._problem, self._rows = problem, Rows(problem.rows)
        self._comm, self._exchange = comm, exchange
        [self._most_rows] = over_ranks(self._comm, [len(problem.numbers())], "max")

    def release(self) -> None:
        """Drop the rows and the communicator.  Only ``set_problem`` may be called after this."""
        del self._problem, self._rows, self._comm, self._exchange

    def coefficients(self) -> Coefficients:
        problem = self._problem
        return self._coef.result().reshape(problem.features, problem.outputs), self._intercept.result()

    def epoch(self) -> Progress:
        clock, problem = Clock(), self._problem
        batches = self._batches()
        with clock.communicating():
            weights = over_ranks(self._comm, [problem.weights_of(numbers).sum() for numbers in batches])
        penalty = problem.penalty(self._coef.now())  # before the steps, because losses are taken before steps
        loss = sum(self._step(*step, clock) for step in zip(batches, weights, strict=True)) / sum(weights)
        # Only one rank adds the penalty: other processors might compute it with other bits.
        if self._comm is None or self._comm.rank == 0:
            loss += penalty
        with clock.communicating():
            [loss] = over_ranks(self._comm, [loss])
        self._epochs += 1
        return clock.progress(loss)

    def _batches(self) -> list[Numbers]:
        """The batches of this pass: the same number of batches on every rank, and of nearly equal size.

        A small last batch would have another curvature than the one for which the step length was chosen.
        """
        numbers = self._problem.numbers()
        if self._options.shuffle:
            numbers = self._generator(self._epochs).permutation(numbers)
        return np.array_split(numbers, math.ceil(self._most_rows / self._options.batch_size))

    def _generator(self, *purpose: int) -> np.random.Generator:
        """A generator of random numbers for this rank and purpose."""
        return np.random.default_rng([self._options.seed, self._comm.rank if self._comm else 0, *purpose])

    def _step(self, numbers: Numbers, weight: float, clock: Clock) -> float:
        """Make one step; returns the loss of these rows before it.

        ``weight`` is that of the rows of all ranks in this step.
        """
        problem = self._problem
        batch = self._rows.batch(numbers)
        places = self._places(batch)
        margins = batch.products(self._coef.at(places).reshape(-1, problem.outputs))
        margins += self._intercept.at(EVERYWHERE)
        targets, weights = problem.targets_of(numbers), problem.weights_of(numbers)[:, None]
        loss = float(np.sum(weights * problem.loss.value(margins, targets)))
        # Divided before the sum: with error feedback, parts of this gradient are added in later steps.
        shares = weights / (weight or 1.0)
        gradient = self._gradient(batch, places, shares * problem.loss.slope(margins, targets))
        if self._exchange is not None:
            with clock.communicating():
                gradient, bytes_sent = self._exchange(gradient)
            clock.bytes_sent += bytes_sent
        self._move(gradient)
        return loss

    def _places(self, batch: Batch) -> Array:
        """The places, among all coefficients, of those of the batch's features."""
        outputs = self._problem.outputs
        columns = batch.columns.astype(index_dtype(self._length), copy=False)
        if outputs == 1:
            return columns
        first: Array = columns[:, None] * columns.dtype.type(outputs)
        return (first + np.arange(outputs, dtype=columns.dtype)).reshape(-1)

    @property
    def _length(self) -> int:
        """The length of a gradient, which has the coefficients first and then the intercepts."""
        return (self._problem.features + 1) * self._problem.outputs

    def _gradient(self, batch: Batch, places: Array, slopes: Doubles) -> SparseVector:
        dtype, first_intercept = self._problem.dtype, self._length - self._problem.outputs
        values, indices = batch.sums(slopes).reshape(-1).astype(dtype), places
        if self._problem.fit_intercept:
            intercepts = np.arange(first_intercept, self._length, dtype=places.dtype)
            indices = np.concatenate([indices, intercepts])
            values = np.concatenate([values, slopes.sum(axis=0).astype(dtype)])
        if np.count_nonzero(values) < len(values):
            kept = np.flatnonzero(values)
            indices, values = indices[kept], values[kept]
        return SparseVector.piece(self._length, 0, self._length, indices, values)

    def _move(self, gradient: SparseVector) -> None:
        first_intercept = self._length - self._problem.outputs
        step = self._eta0 * self._options.schedule.factor(self._steps, self._epochs)
        parts = gradient.split_at([0, first_intercept, self._length])
        for weights, part in zip((self._coef, self._intercept), parts, strict=True):
            places = (
                EVERYWHERE if part.indices is None else part.indices - part.indices.dtype.type(part.start)
            )
            weights.step(places, part.values, step)
        self._steps += 1

    def _largest_curvature(self) -> float:
        """The largest curvature of the loss on a batch, by power iteration, over all ranks."""
        problem, generator = self._problem, self._generator(0, CURVATURE)
        numbers = generator.permutation(problem.numbers())[: self._options.batch_size]
        batch, weights = self._rows.batch(numbers), problem.weights_of(numbers)[:, None]
        shares = weights / (weights.sum() or 1.0)
        direction, curvature = generator.normal(size=(len(batch.columns) + 1, 1)), 0.0
        for _ in range(POWER_ITERATIONS):
            direction /= np.linalg.norm(direction)
            slopes = shares * (batch.products(direction[:-1]) + problem.fit_intercept * direction[-1])
            direction = np.concatenate([batch.sums(slopes), problem.fit_intercept * slopes.sum(axis=0)[None]])
            if not (curvature := float(np.linalg.norm(direction))):
                break  # all entries are zero
        [largest] = over_ranks(self._comm, [curvature], "max")
        bend = problem.loss.curvature if np.isfinite(problem.loss.curvature) else 1.0
        return largest * bend or 1.0
