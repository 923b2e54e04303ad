"""Allgather, then everybody adds up everything: what Gloo and Horovod do with sparse tensors (TopkA).

Per rank: P-1 messages in one round, k entries each.  Nothing is sent twice and nothing waits for a sum,
so it is hard to beat at small P; both its traffic and its work grow with P.  Exact; the same bits on
every rank, because all add the same vectors in rank order.

Baseline in: Li and Hoefler, Ok-Topk, PPoPP'22; Renggli et al., SparCML, SC'19.
"""

from __future__ import annotations

from sparsewire.algorithms._patterns import allgather, allgather_rounds
from sparsewire.model import Cost, Network, Shape
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector, merge_sum

__all__ = ["allgather_sum", "cost"]


def allgather_sum(rank: int, size: int, vec: SparseVector) -> Steps[SparseVector]:
    return merge_sum((yield from allgather(rank, size, vec)))


def cost(network: Network, shape: Shape) -> Cost:
    rounds = allgather_rounds(shape.size, shape.frame_bytes(shape.nnz, shape.length))
    return network.cost([r._replace(merged=shape.size * shape.nnz) for r in rounds])
