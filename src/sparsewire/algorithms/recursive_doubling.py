"""Recursive doubling (SparCML, SSAR_Recursive_double).

    round t    swap everything with the rank at distance 2**t, and add

Per rank: log2(P) messages; with P not a power of two, two more for the ranks that take a neighbour in.
The vectors grow as supports merge, from k entries to the union of all.  Fewest messages, so it wins on
small data; every rank adds up everything, so it loses on large data.  Exact; the same bits on every rank,
because both ends of a swap add the same two vectors in the same order.

Paper: Renggli et al., SparCML, SC'19.
"""

from __future__ import annotations

from sparsewire.algorithms._patterns import doublings, folded, folded_rounds
from sparsewire.model import Cost, Network, Round, Shape
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector, merge_sum

__all__ = ["cost", "recursive_doubling"]


def recursive_doubling(rank: int, size: int, vec: SparseVector) -> Steps[SparseVector]:
    return folded(rank, size, vec, _double, merge_sum)


def _double(position: int, ranks: list[int], vec: SparseVector) -> Steps[SparseVector]:
    for distance in doublings(len(ranks)):
        partner = position ^ distance
        [theirs] = yield [Send(ranks[partner], vec), Recv(ranks[partner])]
        vec = merge_sum([vec, theirs] if position < partner else [theirs, vec])
    return vec


def cost(network: Network, shape: Shape) -> Cost:
    core = 1 << (shape.size.bit_length() - 1)
    surplus = shape.size - core  # the first so many vectors stand for two ranks when the doubling starts
    rounds = []
    for distance in doublings(core):
        entries = shape.union(distance + min(distance, surplus))
        rounds.append(Round(1, shape.frame_bytes(entries, shape.length), merged=2 * entries))
    whole = shape.frame_bytes(shape.union(shape.size), shape.length)
    return network.cost(folded_rounds(shape.size, rounds, shape.frame_bytes(shape.nnz, shape.length), whole))
