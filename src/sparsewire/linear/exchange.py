"""How the vectors of all ranks are summed: exactly, or only their largest entries; and their features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsewire.algorithms import OmniReduce
from sparsewire.coding.values import Precision
from sparsewire.communicator import Communicator
from sparsewire.compress import BlockTopK, Density, TopK
from sparsewire.errors import InputError
from sparsewire.linear.problem import Array, Numbers
from sparsewire.sync import METHODS, Method, Sync, SyncState
from sparsewire.vector import SparseVector, index_dtype

__all__ = ["EXACT", "LOSSY", "Exact", "Exchange", "Lossy", "features_of_all"]

EXACT = "exact"
LOSSY = {"topk": Method(TopK, "auto"), "block_topk": Method(BlockTopK, "auto"), **METHODS}

# Takes this rank's gradient; returns the sum over all ranks, with the same bits on each, sparse or dense, and
# the bytes that this rank sent.
Exchange = Callable[[SparseVector], tuple[SparseVector, int]]


class Exact:
    """The whole sum, by any algorithm of ``Communicator.allreduce``."""

    def __init__(
        self,
        comm: Communicator,
        algorithm: str | OmniReduce = "auto",
        precision: str | Precision | None = None,
    ) -> None:
        self._comm, self._algorithm, self._precision = comm, algorithm, precision

    def __call__(self, gradient: SparseVector) -> tuple[SparseVector, int]:
        # In rank order, so that the bits of a model do not depend on the algorithm that "auto" chooses.
        total: SparseVector = self._comm.allreduce(
            gradient,
            algorithm=self._algorithm,
            precision=self._precision,
            name="sparsewire.linear",
            in_rank_order=True,
        )
        return total, _bytes_sent(self._comm)


class Lossy:
    """The largest entries of each rank's gradient, or of the sum; error feedback adds the others later.

    Unlike the exact sum, a step takes time for every weight, also where the gradient is zero.
    """

    def __init__(
        self,
        comm: Communicator,
        method: str,
        density: Density,
        precision: str | Precision | None = None,
    ) -> None:
        if method not in LOSSY:
            raise InputError(f"unknown method {method!r}; known are {', '.join((EXACT, *LOSSY))}")
        self._sync = Sync(comm, LOSSY[method], density, precision=precision)
        self._state: SyncState | None = None

    def __call__(self, gradient: SparseVector) -> tuple[SparseVector, int]:
        state = self._state or self._sync.init(gradient.length, gradient.dtype)
        mean, self._state = self._sync.step(gradient.to_dense(), state)
        comm = self._sync.comm
        return mean.with_values(mean.values * mean.dtype.type(comm.size)), _bytes_sent(comm)


def _bytes_sent(comm: Communicator) -> int:
    """The bytes that this rank sent in the last call."""
    return comm.last.bytes_sent if comm.last else 0


def features_of_all(own: Array, length: int, comm: Communicator | None) -> Numbers:
    """The features that occur on some rank, increasing; ``own`` are this rank's, of ``length`` in all."""
    if comm is None:
        return own.astype(np.int64)
    marks = SparseVector.piece(
        length, 0, length, own.astype(index_dtype(length)), np.ones(len(own), np.int32)
    )
    marked = comm.allreduce(marks, op="max").as_sparse()
    features: Numbers = marked.indices.astype(np.int64)
    return features
