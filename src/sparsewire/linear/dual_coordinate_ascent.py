"""Dual coordinate ascent: no step length to choose, and a proof of how far the optimum can be.

The problem (see ``problem``) has a dual, with a variable a_i for each row and output:

    primal   P(w, b) = sum_i s_i loss(x_i w + b, t_i) / S  +  l2/2 |w|^2        S = sum_i s_i
    dual     D(a) = sum_i s_i -loss*(-a_i) / S  -  l2/2 |w(a)|^2          w(a) = sum_i s_i a_i x_i / (l2 S)
             with sum_i s_i a_i = 0 if there is an intercept b

A pass (SDCA) visits the rows in random order and maximises D over the variable of one row at a time, which is
a problem in one dimension.  D of any variables is at most P of any weights, so P - D bounds how far P is from
the minimum.  This is the gap.

    ascend    every rank visits its own rows, and changes a copy of the weights; its changes count sigma times
    sum       w moves by the sparse sum over ranks of their changes, so all ranks have the same bits (CoCoA+)
    damp      the step is shortened if it was too bold
    certify   margins of all rows give P, D and the gap

The changes d_r of ranks agree in part, so a rank must expect the others to do some of its work: that is what
sigma is for.  P ranks with sigma = P always make D grow.  Less is better if it suffices, and for one step
that is seen afterwards: sigma suffices if rho = |sum_r d_r|^2 / sum_r |d_r|^2 is at most sigma.  Otherwise
sigma / rho of the step makes D grow, because D is concave.  The next pass takes the rho of this one as sigma.

The intercept has no penalty, and its constraint in the dual ties all rows together.  So a pass penalises how
far the intercept moves from where it was, by the method of multipliers: it is the weight of one more column,
which is short.  After the pass the intercept moves to the best place for the new weights.  ``duality_gap``
says how the bound comes to hold although the variables keep the constraint only in the end.

Papers: Shalev-Shwartz and Zhang, Stochastic dual coordinate ascent methods, JMLR 2013; Ma et al., Adding vs.
averaging in distributed primal-dual optimization, ICML 2015; Hsieh et al., A dual coordinate descent method
for large-scale linear SVM, ICML 2008.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsewire import kernels
from sparsewire.communicator import Communicator
from sparsewire.errors import InputError
from sparsewire.linear.batches import Doubles, Rows
from sparsewire.linear.duality_gap import WeighedRows, sums_over_ranks
from sparsewire.linear.exchange import Exact, features_of_all
from sparsewire.linear.intercepts import zero_of_increasing
from sparsewire.linear.problem import Array, Coefficients, Numbers, Problem
from sparsewire.linear.training import Clock, Progress, over_ranks
from sparsewire.vector import SparseVector, index_dtype

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["DualCoordinateAscent"]

# The intercept's column is this much shorter than a row: then it hardly slows down the steps of the rows.
BIAS = 0.03
NEAR = 1e-6  # the shortest first step of the search for an intercept
ROUNDING = 1e-10  # a gap of this share of the loss without a model is due to rounding
ROWS_AT_A_TIME = 512  # so that copies of their entries stay in the cache


class DualCoordinateAscent:
    """Minimises a problem pass by pass, beginning at ``start`` or at zero; the module says how.

    A start gives the first variables: those that are optimal for its margins.

    Memory holds the place of each entry's weights, in 4 bytes, and some float64 for each row and output, and
    for each output of a feature that occurs on some rank.
    """

    def __init__(
        self,
        problem: Problem,
        comm: Communicator | None = None,
        *,
        algorithm: str = "auto",
        seed: int = 0,
        start: Coefficients | None = None,
    ) -> None:
        _check(problem)
        self._rank, self._size = (comm.rank, comm.size) if comm else (0, 1)
        self._comm = comm if self._size > 1 else None  # alone, there is nothing to sum
        self._exchange = Exact(self._comm, algorithm) if self._comm else None
        self._problem, self._seed, self._epochs = problem, seed, 0
        self._take_rows(_without_duplicates(problem))
        self._bound, self._drift = -np.inf, np.zeros(problem.outputs)
        self._sigma = np.full(problem.outputs, float(self._size))
        self._begin(start)

    def coefficients(self) -> Coefficients:
        coef, intercept = self._problem.zeros()
        coef[self._features], intercept[:] = self._weights, self._intercepts
        return coef, intercept

    def epoch(self) -> Progress:
        clock = Clock()
        self._ascend(clock)
        products = self._products()
        self._improve_intercepts(products)
        self._epochs += 1
        return clock.progress(*self._certified(products))

    # -- before the first pass -------------------------------------------------------------------

    def _take_rows(self, matrix: csr_array) -> None:
        """Number the features that occur on some rank, and weigh the rows."""
        problem, comm = self._problem, self._comm
        self._rows, self._numbers = Rows(matrix), np.arange(matrix.shape[0])
        batch = self._rows.batch(self._numbers)
        self._features = features_of_all(batch.columns, problem.features, comm)
        self._positions = batch.positions
        if comm:  # other ranks may have features that this one has not
            self._own = np.searchsorted(self._features, batch.columns)
            self._positions = self._own.astype(np.uint32)[batch.positions]
            self._indices = self._indices_of(np.append(self._own, len(self._features)))
        squares, weights = self._squared_norms(), problem.weights_of(problem.numbers())
        total, mean_square = over_ranks(comm, [float(weights.sum()), float(weights @ squares)])
        if not total > 0:
            raise InputError("no rank has a row of positive weight, so there is nothing to learn from")
        if not np.isfinite(mean_square):
            raise InputError("there are entries whose squares are too large for float64: scale the features")
        self._squares, shares = squares, weights / total
        self._bias = (BIAS * mean_square / total or problem.l2) if problem.fit_intercept else 0.0
        targets = problem.targets_of(problem.numbers())
        self._weighed = WeighedRows(problem, comm, targets, shares[:, None], np.sqrt(squares)[:, None])

    @property
    def _length(self) -> int:
        """The length of a change, which has the weights first and then the intercepts."""
        return (len(self._features) + 1) * self._problem.outputs

    def _indices_of(self, places: Numbers) -> Array:
        """The indices, in a change, of all outputs of the features at these places."""
        outputs = self._problem.outputs
        indices: Array = places[:, None] * outputs + np.arange(outputs)
        return indices.reshape(-1).astype(index_dtype(self._length))

    def _squared_norms(self) -> Doubles:
        """The squared norm of each row: the product of the row and itself."""
        starts, values = self._rows.starts, self._rows.values
        squares = np.zeros(len(self._numbers))
        for first in range(0, len(squares), ROWS_AT_A_TIME):
            some = self._numbers[first : first + ROWS_AT_A_TIME]
            entries = values[starts[first] : starts[some[-1] + 1]].astype(np.float64)
            own = np.arange(len(entries), dtype=np.uint32)
            squares[some] = kernels.row_products(starts, values, some, own, entries)
        return squares

    def _begin(self, start: Coefficients | None) -> None:
        problem, targets = self._problem, self._weighed.targets
        self._variables = np.zeros_like(targets)
        self._weights = np.zeros((len(self._features), problem.outputs))
        self._intercepts: Doubles = np.zeros(problem.outputs)
        [losses] = self._weighed.sums(problem.loss.value(self._variables, targets))
        self._loss_of_zero = float(np.sum(losses))
        if start is not None:
            self._weights[:], self._intercepts[:] = start[0][self._features], start[1]
            margins = self._products() + self._intercepts
            self._variables = -problem.loss.slope(margins, targets) * (self._weighed.shares > 0)
            self._weights = self._weights_of_variables()
        self._reach: Doubles = np.ones(problem.outputs)
        self._improve_intercepts(self._products())

    def _weights_of_variables(self) -> Doubles:
        """w(a), over the rows of all ranks."""
        rows, outputs = self._rows, self._problem.outputs
        factors = (self._variables * self._weighed.shares / self._problem.l2).reshape(-1)
        own = kernels.row_sums(
            rows.starts, rows.values, self._numbers, self._positions, factors, len(self._features), outputs
        )
        total: Doubles = self._comm.allreduce(own, in_rank_order=True) if self._comm else own
        return total.reshape(-1, outputs)

    # -- a pass ----------------------------------------------------------------------------------

    def _ascend(self, clock: Clock) -> None:
        weights, variables = self._weights, self._variables
        if self._comm:  # these must stay as they are until the sum
            weights, variables = weights.copy(), variables.copy()
        [imbalance] = self._weighed.sums(variables)  # how far they are from keeping the constraint
        start = self._intercepts + imbalance * (self._bias / self._problem.l2)
        intercepts = start.copy()
        kernels.dual_ascent(
            self._rows.starts,
            self._rows.values,
            np.random.default_rng([self._seed, self._rank, self._epochs]).permutation(self._numbers),
            self._positions,
            self._problem.loss.name,
            shares=self._weighed.shares[:, 0] / self._problem.l2,
            squares=self._squares,
            targets=self._weighed.targets.reshape(-1),
            sigma=self._sigma,
            bias=self._bias,
            variables=variables.reshape(-1),
            weights=weights.reshape(-1),
            intercepts=intercepts,
        )
        if self._comm:
            self._sum(weights, intercepts - start, variables, clock)

    def _sum(self, weights: Doubles, move: Doubles, variables: Doubles, clock: Clock) -> None:
        """Go as far as all ranks together, damped; this rank has got to these weights and variables.

        ``move`` is that of the intercepts.
        """
        own = np.vstack([weights[self._own] - self._weights[self._own], move]) / self._sigma
        own = own.astype(self._problem.dtype)
        with clock.communicating():
            total = self._exchanged(own, clock)
        # On one rank, because other processors might compute a sum with other bits.
        of_total = self._squared_length(total) * (self._rank == 0)
        apart, together = sums_over_ranks(self._comm, [self._squared_length(own), of_total])
        rho = np.divide(together, apart, out=np.ones_like(apart), where=apart > 0)
        damping = np.minimum(1.0, self._sigma / np.maximum(rho, 1.0))
        self._weights += damping * total[:-1]
        self._variables += damping * (variables - self._variables)
        self._sigma = np.clip(rho, 1.0, self._size)
        # Changes are rounded before and in the sum, where each of P numbers is rounded P times at most.
        self._drift += np.finfo(own.dtype).eps * self._size * np.sqrt(self._size * apart)

    def _exchanged(self, own: Array, clock: Clock) -> Array:
        """The sum of changes over all ranks, by feature and output, with the intercepts last."""
        assert self._exchange is not None
        indices, values = self._indices, own.reshape(-1)
        if np.count_nonzero(values) < len(values):
            kept = np.flatnonzero(values)
            indices, values = indices[kept], values[kept]
        change = SparseVector.piece(self._length, 0, self._length, indices, values)
        total, bytes_sent = self._exchange(change)
        clock.bytes_sent += bytes_sent
        return total.to_dense().reshape(-1, self._problem.outputs)

    def _squared_length(self, change: Array) -> Doubles:
        """By output, of weights and intercepts together, which are weights of a column of its own length."""
        square = _squares(change[:-1])
        return square + np.square(change[-1], dtype=np.float64) / self._bias if self._bias else square

    def _improve_intercepts(self, products: Doubles) -> None:
        """Take the best intercepts for the weights as they are."""
        if not self._problem.fit_intercept:
            return
        loss, weighed, before = self._problem.loss, self._weighed, self._intercepts

        def slope(intercepts: Doubles) -> Doubles:
            [slopes] = weighed.sums(loss.slope(products + intercepts, weighed.targets))
            return slopes

        self._intercepts = zero_of_increasing(slope, before, self._reach)
        self._reach = np.abs(self._intercepts - before) + NEAR

    def _products(self) -> Doubles:
        rows, outputs = self._rows, self._problem.outputs
        products = kernels.row_products(
            rows.starts, rows.values, self._numbers, self._positions, self._weights.reshape(-1), outputs
        )
        return products.reshape(-1, outputs)

    def _certified(self, products: Doubles) -> tuple[float, float]:
        """The objective, and how far above the minimum it can be, as a share of the minimum."""
        square = _squares(self._weights) * (self._rank == 0)  # on one rank, as above
        objective, bound = self._weighed.objective_and_bound(
            products, self._intercepts, self._variables, square, self._drift
        )
        self._bound = max(self._bound, bound)
        least = max(self._bound, ROUNDING * self._loss_of_zero)
        return objective, max(0.0, objective - self._bound) / least if least else 0.0


def _check(problem: Problem) -> None:
    if problem.l1 or not problem.l2:
        penalty = "an L1 penalty" if problem.l1 else "no L2 penalty"
        raise InputError(
            f"dual coordinate ascent needs an L2 penalty alone, and the problem has {penalty}: "
            'take penalty="l2" with a positive alpha, or solver="cd", or solver="sgd"'
        )


def _without_duplicates(problem: Problem) -> csr_array:
    """The rows to learn from, with one entry for each feature, so that squares of entries give norms."""
    rows = problem.rows if problem.members is None else problem.rows[problem.members]
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def _squares(weights: Array) -> Doubles:
    """The sum of squares by output."""
    squares: Doubles = np.einsum("fc,fc->c", weights, weights, dtype=np.float64)
    return squares
