"""Recursive doubling (SparCML, SSAR_Recursive_double).

    round t    swap everything with the rank at distance 2**t, and add

Per rank: log2(P) messages; with P not a power of two, two more for the ranks that take a neighbour in.
The vectors grow as supports merge, from k entries to the union of all.  Fewest messages, so it wins on
small data; every rank adds up everything, so it loses on large data.  Exact; the same bits on every rank,
because both ends of a swap add the same two vectors in the same order.

Paper: Renggli et al., SparCML, SC'19.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import doublings, folded, folded_rounds
from sparsewire.cost import Cost, CostFigures, RoundCost, Shape
from sparsewire.expected import like
from sparsewire.reduction import Reduction
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.work import NOTHING, Work

__all__ = ["cost", "double", "doubling_rounds", "folded_cost", "recursive_doubling", "taking_in"]


def recursive_doubling(
    rank: int, size: int, vec: SparseVector, context: Context = PLAIN
) -> Steps[SparseVector]:
    def core(position: int, ranks: list[int], vec: SparseVector) -> Steps[SparseVector]:
        return double(position, ranks, vec, context.op, len(ranks))

    return folded(rank, size, vec, core, context.op.merge)


def double(
    position: int, ranks: list[int], vec: SparseVector, op: Reduction, group: int
) -> Steps[SparseVector]:
    """The sum of ``group`` ranks in a row, on each of them."""
    expected = like(vec)
    for distance in doublings(group):
        partner = position ^ distance
        [theirs] = yield [Send(ranks[partner], vec), Recv(ranks[partner], expected)]
        vec = op.merge([vec, theirs] if position < partner else [theirs, vec])
    return vec


def cost(figures: CostFigures, shape: Shape) -> Cost:
    core = 1 << (shape.size.bit_length() - 1)
    return folded_cost(figures, shape, taking_in(shape, doubling_rounds(shape, core)))


def doubling_rounds(shape: Shape, group: int) -> list[RoundCost]:
    core = 1 << (shape.size.bit_length() - 1)
    surplus = shape.size - core  # the first so many vectors stand for two ranks when the doubling starts
    rounds = []
    for distance in doublings(group):
        ranks = [distance + max(0, min(distance, surplus - begin)) for begin in (0, distance)]
        mine, theirs = map(shape.union, ranks)
        adding = shape.merging([mine, theirs], shape.union(sum(ranks)), shape.length)
        rounds.append(RoundCost(1, shape.frame_bytes(mine, shape.length), work=adding))
    return rounds


def taking_in(shape: Shape, core: list[RoundCost]) -> list[RoundCost]:
    """The rounds of a rank that adds a neighbour's entries to its own, if there is one."""
    frame, whole = (shape.frame_bytes(shape.union(ranks), shape.length) for ranks in (1, shape.size))
    adding = shape.merging([shape.nnz, shape.nnz], shape.union(2), shape.length)
    return folded_rounds(shape.size, core, frame, adding, whole)


def folded_cost(
    figures: CostFigures,
    shape: Shape,
    rounds: list[RoundCost],
    first: Sequence[RoundCost] = (),
    before: Work = NOTHING,
) -> Cost:
    """What the rounds of ``taking_in`` cost, after those of ``first``.

    Ranks that take no neighbour in are one round ahead of the others, and their messages are there when the
    others ask for them.  Three chains of messages can be the longest: from a neighbour to a rank that takes
    none in, from such a rank to a neighbour, and from a neighbour to a neighbour.  In the last one, latency
    counts for as many rounds of the core as the places of the two differ in bits, and transfers in all.
    """
    cost = figures.cost([*first, *rounds], before)
    core = 1 << (shape.size.bit_length() - 1)
    surplus = shape.size - core
    if not surplus:
        return cost
    ahead, behind = (figures.cost([*first, *chain], before).seconds for chain in (rounds[1:], rounds[:-1]))
    hidden = max(0, len(rounds) - 2 - (surplus - 1).bit_length()) * figures.latency
    return cost._replace(seconds=max(ahead, behind, cost.seconds - hidden))
