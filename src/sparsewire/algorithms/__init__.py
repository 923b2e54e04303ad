"""Collective algorithms as scripts without I/O: one file each, its cost beside it."""

from sparsewire.algorithms.auto import auto, cheapest
from sparsewire.algorithms.table import ALGORITHMS, Algorithm, suited

__all__ = ["ALGORITHMS", "Algorithm", "auto", "cheapest", "suited"]
