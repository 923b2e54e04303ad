"""Recursive halving, then recursive doubling (Rabenseifner): the dense baseline with few messages.

    halving    log2(P) rounds: swap the half that the partner keeps, add, go on with one's own half
    doubling   log2(P) rounds: swap what is finished, in the opposite order

Neighbours swap first, so that the largest messages travel between neighbours.

Per rank: 2 log2(P) messages and 2(P-1)/P of the vector; with P not a power of two, a whole vector more in
each direction for the ranks that take a neighbour in.  Exact; the same bits on every rank, because each
range is added up by one rank at each level.

Described in: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
MPICH, IJHPCA 2005.
"""

from __future__ import annotations

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import doublings, folded, folded_rounds
from sparsewire.cost import Cost, CostFigures, RoundCost, Shape
from sparsewire.expected import like
from sparsewire.reduction import Reduction, concat
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.work import Work

__all__ = ["cost", "dense_halving_doubling", "halve_and_double", "halving_doubling_rounds"]


def dense_halving_doubling(
    rank: int, size: int, vec: SparseVector, context: Context = PLAIN
) -> Steps[SparseVector]:
    def core(position: int, ranks: list[int], vec: SparseVector) -> Steps[SparseVector]:
        return halve_and_double(position, ranks, vec, context.op)

    return (yield from folded(rank, size, vec.as_dense(), core, context.op.dense))


def halve_and_double(
    position: int, ranks: list[int], vec: SparseVector, op: Reduction, group: int = 1
) -> Steps[SparseVector]:
    """The dense sum over groups of ``group`` ranks in a row that hold the same vector each.

    Within a group nothing has to be swapped before the doubling: each rank keeps its part of the range.
    """
    distances = list(doublings(len(ranks)))
    given = []  # the other half of each split: what doubling brings back
    for distance in doublings(group):
        halves = vec.split_evenly(2)
        vec, other = halves if position & distance == 0 else reversed(halves)
        given.append(like(other))
    vec = vec.as_dense()
    for distance in distances[len(list(doublings(group))) :]:
        partner = position ^ distance
        keep, give = vec.split_evenly(2) if position < partner else reversed(vec.split_evenly(2))
        given.append(like(give))
        [got] = yield [Send(ranks[partner], give), Recv(ranks[partner], like(keep))]
        vec = op.dense([keep, got] if position < partner else [got, keep])
    for distance in reversed(distances):
        partner = position ^ distance
        [got] = yield [Send(ranks[partner], vec), Recv(ranks[partner], given.pop())]
        vec = concat([vec, got] if position < partner else [got, vec])
    return vec


def cost(figures: CostFigures, shape: Shape) -> Cost:
    core = 1 << (shape.size.bit_length() - 1)
    whole = shape.dense_frame_bytes(shape.length)
    adding = Work(values=2 * shape.length)
    rounds = folded_rounds(shape.size, halving_doubling_rounds(shape, core), whole, adding, whole)
    return figures.cost(rounds, shape.spreading(shape.nnz, shape.length))


def halving_doubling_rounds(shape: Shape, core: int, group: int = 1) -> list[RoundCost]:
    # Halving ends with, and doubling starts from, 1/core of the vector; both write twice what is swapped.
    spans = [distance * shape.length / core for distance in doublings(core)]
    doubling = [RoundCost(1, shape.dense_frame_bytes(span), work=Work(values=2 * span)) for span in spans]
    return doubling[: len(spans) - len(list(doublings(group)))][::-1] + doubling
