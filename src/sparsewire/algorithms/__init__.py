"""Collective algorithms as scripts without I/O: one file each, its cost beside it."""

from sparsewire.algorithms.ok_topk import Regions, TopkSum
from sparsewire.algorithms.omnireduce import OmniReduce
from sparsewire.algorithms.table import ALGORITHMS, TOPK_ALGORITHMS, Algorithm, TopkAlgorithm, suited

__all__ = [
    "ALGORITHMS",
    "TOPK_ALGORITHMS",
    "Algorithm",
    "OmniReduce",
    "Regions",
    "TopkAlgorithm",
    "TopkSum",
    "suited",
]
