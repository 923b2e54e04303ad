"""Collective algorithms as scripts without I/O: one file each, its cost beside it."""

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.ok_topk import Regions, TopkSum
from sparsewire.algorithms.omnireduce import OmniReduce
from sparsewire.algorithms.table import (
    ALGORITHMS,
    DEFAULT_TOPK,
    TOPK_ALGORITHMS,
    Algorithm,
    TopkAlgorithm,
    aggregation,
    named,
    suited,
)

__all__ = [
    "ALGORITHMS",
    "DEFAULT_TOPK",
    "PLAIN",
    "TOPK_ALGORITHMS",
    "Algorithm",
    "Context",
    "OmniReduce",
    "Regions",
    "TopkAlgorithm",
    "TopkSum",
    "aggregation",
    "named",
    "suited",
]
