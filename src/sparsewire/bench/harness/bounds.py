"""How far a sum of rounded values may be from the exact sum, at each of its non-zeros.

Rounding changes a value by at most 2^-11 (float16) or 2^-8 (bfloat16) of itself, or by 1/s of the largest
value of its vector (QSGD, which has s = 1, 7 or 127 levels).  Every contribution is rounded once, and their
sum at most once more.  Everything else is float32.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.bench.harness.problem import Case, Values, make_input
from sparsewire.coding.values import PRECISIONS

Bound: TypeAlias = npt.NDArray[np.float64]

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
LEVELS = {"qsgd2": 1, "qsgd4": 7, "qsgd8": 127}
FLOAT32_ROUNDOFF = 2.0**-24
OPERATIONS = 10  # in float32 besides additions: to a level and back twice, and casts


class Bounds:
    """The bounds of one case, whose exact sum is given."""

    def __init__(self, case: Case, exact_sum: Values) -> None:
        self._case, self._exact_sum = case, exact_sum

    def of(self, precision: str) -> Bound | None:
        """A bound for each non-zero of the sum; None where nothing is rounded."""
        if precision not in PRECISIONS:
            return None
        once = self._lost_by_contributions(precision)
        twice = once + self._lost_by_sums(precision, self._sum + once)
        operations = self._case.ranks + OPERATIONS
        return twice + operations * FLOAT32_ROUNDOFF * (self._sum + twice)

    def _lost_by_contributions(self, precision: str) -> Bound:
        """Lost by all contributions to an entry; values are positive, so their sum is their magnitude."""
        if precision in UNIT_ROUNDOFF:
            return self._sum * UNIT_ROUNDOFF[precision]
        return self._largest / LEVELS[precision]

    def _lost_by_sums(self, precision: str, sums: Bound) -> Bound:
        if precision in UNIT_ROUNDOFF:
            return sums * UNIT_ROUNDOFF[precision]
        return np.full_like(sums, sums.max() / LEVELS[precision])

    @cached_property
    def _sum(self) -> Bound:
        sums: Bound = self._exact_sum[self._support].astype(np.float64)
        return sums

    @cached_property
    def _largest(self) -> Bound:
        """At each non-zero, the sum of the largest values of all vectors that have an entry there."""
        largest = np.zeros(self._case.length)
        for rank in range(self._case.ranks):
            indices, values = make_input(self._case, rank)
            largest[indices] += float(values.max())
        return largest[self._support]

    @cached_property
    def _support(self) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self._exact_sum)
