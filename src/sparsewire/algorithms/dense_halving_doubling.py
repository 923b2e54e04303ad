"""Recursive halving, then recursive doubling (Rabenseifner): the dense baseline with few messages.

    halving    log2(P) rounds: swap the half that the partner keeps, add, go on with one's own half
    doubling   log2(P) rounds: swap what is finished, in the opposite order

Per rank: 2 log2(P) messages and 2(P-1)/P of the vector; with P not a power of two, a whole vector more in
each direction for the ranks that take a neighbour in.  Exact; the same bits on every rank, because each
range is added up by one rank at each level.

Described in: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
MPICH, IJHPCA 2005.
"""

from __future__ import annotations

from sparsewire.algorithms._patterns import doublings, folded, folded_rounds
from sparsewire.model import Cost, Network, Round, Shape
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector, concat, dense_sum

__all__ = ["cost", "dense_halving_doubling"]


def dense_halving_doubling(rank: int, size: int, vec: SparseVector) -> Steps[SparseVector]:
    return folded(rank, size, vec.as_dense(), _halve_and_double, dense_sum)


def _halve_and_double(position: int, ranks: list[int], vec: SparseVector) -> Steps[SparseVector]:
    distances = list(doublings(len(ranks)))
    for distance in reversed(distances):
        partner = position ^ distance
        keep, give = vec.cut(2) if position < partner else reversed(vec.cut(2))
        [got] = yield [Send(ranks[partner], give), Recv(ranks[partner])]
        vec = dense_sum([keep, got] if position < partner else [got, keep])
    for distance in distances:
        partner = position ^ distance
        [got] = yield [Send(ranks[partner], vec), Recv(ranks[partner])]
        vec = concat([vec, got] if position < partner else [got, vec])
    return vec


def cost(network: Network, shape: Shape) -> Cost:
    core = 1 << (shape.size.bit_length() - 1)
    range_length = shape.length / core
    doubling = [Round(1, shape.dense_frame_bytes(distance * range_length)) for distance in doublings(core)]
    whole = shape.dense_frame_bytes(shape.length)
    return network.cost(folded_rounds(shape.size, doubling[::-1] + doubling, whole, whole))
