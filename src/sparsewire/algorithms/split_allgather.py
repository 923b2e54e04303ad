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

from sparsewire.algorithms._patterns import allgather, allgather_rounds, in_rank_order, others
from sparsewire.model import Cost, Network, Round, Shape
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector, concat, merge_sum

__all__ = ["cost", "split_allgather", "split_reduce"]


def split_allgather(rank: int, size: int, vec: SparseVector) -> Steps[SparseVector]:
    mine = yield from split_reduce(rank, size, vec)
    return concat((yield from allgather(rank, size, mine)))


def split_reduce(rank: int, size: int, vec: SparseVector) -> Steps[SparseVector]:
    """The sum of range ``rank``: the first half of split-allgather, and all of a reduce-scatter."""
    share = vec.cut(size)
    peers = others(rank, size)
    incoming = yield [Send(peer, share[peer]) for peer in peers] + [Recv(peer) for peer in peers]
    return merge_sum(in_rank_order(rank, size, share[rank], incoming))


def cost(network: Network, shape: Shape) -> Cost:
    size, span = shape.size, shape.length / shape.size
    share = shape.frame_bytes(shape.nnz / size, span)
    owned = shape.frame_bytes(shape.union(size) / size, span)
    if size == 1:
        return network.cost([])
    return network.cost(
        [Round(size - 1, (size - 1) * share, merged=shape.nnz), *allgather_rounds(size, owned)]
    )
