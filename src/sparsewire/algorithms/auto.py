"""The cheapest exact algorithm for this call.

All ranks must choose alike, so they choose from facts that all hold: one small round in which each tells
its number of entries, and the costs that the table predicts from the largest.
"""

from __future__ import annotations

import numpy as np

from sparsewire.algorithms._patterns import allgather
from sparsewire.algorithms.table import ALGORITHMS
from sparsewire.model import Network, Shape
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector

__all__ = ["auto", "cheapest"]

# Merging an entry takes a few nanoseconds and starting a message some tens of microseconds in Python.
ORDINARY = Network(latency=50e-6, bandwidth=125e6, overhead=30e-6, seconds_per_entry=5e-9)


def cheapest(network: Network, shape: Shape) -> str:
    """The name of the exact algorithm with the lowest predicted time."""
    exact = [name for name, algorithm in ALGORITHMS.items() if algorithm.exact]
    return min(exact, key=lambda name: ALGORITHMS[name].cost(network, shape).seconds)


def auto(rank: int, size: int, vec: SparseVector) -> Steps[tuple[str, SparseVector]]:
    """The sum, and the name of the algorithm that made it."""
    mine = SparseVector.from_dense(np.array([vec.nnz], np.int64))
    counts = yield from allgather(rank, size, mine)
    nnz = max(int(count.values[0]) for count in counts)
    name = cheapest(ORDINARY, Shape(size, vec.length, nnz, vec.dtype.itemsize))
    return name, (yield from ALGORITHMS[name].run(rank, size, vec))
