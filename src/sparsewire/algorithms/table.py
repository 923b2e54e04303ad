"""Every allreduce there is: the table that tests, documentation, command line and benchmark go through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from sparsewire.algorithms import (
    allgather_sum,
    balanced,
    dense_halving_doubling,
    dense_ring,
    gtopk,
    hybrid,
    ok_topk,
    omnireduce,
    recursive_doubling,
    spardl,
    sparse_ring,
    split_allgather,
)
from sparsewire.algorithms.context import Run
from sparsewire.cost import Cost, CostFigures, Shape
from sparsewire.reduction import Reduction
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector

__all__ = [
    "ALGORITHMS",
    "DEFAULT_TOPK",
    "TOPK_ALGORITHMS",
    "Algorithm",
    "TopkAlgorithm",
    "aggregation",
    "named",
    "suited",
]

CostFunction: TypeAlias = Callable[[CostFigures, Shape], Cost]
# (rank, size, servers, op, dtype, length): the part of a rank that only aggregates.
Aggregation: TypeAlias = Callable[[int, int, Sequence[int], Reduction, np.dtype[Any], int], Steps[None]]


class Options(Protocol):
    """The options that an algorithm has of its own."""

    @property
    def detail(self) -> int:
        """A number that travels with the call, so that ranks notice if theirs differ; 0 if there is none."""
        ...

    @classmethod
    def for_input(cls, vec: SparseVector, row: int) -> Options:
        """Those of a caller who gives none, for a vector with rows of so many values (0: it has no rows)."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """A row of the table: all that other rooms know about an algorithm."""

    run: Run
    cost: CostFunction
    takes: Literal["smaller", "dense", "as_given"] = "smaller"  # the form of the vector that it is given
    supports_precision: bool = False  # makes each sum in one place, and can round it there
    in_rank_order: bool = False  # adds up in rank order: the same bits as all others that do
    options: type[Options] | None = None
    tune: Callable[[CostFigures, Shape], Options] | None = None  # the options of the lowest predicted time
    aggregate: Aggregation | None = None  # if there may be ranks that only aggregate

    @property
    def dense(self) -> bool:
        """Whether it sends zeros like any other value: a baseline."""
        return self.takes == "dense"

    @property
    def keeps_input_form(self) -> bool:
        """Whether a vector is handed to it as the caller stored it."""
        return self.takes != "smaller"


# In order of preference: where the predicted costs are equal, `auto` takes the first.
ALGORITHMS: dict[str, Algorithm] = {
    "recursive_doubling": Algorithm(recursive_doubling.recursive_doubling, recursive_doubling.cost),
    "allgather_sum": Algorithm(
        allgather_sum.allgather_sum, allgather_sum.cost, supports_precision=True, in_rank_order=True
    ),
    "split_allgather": Algorithm(
        split_allgather.split_allgather, split_allgather.cost, supports_precision=True, in_rank_order=True
    ),
    "balanced": Algorithm(balanced.balanced, balanced.cost, supports_precision=True, in_rank_order=True),
    "omnireduce": Algorithm(
        omnireduce.omnireduce,
        omnireduce.cost,
        takes="as_given",
        in_rank_order=True,
        options=omnireduce.OmniReduce,
        tune=omnireduce.tune,
        aggregate=omnireduce.aggregate,
    ),
    "sparse_ring": Algorithm(sparse_ring.sparse_ring, sparse_ring.cost),
    "hybrid": Algorithm(hybrid.hybrid, hybrid.cost),
    "dense_ring": Algorithm(dense_ring.dense_ring, dense_ring.cost, takes="dense"),
    "dense_halving_doubling": Algorithm(
        dense_halving_doubling.dense_halving_doubling, dense_halving_doubling.cost, takes="dense"
    ),
}


@dataclass(frozen=True)
class TopkAlgorithm:
    """A row of the second table: the largest entries of the sum, and what is left."""

    run: Callable[..., Steps[ok_topk.TopkSum]]  # (rank, size, vector, k, regions=None, context=PLAIN)
    cost: CostFunction  # with k as the shape's nnz


TOPK_ALGORITHMS: dict[str, TopkAlgorithm] = {
    "ok_topk": TopkAlgorithm(ok_topk.ok_topk, ok_topk.cost),
    "gtopk": TopkAlgorithm(gtopk.gtopk, gtopk.cost),
    "spardl": TopkAlgorithm(spardl.spardl, spardl.cost),
}

DEFAULT_TOPK = "ok_topk"


def suited(shape: Shape) -> dict[str, Algorithm]:
    """The algorithms that can round, or add up in rank order, where the problem asks for it."""
    return {
        name: row
        for name, row in ALGORITHMS.items()
        if (row.supports_precision or shape.precision is None)
        and (row.in_rank_order or not shape.in_rank_order)
    }


def named(algorithm: Any) -> tuple[Any, Options | None]:
    """The name and the options that a caller gives as ``algorithm``: a name, or the options of a row.

    >>> named("hybrid"), named(omnireduce.OmniReduce())[0]
    (('hybrid', None), 'omnireduce')
    """
    if not isinstance(algorithm, str):
        for name, row in ALGORITHMS.items():
            if row.options is not None and isinstance(algorithm, row.options):
                return name, algorithm
    return algorithm, None


def aggregation(algorithm: str) -> Aggregation | None:
    """The script of a rank that only aggregates, in a call of this algorithm or "auto", if there is one."""
    rows = ALGORITHMS.values() if algorithm == "auto" else filter(None, [ALGORITHMS.get(algorithm)])
    return next((row.aggregate for row in rows if row.aggregate is not None), None)
