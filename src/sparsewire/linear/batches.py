"""Products of some rows at a time with the weights of only those features that the rows have.

A batch of a thousand rows has some ten thousand of a million features.  The weights of these features are
copied into a short array, and the gradient is computed without a vector of a million zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparsewire import kernels
from sparsewire.linear.problem import Array, Numbers

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Batch", "Rows"]

Doubles = npt.NDArray[np.float64]


class Rows:
    """A sparse matrix from which batches are taken; the arrays are the matrix's own."""

    def __init__(self, matrix: csr_array) -> None:
        self.starts: npt.NDArray[np.int64] = np.asarray(matrix.indptr, np.int64)
        self.indices: Array = matrix.indices.view(f"u{matrix.indices.itemsize}")
        self.values: npt.NDArray[Any] = matrix.data
        self.width = int(matrix.shape[1])

    def batch(self, numbers: Numbers) -> Batch:
        """The rows of these numbers."""
        columns, positions = kernels.row_columns(self.starts, self.indices, numbers, self.width)
        return Batch(self, numbers, columns, positions)


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows and the features they have.

    ``columns`` are these features, increasing; ``positions`` has for each entry the place of its feature
    among them.
    """

    rows: Rows
    numbers: Numbers
    columns: Array
    positions: npt.NDArray[np.uint32]

    def products(self, weights: Doubles) -> Doubles:
        """The products of rows and weights, by row and output; ``weights`` are by column and output."""
        outputs = weights.shape[1]
        rows = self.rows
        products = kernels.row_products(
            rows.starts, rows.values, self.numbers, self.positions, weights.reshape(-1), outputs
        )
        return products.reshape(-1, outputs)

    def sums(self, factors: Doubles) -> Doubles:
        """The sums of rows times factors, by column and output; ``factors`` are by row and output."""
        outputs = factors.shape[1]
        rows = self.rows
        sums = kernels.row_sums(
            rows.starts,
            rows.values,
            self.numbers,
            self.positions,
            factors.reshape(-1),
            len(self.columns),
            outputs,
        )
        return sums.reshape(-1, outputs)
