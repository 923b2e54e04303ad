"""The objective over the rows of all ranks, and a bound below which no model can bring it.

With the notation of ``dual_coordinate_ascent``, the bound is D(a') for variables a' that keep the constraint
sum_i s_i a'_i = 0, if there is an intercept.  They are the solver's variables a less a correction c:

    classes     the variables of one sign are scaled down until they weigh as much as those of the other
    regression  the mean of all is subtracted

Both keep every variable within the range of its loss.  The correction moves w(a) by d = sum_i s_i c_i x_i /
(l2 S).  Margins give the product of w and d exactly, and |d| is at most sum_i s_i |c_i| |x_i| / (l2 S):

    |w - d|^2  <=  |w|^2  -  2 sum_i s_i c_i x_i w / (l2 S)  +  (sum_i s_i |c_i| |x_i| / (l2 S))^2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire.communicator import Communicator
from sparsewire.linear.batches import Doubles
from sparsewire.linear.problem import REGRESSION, Problem
from sparsewire.linear.training import over_ranks

__all__ = ["WeighedRows", "sums_over_ranks"]


@dataclass(frozen=True, eq=False)
class WeighedRows:
    """This rank's rows, as the certificate needs them; arrays are by row and output, or have one column."""

    problem: Problem
    comm: Communicator | None
    targets: Doubles
    shares: Doubles  # s_i / S
    norms: Doubles  # |x_i|

    def sums(self, *terms: Doubles) -> list[Doubles]:
        """The sum of each term over the rows of all ranks, with their shares, by output."""
        return sums_over_ranks(self.comm, [(self.shares * term).sum(axis=0) for term in terms])

    def objective_and_bound(
        self, products: Doubles, intercepts: Doubles, variables: Doubles, square: Doubles, drift: Doubles
    ) -> tuple[float, float]:
        """P of the weights and the intercepts, and D of the variables: no model has a smaller P than D.

        ``products`` are those of rows and weights.  ``square`` is this rank's share of |w|^2, by output; w
        differs from w(a) by a vector of length ``drift`` at most.
        """
        loss, l2 = self.problem.loss, self.problem.l2
        correction = self._correction(variables)
        terms = [
            loss.value(products + intercepts, self.targets),
            loss.dual_value(variables - correction, self.targets),
            correction * products,
            np.abs(correction) * self.norms,
        ]
        own = [(self.shares * term).sum(axis=0) for term in terms]
        losses, dual_values, moved, length, square = sums_over_ranks(self.comm, [*own, square])
        objective = np.sum(losses + 0.5 * l2 * square)
        feasible_square = np.maximum(square - 2.0 * moved / l2 + np.square(length / l2), 0.0)
        bound = np.sum(dual_values - 0.5 * l2 * np.square(np.sqrt(feasible_square) + drift))
        return float(objective), float(bound)

    def _correction(self, variables: Doubles) -> Doubles:
        if not self.problem.fit_intercept:
            return np.zeros_like(variables)
        if self.problem.classes == REGRESSION:
            [mean] = self.sums(variables)
            return np.broadcast_to(mean, variables.shape)
        positive, negative = self.sums(np.maximum(variables, 0.0), np.maximum(-variables, 0.0))
        larger = np.maximum(positive, negative)
        surplus = np.divide(np.abs(positive - negative), larger, out=np.zeros_like(larger), where=larger > 0)
        has_surplus = np.where(positive > negative, variables > 0, variables < 0)
        return variables * has_surplus * surplus


def sums_over_ranks(comm: Communicator | None, terms: list[Doubles]) -> list[Doubles]:
    """The sum over ranks of each of these short arrays, by one collective."""
    total = over_ranks(comm, np.concatenate(terms).tolist())
    return list(np.reshape(total, (len(terms), -1)))
