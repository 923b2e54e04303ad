"""The mean of everybody's gradient, made of few of its entries: what a training step does instead of a sum.

    select     the gradient is added to what is left of earlier ones, and the largest entries are taken out
    exchange   they are summed over all ranks, or only the largest of the sums are
    settle     what was not used goes back, to be sent later

Nothing is lost: over all ranks, what was there before, plus the gradients, is what is there after, plus the
mean times the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy.typing as npt

from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS, Regions, TopkSum
from sparsewire.communicator import Communicator
from sparsewire.compress import Compressor, Density, ErrorFeedback, GaussianK, RandomK, State, TopK
from sparsewire.compress.feedback import FeedbackState
from sparsewire.compress.schedule import count_of, density_at
from sparsewire.errors import InputError
from sparsewire.vector import Array, SparseVector

__all__ = ["METHODS", "Method", "Sync", "SyncState"]


class Method(NamedTuple):
    """What is selected, given a density, and the algorithm that sums it, of either table, or "auto"."""

    compressor: Callable[[Density], Compressor[Any]]
    algorithm: str


METHODS: dict[str, Method] = {
    "ok_topk": Method(TopK, "ok_topk"),
    "gtopk": Method(TopK, "gtopk"),
    "topk_allgather": Method(TopK, "allgather_sum"),
    "gaussiank": Method(GaussianK, "allgather_sum"),
    "randomk": Method(RandomK, "auto"),
}


@dataclass(frozen=True, eq=False)
class SyncState(State):
    """One tensor's: the number of the step, what is left of gradients, and regions that may be reused."""

    step: int
    compressor: FeedbackState
    regions: Regions | None = None

    def state_dict(self) -> dict[str, Any]:
        regions = self.regions and [self.regions.age, *self.regions.cuts]
        return super().state_dict() | {"regions": regions}

    def load_state_dict(self, saved: Mapping[str, Any]) -> SyncState:
        loaded = super().load_state_dict({**saved, "regions": None})
        if saved["regions"] is None:
            return loaded
        age, *cuts = (int(number) for number in saved["regions"])
        return replace(loaded, regions=Regions(tuple(cuts), age))


class Sync:
    """Every step's mean gradient over all ranks, with error feedback; ``method`` is a name, or a ``Method``.

    >>> import numpy as np, sparsewire as sw
    >>> sync = sw.Sync(sw.init(), "ok_topk", density=0.5)
    >>> state = sync.init(4)
    >>> mean, state = sync.step(np.array([4, 0, -3, 2], np.float32), state)
    >>> mean.to_dense()
    array([ 4.,  0., -3.,  0.], dtype=float32)
    >>> mean, state = sync.step(np.array([0, 0, 0, 2], np.float32), state)
    >>> mean.to_dense()
    array([0., 0., 0., 4.], dtype=float32)
    """

    def __init__(
        self,
        comm: Communicator,
        method: str | Method = "ok_topk",
        density: Density = 0.01,
        *,
        momentum: float = 0.0,
        check_finite: bool = False,
    ) -> None:
        if isinstance(method, str) and method not in METHODS:
            raise InputError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
        row = METHODS[method] if isinstance(method, str) else method
        if row.algorithm not in ("auto", *ALGORITHMS, *TOPK_ALGORITHMS):
            known = ", ".join(("auto", *ALGORITHMS, *TOPK_ALGORITHMS))
            raise InputError(f"unknown algorithm {row.algorithm!r}; known are {known}")
        self.comm, self.density, self.algorithm = comm, density, row.algorithm
        self.compressor = ErrorFeedback(row.compressor(density), momentum, check_finite)

    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> SyncState:
        """The state before the first step of a tensor; every tensor has its own."""
        return SyncState(0, self.compressor.init(length, dtype))

    def k(self, length: int, state: SyncState) -> int:
        """How many entries the density means in the next step."""
        return count_of(length, density_at(self.density, state.step))

    def step(self, gradient: Array, state: SyncState) -> tuple[SparseVector, SyncState]:
        """The mean, the same bits on every rank, and the next state, which takes over this one's arrays.

        The gradient is not written to.  If the exchange fails, what was selected has gone back.
        """
        try:
            selected, state = self.select(gradient, state)
        except Exception as error:
            self.comm.refuse(error)
        try:
            exchanged = self.exchange(selected, state)
        except BaseException:
            self.compressor.give_back(selected, state.compressor)
            raise
        return self.settle(exchanged, state)

    def select(self, gradient: Array, state: SyncState) -> tuple[SparseVector, SyncState]:
        """The first of a step's three phases: the entries to be sent."""
        selected, compressor = self.compressor.step(gradient, state.compressor)
        return selected, replace(state, compressor=compressor)

    def exchange(self, selected: SparseVector, state: SyncState) -> TopkSum:
        """The second: their sum, and what of them is not in it."""
        comm, length = self.comm, selected.length
        if self.algorithm in TOPK_ALGORITHMS:
            regions = state.regions
            if regions is not None and len(regions.cuts) != comm.size + 1:
                regions = None  # saved by another number of ranks
            k = self.k(length, state)
            return comm.allreduce_topk(selected, k, algorithm=self.algorithm, regions=regions)
        nothing = SparseVector.empty(length, selected.dtype)
        if self.compressor.shared:  # all ranks know the indices
            sums = comm.allreduce(selected.values, algorithm=self.algorithm)
            return TopkSum(selected.with_values(sums), nothing)
        return TopkSum(comm.allreduce(selected, algorithm=self.algorithm), nothing)

    def settle(self, exchanged: TopkSum, state: SyncState) -> tuple[SparseVector, SyncState]:
        """The third: the mean, and a state to which has gone back what was not used."""
        total, left, regions = exchanged
        compressor = self.compressor.give_back(left, state.compressor)
        return total.divided_by(self.comm.size), SyncState(state.step + 1, compressor, regions)
