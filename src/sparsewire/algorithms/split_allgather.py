"""Split-allgather (SparCML, SSAR_Split_allgather and DSAR_Split_allgather in one).

    split      rank r receives everybody's entries of range r
    reduce     rank r adds them up and now owns range r
    allgather  everybody gets every owner's range

Per rank: 2(P-1) messages in two rounds; k(P-1)/P entries in the first, its range of the union to P-1
ranks in the second.  Where messages cost more than their bytes, the ranges are gathered along Bruck's tree,
and the second round becomes ceil(log2 P) messages.  Each entry is added up in one place only, so it wins
where vectors are large.  A range whose sum is smaller stored densely travels densely: that is DSAR, decided
for each piece by itself.
Exact; the same bits on every rank, because each range is added up by its owner alone.

Paper: Renggli et al., SparCML, SC'19.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparsewire.algorithms.bruck import gather, gather_rounds
from sparsewire.algorithms.bundles import Lists
from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import alltoall
from sparsewire.cost import Cost, CostFigures, RoundCost, Shape
from sparsewire.expected import like
from sparsewire.reduction import concat
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector

__all__ = ["cost", "owned_bytes", "owner_rounds", "split_allgather", "split_reduce"]


def split_allgather(rank: int, size: int, vec: SparseVector, context: Context = PLAIN) -> Steps[SparseVector]:
    shares = vec.split_evenly(size)
    mine = yield from _reduce(rank, size, shares, context)
    ranges = Lists([like(share) for share in shares])
    shape = context.shape_of(size, vec)
    nbytes = owned_bytes(shape, shape.skew)
    owned = context.rounding.owned(mine)
    return concat((yield from gather(rank, size, owned, ranges, context.figures, nbytes)))


def split_reduce(rank: int, size: int, vec: SparseVector, context: Context = PLAIN) -> Steps[SparseVector]:
    """The sum of range ``rank``: the first half of split-allgather, and all of a reduce-scatter."""
    return _reduce(rank, size, vec.split_evenly(size), context)


def _reduce(rank: int, size: int, shares: Sequence[SparseVector], context: Context) -> Steps[SparseVector]:
    sent = [context.rounding.contribution(share) for share in shares]
    return context.op.merge((yield from alltoall(rank, size, sent, [like(shares[rank])] * size)))


def cost(figures: CostFigures, shape: Shape) -> Cost:
    return figures.cost(owner_rounds(figures, shape, shape.skew))


def owner_rounds(figures: CostFigures, shape: Shape, skew: float) -> list[RoundCost]:
    """The rounds of an owner that has ``skew`` times its share, or as many entries as fit its range."""
    size, span = shape.size, shape.length / shape.size
    if size == 1:
        return []
    share, fullest = (min(times * shape.nnz / size, span, shape.nnz) for times in (1, skew))
    sent, received = ((size - 1) * shape.frame_bytes(entries, span) for entries in (share, fullest))
    adding = shape.merging([fullest] * size, _owned(shape, skew), span)
    joining = shape.joining(shape.union(size), shape.length)
    return [
        RoundCost(size - 1, sent, (size - 1, received), adding),
        *gather_rounds(figures, size, owned_bytes(shape, skew), joining),
    ]


def owned_bytes(shape: Shape, skew: float) -> Callable[[int], int]:
    """Bytes of the sums of so many owners, the first of which has ``skew`` times its share."""
    span = shape.length / shape.size
    fullest, mean = (shape.frame_bytes(_owned(shape, times), span) for times in (skew, 1.0))
    return lambda owners: fullest + (owners - 1) * mean


def _owned(shape: Shape, skew: float) -> float:
    """How many entries the sum of an owner has."""
    size, span = shape.size, shape.length / shape.size
    received = min(skew * shape.nnz / size, span, shape.nnz)
    return max(received, min(skew * shape.union(size) / size, span))
