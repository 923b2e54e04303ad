"""Random block coordinate descent: a step uses few features, and only the rows that have them.

A step draws a block of random coordinates (features) for every rank.  All ranks draw with the same generator,
so they need not send the coordinates.  The blocks are disjoint.

    differentiate  every rank computes the derivatives by the coordinates of all blocks, over its own rows
    sum            each rank receives the sums of the derivatives of its own block (reduce-scatter)
    move           it makes a proximal step for each: a soft threshold for l1, l2 in the denominator
    share          all ranks receive the moves and change coefficients and margins (allgather)

In SparCML a rank moves its block by the derivatives of its own rows, without a sum.  With the sum, this
minimises the objective over the rows of all ranks, for any division of rows; it costs a second collective in
every step.

The length of a step follows from a bound of the curvature.  For tau of F coordinates, drawn uniformly, it is

    bound_j = curvature sum_i s_i beta_i x_ij^2 / sum_i s_i     beta_i = 1 + (omega_i - 1) (tau - 1) / (F - 1)

where row i has omega_i entries.  All coordinates of a step move at once, so in a row that has several of them
each move must be shorter.  With these bounds the expected objective falls in every step, down to the minimum.
The outputs do not depend on each other, so all coefficients of a feature move together.

The intercept is in all rows, so moving it costs as much as moving many features.  It has its own steps, in
number so that they cost no more than those of the features.  If it moved in the same steps as features, all
moves would have to be shorter.

Papers: Richtárik and Takáč, Parallel coordinate descent methods for big data optimization, Math. Program.
2016; Wright, Coordinate descent algorithms, Math. Program. 2015; SparCML runs it on URL with blocks of 100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsewire.communicator import Communicator
from sparsewire.errors import InputError
from sparsewire.linear.batches import Doubles, Rows
from sparsewire.linear.exchange import features_of_all
from sparsewire.linear.problem import Array, Coefficients, Numbers, Problem
from sparsewire.linear.training import Clock, Progress, over_ranks

if TYPE_CHECKING:
    from scipy.sparse import csc_array

__all__ = ["CoordinateDescent"]

ALL = slice(None)


class CoordinateDescent:
    """Minimises a problem pass by pass, beginning at ``start`` or at zero; the module says how.

    A step moves ``block`` coordinates of each rank, and a pass has so many steps that every coordinate moves
    once on average.  ``start`` must be the same on all ranks; the largest of their seeds is used.

    Memory holds the rows a second time, by column, and margins and targets in float64.  Other arrays have one
    number for each feature that occurs on some rank; only these features are drawn.
    """

    def __init__(
        self,
        problem: Problem,
        comm: Communicator | None = None,
        *,
        block: int = 100,
        seed: int = 0,
        start: Coefficients | None = None,
    ) -> None:
        _check(problem, block)
        self._problem, self._comm = problem, comm
        coef, intercept = start or problem.zeros()
        columns = _by_column(problem)
        occurring = features_of_all(np.flatnonzero(np.diff(columns.indptr)), problem.features, comm)
        self._features = np.union1d(occurring, np.flatnonzero(coef.any(axis=1)))
        columns = _only(columns, self._features)
        self._coef, self._intercept = coef[self._features].astype(np.float64), intercept.astype(np.float64)
        self._plan(block, seed, columns)
        self._bounds = self._curvature_bounds(columns)
        self._columns = Rows(columns.T)
        self._targets = problem.targets_of(problem.numbers())
        self._compute_margins()

    def coefficients(self) -> Coefficients:
        coef, intercept = self._problem.zeros()
        coef[self._features], intercept[:] = self._coef, self._intercept
        return coef, intercept

    def epoch(self) -> Progress:
        clock = Clock()
        for remaining in reversed(range(self._steps)):
            self._step(clock)
            if self._problem.fit_intercept and remaining % self._interval == 0:
                self._move_intercept(clock)
        self._compute_margins()  # anew, because rounding errors of all steps add up in them
        return clock.progress(self._objective(clock))

    # -- before the first step -------------------------------------------------------------------

    def _plan(self, block: int, seed: int, columns: csc_array) -> None:
        """Set how many coordinates a step moves, how many steps a pass has, and the sizes over all ranks."""
        self._rank, self._size = (self._comm.rank, self._comm.size) if self._comm else (0, 1)
        count, most = len(self._features), self._size * block
        self._at_once, self._steps = min(most, count), max(1, -(-count // most))
        self._weights = self._problem.weights_of(self._problem.numbers())[:, None]
        share = [columns.shape[0], columns.nnz, self._weights.sum()]
        rows, entries, self._total_weight = over_ranks(self._comm, share)
        if not self._total_weight > 0:
            raise InputError("no rank has a row of positive weight, so there is nothing to learn from")
        # The number of steps after which the intercept moves.
        self._interval = max(1, round(self._steps * rows / max(1, entries)))
        [seed_of_all] = over_ranks(self._comm, [seed], "max")
        self._random = np.random.default_rng(int(seed_of_all))

    def _curvature_bounds(self, columns: csc_array) -> Doubles:
        """The bound of each coordinate over the rows of all ranks; the module has the formula."""
        entries = np.diff(self._problem.rows.indptr)[self._problem.numbers()]
        beta = 1 + (entries - 1) * (self._at_once - 1) / max(1, len(self._features) - 1)
        factors, sums = self._weights[:, 0] * beta, np.zeros(len(self._features))
        for portion in self._portions(np.arange(len(self._features))):
            sums[portion] = columns[:, portion].power(2, np.float64).T @ factors
        if self._comm:
            sums = self._comm.allreduce(sums, in_rank_order=True)
        bounds: Doubles = sums * (self._problem.loss.curvature / self._total_weight)
        return bounds

    def _portions(self, coordinates: Numbers) -> Iterator[Numbers]:
        """The coordinates, as many at a time as in a step, so that they need no more memory than a step."""
        for first in range(0, len(coordinates), max(1, self._at_once)):
            yield coordinates[first : first + self._at_once]

    # -- steps -----------------------------------------------------------------------------------

    def _step(self, clock: Clock) -> None:
        coordinates = self._random.choice(len(self._features), self._at_once, replace=False)
        batch = self._columns.batch(coordinates)
        rows = batch.columns
        own, derivatives = self._sum(coordinates, batch.products(self._slopes(rows)), clock)
        moves = self._share(self._moves(own, derivatives), clock)
        self._coef[coordinates] += moves
        self._margins[rows] += batch.sums(moves)

    def _slopes(self, rows: Array | slice) -> Doubles:
        """The derivatives of the mean loss over the rows of all ranks, by row and output."""
        slopes = self._problem.loss.slope(self._margins[rows], self._targets[rows])
        return slopes * (self._weights[rows] / self._total_weight)

    def _sum(self, coordinates: Numbers, derivatives: Doubles, clock: Clock) -> tuple[Numbers, Doubles]:
        """This rank's block of the coordinates, and its derivatives over the rows of all ranks."""
        if self._comm is None:
            return coordinates, derivatives
        width, outputs = -(-self._at_once // self._size), self._problem.outputs
        blocks = np.zeros((self._size * width, outputs))  # zeros at the end make all blocks equally long
        blocks[: self._at_once] = derivatives
        own = coordinates[self._rank * width : (self._rank + 1) * width]
        total = self._timed(self._comm.reduce_scatter, blocks.reshape(-1), clock)
        return own, total.reshape(-1, outputs)[: len(own)]

    def _moves(self, coordinates: Numbers, derivatives: Doubles) -> Doubles:
        """The move of each coordinate to the minimum of its quadratic bound plus penalties."""
        coef, bounds, l1 = self._coef[coordinates], self._bounds[coordinates, None], self._problem.l1
        pull = bounds * coef - derivatives
        pull -= np.clip(pull, -l1, l1)  # the soft threshold
        curvatures = bounds + self._problem.l2
        # Without curvature no row depends on the coefficient: with l1 it becomes zero, otherwise it stays.
        goals = np.divide(pull, curvatures, out=coef * (l1 == 0), where=curvatures > 0)
        return goals - coef

    def _share(self, moves: Doubles, clock: Clock) -> Doubles:
        """The moves of all ranks, in the order of the coordinates."""
        if self._comm is None:
            return moves
        of_all_ranks = self._timed(self._comm.allgather, moves.reshape(-1), clock)
        return np.concatenate(of_all_ranks).reshape(-1, self._problem.outputs)

    def _move_intercept(self, clock: Clock) -> None:
        slopes = self._slopes(ALL).sum(axis=0)
        derivatives = self._timed(partial(over_ranks, self._comm), slopes, clock)
        move = np.array(derivatives) / -self._problem.loss.curvature
        self._intercept += move
        self._margins += move

    def _compute_margins(self) -> None:
        self._margins = np.tile(self._intercept, (len(self._targets), 1))
        for portion in self._portions(np.flatnonzero(self._coef.any(axis=1))):
            batch = self._columns.batch(portion)
            self._margins[batch.columns] += batch.sums(self._coef[portion])

    def _objective(self, clock: Clock) -> float:
        values = self._problem.loss.value(self._margins, self._targets)
        share = float(np.sum(values * (self._weights / self._total_weight)))
        if self._rank == 0:  # on one rank, because other processors might compute a sum with other bits
            share += self._problem.penalty(self._coef)
        [objective] = self._timed(partial(over_ranks, self._comm), [share], clock)
        return float(objective)

    def _timed(self, collective: Callable[[Any], Any], given: Any, clock: Clock) -> Any:
        with clock.communicating():
            result = collective(given)
        if self._comm and self._comm.last:
            clock.bytes_sent += self._comm.last.bytes_sent
        return result


def _check(problem: Problem, block: int) -> None:
    loss = problem.loss
    if not np.isfinite(loss.curvature):
        raise InputError(
            f"loss {loss.name!r} is not differentiable everywhere, and "
            "coordinate descent needs a loss of bounded curvature: "
            'take loss="squared_hinge", or solver="sgd"'
        )
    if block < 1:
        raise InputError(f"block is {block}; it must be a number of coordinates, at least 1")


def _by_column(problem: Problem) -> csc_array:
    """The matrix of the rows to learn from, by column."""
    rows = problem.rows if problem.members is None else problem.rows[problem.members]
    columns = rows.tocsc()
    columns.sum_duplicates()  # the square of a sum is not the sum of squares, of which bounds are made
    return columns


def _only(columns: csc_array, features: Numbers) -> csc_array:
    """These columns, without a copy; all other columns must be empty."""
    from scipy.sparse import csc_array

    starts = columns.indptr[np.append(features, columns.shape[1])]
    return csc_array((columns.data, columns.indices, starts), shape=(columns.shape[0], len(features)))
