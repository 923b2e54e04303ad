"""The cheapest exact algorithm for this call.

All ranks must choose alike, so they choose from facts that all hold: one small round in which each tells
how many entries it has and how evenly they lie, and the costs that the table predicts from the largest.
"""

from __future__ import annotations

import functools

from sparsewire.algorithms.largest import largest
from sparsewire.algorithms.omnireduce import BLOCK, OmniReduce, best_block
from sparsewire.algorithms.table import ALGORITHMS, suited
from sparsewire.cost import CostFigures, Shape
from sparsewire.reduction import SUM, Reduction
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector

__all__ = ["auto", "cheapest", "fullness"]

TIE = 1.05  # predictions that differ by less are equal: they are not better than that
# Merging an entry takes a few nanoseconds and starting a message some tens of microseconds in Python.
ORDINARY = CostFigures(latency=50e-6, bandwidth=125e6, overhead=30e-6, seconds_per_entry=5e-9)


@functools.lru_cache(maxsize=4096)
def cheapest(network: CostFigures, shape: Shape) -> str:
    """The name of the algorithm with the lowest predicted time.

    Of those that are as good as equal the first dense one of the table is taken, because whatever is chosen
    is held against the dense baseline, and else the first of the table.
    """
    able = suited(shape)
    seconds = {name: algorithm.cost(network, shape).seconds for name, algorithm in able.items()}
    equal = [name for name in able if seconds[name] <= TIE * min(seconds.values())]
    return next((name for name in equal if able[name].dense), equal[0])


def fullness(vec: SparseVector, size: int) -> tuple[int, int, int]:
    """How many entries there are, how many in the fullest of ``size`` even ranges, and in how many blocks."""
    return vec.nnz, max(piece.nnz for piece in vec.split_evenly(size)), vec.count_blocks(BLOCK)


def auto(
    rank: int, size: int, vec: SparseVector, op: Reduction = SUM, network: CostFigures = ORDINARY
) -> Steps[tuple[str, SparseVector]]:
    """The sum, and the name of the algorithm that made it."""
    nnz, fullest, blocks = yield from largest(rank, size, fullness(vec, size))
    skew = max(1.0, fullest * size / nnz) if nnz else 1.0
    price, value_bytes = network.index_price, vec.dtype.itemsize
    shape = Shape(size, vec.length, int(nnz), value_bytes, skew=skew, index_price=price, blocks=int(blocks))
    name = cheapest(network, shape)
    run = ALGORITHMS[name].run
    if name == "omnireduce":
        run = functools.partial(run, options=OmniReduce(best_block(network, shape)))
    return name, (yield from run(rank, size, vec, op))
