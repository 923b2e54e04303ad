"""The problem that solvers minimise: this rank's rows and targets, a loss and a penalty.

The objective is over the rows i of all ranks, with weights s_i, and the outputs c (one for two classes and
for regression, else one for each class against the rest):

    sum_i s_i sum_c loss(margin_ic, target_ic) / sum_i s_i  +  l2/2 |coef|^2  +  l1 |coef|_1
    margin_ic = rows_i . coef_c + intercept_c

Intercepts are not penalised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.linear.losses import Loss

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["PIECE", "REGRESSION", "Array", "Coefficients", "Numbers", "Problem"]

Array: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = npt.NDArray[np.int64]  # the numbers of rows, from 0
Coefficients: TypeAlias = tuple[Array, Array]  # by feature and output, and the intercepts by output

PIECE = 1 << 16  # weights that are computed together, so that temporary arrays stay in the cache
REGRESSION = 0  # instead of a number of classes


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows and targets, and the objective; ``members`` are the rows to learn from, by default all.

    A target is the number of a row's class; for a regression it is the value itself.
    """

    rows: csr_array
    targets: Array
    loss: Loss
    classes: int = 2
    sample_weight: Array | None = None
    l1: float = 0.0
    l2: float = 0.0
    fit_intercept: bool = True
    members: Numbers | None = None

    @property
    def features(self) -> int:
        return int(self.rows.shape[1])

    @property
    def outputs(self) -> int:
        """The number of weight vectors."""
        return self.classes if self.classes > 2 else 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the coefficients, which is that of the rows."""
        dtype: np.dtype[Any] = np.dtype(self.rows.dtype)
        return dtype

    def zeros(self) -> Coefficients:
        """Coefficients that are all zero."""
        return np.zeros((self.features, self.outputs), self.dtype), np.zeros(self.outputs, self.dtype)

    def numbers(self) -> Numbers:
        """The numbers of the rows to learn from."""
        return np.arange(self.rows.shape[0]) if self.members is None else self.members

    def only(self, members: Numbers) -> Problem:
        """The same problem with other rows to learn from."""
        return replace(self, members=members)

    def targets_of(self, numbers: Numbers) -> npt.NDArray[np.float64]:
        """The targets by row and output: +1 or -1, or the values of a regression."""
        targets = self.targets[numbers]
        if self.classes == REGRESSION:
            return targets.astype(np.float64)[:, None]
        positive = [1] if self.outputs == 1 else range(self.outputs)
        return np.where(targets[:, None] == np.asarray(positive), 1.0, -1.0)

    def weights_of(self, numbers: Numbers) -> npt.NDArray[np.float64]:
        if self.sample_weight is None:
            return np.ones(len(numbers))
        return self.sample_weight[numbers].astype(np.float64)

    def penalty(self, coef: Array) -> float:
        """The penalty of the objective."""
        penalty = 0.0
        for first in range(0, len(coef), PIECE):  # sums of short pieces are accurate enough in float32
            piece = coef[first : first + PIECE]
            if self.l2:
                penalty += 0.5 * self.l2 * float(np.vdot(piece, piece))
            if self.l1:
                penalty += self.l1 * float(np.abs(piece).sum())
        return penalty
