"""The mean of everybody's gradient, made of few of its entries: what a training step does instead of a sum.

    select     the gradient is added to the residual of earlier ones, and the largest entries are taken out
    exchange   they are summed over all ranks; some algorithms keep only the largest sums
    settle     what was not used is added to the residual, to be sent later

Nothing is lost.  Over all ranks, residuals before + gradients = residuals after + mean * number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS, Regions, TopkSum
from sparsewire.coding.values import Precision
from sparsewire.communicator import Communicator
from sparsewire.communicator.request import Request
from sparsewire.compress import Compressor, Density, ErrorFeedback, GaussianK, RandomK, State, TopK
from sparsewire.compress.feedback import FeedbackState
from sparsewire.compress.schedule import count_of, density_at
from sparsewire.compress.source import Gradient
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector

__all__ = ["METHODS", "Method", "Sync", "SyncState"]

S = TypeVar("S", bound=State)


class Method(NamedTuple):
    """A compressor for a density, and the algorithm that sums what it selects.

    The algorithm is a name from ``ALGORITHMS`` or ``TOPK_ALGORITHMS``, or the fastest of one of them: "auto"
    or "auto_topk".
    """

    compressor: Callable[[Density], Compressor[Any]]
    algorithm: str


# What ``Communicator.allreduce_topk`` calls these algorithms.
TOPK = {**{name: name for name in TOPK_ALGORITHMS}, "auto_topk": "auto"}

METHODS: dict[str, Method] = {
    "ok_topk": Method(TopK, "ok_topk"),
    "gtopk": Method(TopK, "gtopk"),
    "spardl": Method(TopK, "spardl"),
    "auto_topk": Method(TopK, "auto_topk"),
    "topk_allgather": Method(TopK, "allgather_sum"),
    "gaussiank": Method(GaussianK, "allgather_sum"),
    "randomk": Method(RandomK, "auto"),
}


@dataclass(frozen=True, eq=False)
class SyncState(State):
    """The state of one tensor: the number of the step, the residual, and regions that may be reused."""

    step: int
    compressor: FeedbackState
    regions: Regions | None = None

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"regions": self.regions and self.regions.to_numbers()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> SyncState:
        is_complete = isinstance(saved, Mapping) and "regions" in saved
        loaded = super().load_state_dict({**saved, "regions": None} if is_complete else saved)
        if saved["regions"] is None:
            return loaded
        return replace(loaded, regions=Regions.from_numbers(saved["regions"]))


def _at_step(state: S, step: int) -> S:
    """The state, and those in it, with another number of the step."""
    contents = {field.name: getattr(state, field.name) for field in fields(state)}
    inner = {name: _at_step(one, step) for name, one in contents.items() if isinstance(one, State)}
    return replace(state, **inner, **({"step": step} if "step" in contents else {}))


class Sync:
    """Every step's mean gradient over all ranks, with error feedback; ``method`` is a name, or a ``Method``.

    ``precision`` sends the values in fewer bits; rounding errors stay in the residual.  ``feedback`` makes
    the error feedback, for gradients that are not numpy arrays.

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
        precision: str | Precision | None = None,
        feedback: Callable[[Compressor[Any], float, bool], ErrorFeedback] = ErrorFeedback,
    ) -> None:
        if isinstance(method, str) and method not in METHODS:
            raise InputError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
        row = METHODS[method] if isinstance(method, str) else method
        if row.algorithm not in ("auto", *ALGORITHMS, *TOPK):
            known = ", ".join(("auto", *ALGORITHMS, *TOPK))
            raise InputError(f"unknown algorithm {row.algorithm!r}; known are {known}")
        if precision is not None and row.algorithm in TOPK:
            raise InputError(
                f"{row.algorithm} sends values as they are, not as {precision}: leave out the precision, or "
                "sum everybody's selection, as topk_allgather does"
            )
        self.comm, self.density, self.algorithm, self.precision = comm, density, row.algorithm, precision
        self.compressor = feedback(row.compressor(density), momentum, check_finite)

    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> SyncState:
        """The state before the first step of a tensor; every tensor has its own."""
        return SyncState(0, self.compressor.init(length, dtype))

    def go_on(self, comm: Communicator, state: SyncState) -> SyncState:
        """The state with which a tensor goes on over a communicator of ``shrink``, ``grow`` or ``join``.

        All ranks of ``comm`` call this.  The number of the step is that of rank 0, and means are over the new
        number of ranks.  Every rank keeps its own residual, and a newcomer gives the state of ``init``.  The
        residual of a rank that was lost is lost with it: what waited there never becomes part of a mean.
        """
        self.comm = comm
        [step] = comm.broadcast(np.array([state.step]))
        return replace(_at_step(state, int(step)), regions=None)

    def k(self, length: int, state: SyncState) -> int:
        """The number of entries that the density means in the next step."""
        return count_of(length, density_at(self.density, state.step))

    def step(self, gradient: Gradient, state: SyncState) -> tuple[SparseVector, SyncState]:
        """The mean, the same bits on every rank, and the next state, which takes over this one's arrays.

        The gradient is not written to.  If the exchange fails, what was selected is in the residual again.
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
        return self.settle(exchanged, selected, state)

    def select(self, gradient: Gradient, state: SyncState) -> tuple[SparseVector, SyncState]:
        """The first phase of a step: the entries to be sent, and the state without them."""
        selected, compressor = self.compressor.add(gradient, state.compressor)
        return selected, replace(state, compressor=compressor)

    def exchange(self, selected: SparseVector, state: SyncState) -> Any:
        """The second phase: the answer of the collective, for ``settle``."""
        return self._exchange(self.comm.allreduce, self.comm.allreduce_topk, selected, state, self.algorithm)

    def iexchange(
        self, selected: SparseVector, state: SyncState, algorithm: Any = None, nnz: int | None = None
    ) -> Request:
        """The second phase in the background; its result is for ``settle``.

        ``algorithm``, as ``allreduce`` takes it, replaces that of the method.  ``nnz`` promises that no rank
        has selected more entries.  Every rank gives the same.
        """
        allreduce = partial(self.comm.iallreduce, nnz=nnz)
        request: Request = self._exchange(
            allreduce, self.comm.iallreduce_topk, selected, state, algorithm or self.algorithm
        )
        return request

    def _exchange(
        self,
        allreduce: Callable[..., Any],
        allreduce_topk: Callable[..., Any],
        selected: SparseVector,
        state: SyncState,
        algorithm: Any,
    ) -> Any:
        if algorithm in TOPK:
            regions = state.regions
            if regions is not None and len(regions.cuts) != self.comm.size + 1:
                regions = None  # they were saved by another number of ranks
            k = self.k(selected.length, state)
            return allreduce_topk(selected, k, algorithm=TOPK[algorithm], regions=regions)
        if self.compressor.shared:  # all ranks know the indices
            return allreduce(selected.values, algorithm=algorithm, precision=self.precision)
        feedback = self.compressor.rounding(state.compressor) if self.precision is not None else None
        return allreduce(selected, algorithm=algorithm, precision=self.precision, feedback=feedback)

    def settle(
        self, exchanged: Any, selected: SparseVector, state: SyncState
    ) -> tuple[SparseVector, SyncState]:
        """The third phase: the mean, and the next state, whose residual has what was not used."""
        total, left, regions = self.outcome(exchanged, selected)
        compressor = self.compressor.give_back(left, state.compressor)
        return total.divided_by(self.comm.size), SyncState(state.step + 1, compressor, regions)

    def outcome(self, exchanged: Any, selected: SparseVector) -> TopkSum:
        """The sum in the answer of an exchange, and those of this rank's entries that are not in it."""
        if isinstance(exchanged, TopkSum):
            return exchanged
        total = selected.with_values(exchanged) if self.compressor.shared else exchanged
        return TopkSum(total, SparseVector.empty(selected.length, selected.dtype))
