"""What a script is told about a call beside the vector; most calls need none of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from sparsewire.coding.rounding import EXACT, Rounding
from sparsewire.cost import CostFigures, Shape
from sparsewire.reduction import SUM, Reduction
from sparsewire.steps import Steps
from sparsewire.vector import Array, SparseVector

__all__ = ["PLAIN", "Context", "Run"]


class Context(NamedTuple):
    """How a call is to be done.  All ranks have the same, except for ``rounding`` and ``out``."""

    op: Reduction = SUM
    rounding: Rounding = EXACT  # of the algorithms that support a precision
    servers: Sequence[int] | None = None  # the ranks that only aggregate, if there are any
    out: Array | None = None  # an algorithm may write a dense result here; the vector may be stored here too
    options: Any = None  # of the algorithm's own kind; None: its defaults
    figures: CostFigures = CostFigures()
    shape: Shape | None = None  # the problem, as far as the ranks have agreed on it

    def shape_of(self, size: int, vec: SparseVector) -> Shape:
        """The problem as all ranks know it: if they have agreed on nothing, the vectors may be full."""
        return self.shape or Shape(size, vec.length, vec.length, vec.dtype.itemsize)


PLAIN = Context()  # an exact sum


class Run(Protocol):
    """A script: one rank's part of an allreduce of ``size`` ranks, which returns the result."""

    def __call__(
        self, rank: int, size: int, vec: SparseVector, context: Context = PLAIN
    ) -> Steps[SparseVector]: ...
