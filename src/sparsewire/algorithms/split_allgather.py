"""Split-allgather (SparCML, SSAR_Split_allgather and DSAR_Split_allgather in one).

    split      rank r receives everybody's entries of range r
    reduce     rank r adds them up and now owns range r
    allgather  everybody gets every owner's range

Per rank: 2(P-1) messages in two rounds; k(P-1)/P entries in the first, its range of the union to P-1
ranks in the second.  Each entry is added up in one place only, so it wins where vectors are large.  A
range whose sum is smaller stored densely travels densely: that is DSAR, decided for each piece by itself.
Exact; the same bits on every rank, because each range is added up by its owner alone.

Paper: Renggli et al., SparCML, SC'19.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import allgather, alltoall
from sparsewire.cost import Cost, CostFigures, RoundCost, Shape
from sparsewire.expected import like
from sparsewire.reduction import concat
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector

__all__ = ["cost", "owner_rounds", "split_allgather", "split_reduce"]


def split_allgather(rank: int, size: int, vec: SparseVector, context: Context = PLAIN) -> Steps[SparseVector]:
    shares = vec.split_evenly(size)
    mine = yield from _reduce(rank, size, shares, context)
    ranges = [like(share) for share in shares]
    return concat((yield from allgather(rank, size, context.rounding.owned(mine), ranges)))


def split_reduce(rank: int, size: int, vec: SparseVector, context: Context = PLAIN) -> Steps[SparseVector]:
    """The sum of range ``rank``: the first half of split-allgather, and all of a reduce-scatter."""
    return _reduce(rank, size, vec.split_evenly(size), context)


def _reduce(rank: int, size: int, shares: Sequence[SparseVector], context: Context) -> Steps[SparseVector]:
    sent = [context.rounding.contribution(share) for share in shares]
    return context.op.merge((yield from alltoall(rank, size, sent, [like(shares[rank])] * size)))


def cost(figures: CostFigures, shape: Shape) -> Cost:
    return figures.cost(owner_rounds(shape, shape.skew))


def owner_rounds(shape: Shape, skew: float) -> list[RoundCost]:
    """The two rounds of an owner that has ``skew`` times its share, or as many entries as fit its range."""
    size, span = shape.size, shape.length / shape.size
    if size == 1:
        return []
    union = shape.union(size)
    share, fullest = (min(times * shape.nnz / size, span, shape.nnz) for times in (1, skew))
    owned = max(fullest, min(skew * union / size, span))
    sent, received, told = (
        (size - 1) * shape.frame_bytes(entries, span) for entries in (share, fullest, owned)
    )
    adding = shape.merging([fullest] * size, owned, span)
    return [
        RoundCost(size - 1, sent, (size - 1, received), adding),
        RoundCost(size - 1, told, work=shape.joining(union, shape.length)),
    ]
