"""The sparse ring: partial sums of P ranges travel around it, then the finished ranges do.

    reduce     P-1 steps: take the partial sum of one range from the left, add one's own, pass it to the right
    gather     P-1 steps: take a finished range from the left, pass it to the right

Each rank talks to its two neighbours only, in messages of one range.  A range grows from k/P entries to its
part of the union, and travels densely where that is smaller.  Per rank: 2(P-1) messages in as many rounds,
with about (P-1)/P of twice the union, so it pays where supports overlap and latency is low.  Exact; the same
bits on every rank, because each range is added up once around the ring.

From the code of SparCML (Renggli et al., SC'19), whose paper does not describe it.
"""

from __future__ import annotations

import itertools

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import ring
from sparsewire.cost import Cost, CostFigures, RoundCost, Shape
from sparsewire.reduction import concat
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector

__all__ = ["cost", "sparse_ring"]


def sparse_ring(rank: int, size: int, vec: SparseVector, context: Context = PLAIN) -> Steps[SparseVector]:
    pieces = [[piece] for piece in vec.split_evenly(size)]
    return concat((yield from ring(rank, size, pieces, context.op.merge)))


def cost(figures: CostFigures, shape: Shape) -> Cost:
    if shape.size == 1:
        return figures.cost([])
    # Everybody waits for the fullest range, and everybody passes on all ranges but one.
    slowest = figures.cost(_rounds(shape, shape.skew))
    return slowest._replace(bytes_sent=figures.cost(_rounds(shape, 1.0)).bytes_sent)


def _rounds(shape: Shape, skew: float) -> list[RoundCost]:
    """What happens to a range that has ``skew`` times its share, or as much as fits."""
    size, span = shape.size, shape.length / shape.size
    partial = [min(skew * shape.union(ranks) / size, span) for ranks in range(1, size + 1)]
    rounds = [
        RoundCost(1, shape.frame_bytes(before, span), work=shape.merging([before, partial[0]], after, span))
        for before, after in itertools.pairwise(partial)
    ]
    rounds += [RoundCost(1, shape.frame_bytes(partial[-1], span))] * (size - 1)
    rounds[-1] = rounds[-1]._replace(work=shape.joining(shape.union(size), shape.length))
    return rounds
