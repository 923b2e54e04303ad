"""Every allreduce there is: the table that tests, documentation, command line and benchmark go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    sparse_ring,
    split_allgather,
)
from sparsewire.cost import Cost, CostFigures, Shape
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector

__all__ = ["ALGORITHMS", "TOPK_ALGORITHMS", "Algorithm", "TopkAlgorithm", "suited"]


@dataclass(frozen=True)
class Algorithm:
    """A row of the table."""

    run: Callable[..., Steps[SparseVector]]  # (rank, size, vector, op=SUM)
    cost: Callable[[CostFigures, Shape], Cost]
    dense: bool = False  # does not look at zeros: a baseline
    supports_precision: bool = False  # takes a ``rounding`` as well: sums are made in one place only
    in_rank_order: bool = False  # adds up in rank order: the same bits as others that do


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
    "omnireduce": Algorithm(omnireduce.omnireduce, omnireduce.cost, in_rank_order=True),
    "sparse_ring": Algorithm(sparse_ring.sparse_ring, sparse_ring.cost),
    "hybrid": Algorithm(hybrid.hybrid, hybrid.cost),
    "dense_ring": Algorithm(dense_ring.dense_ring, dense_ring.cost, dense=True),
    "dense_halving_doubling": Algorithm(
        dense_halving_doubling.dense_halving_doubling, dense_halving_doubling.cost, dense=True
    ),
}


@dataclass(frozen=True)
class TopkAlgorithm:
    """A row of the second table: the largest entries of the sum, and what is left."""

    run: Callable[..., Steps[ok_topk.TopkSum]]  # (rank, size, vector, k, regions=None)
    cost: Callable[[CostFigures, Shape], Cost]  # with k as the shape's nnz


TOPK_ALGORITHMS: dict[str, TopkAlgorithm] = {
    "ok_topk": TopkAlgorithm(ok_topk.ok_topk, ok_topk.cost),
    "gtopk": TopkAlgorithm(gtopk.gtopk, gtopk.cost),
}


def suited(shape: Shape) -> dict[str, Algorithm]:
    """Those that can do what the problem asks for: to round, if it has a precision, and to keep an order."""
    return {
        name: row
        for name, row in ALGORITHMS.items()
        if (row.supports_precision or shape.precision is None)
        and (row.in_rank_order or not shape.in_rank_order)
    }
