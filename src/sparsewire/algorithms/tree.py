"""Broadcast and reduce along a binomial tree, and the dissemination barrier.

Each takes ceil(log2 P) rounds.  The tree is laid over ranks counted from the root, so that a parent has
the lower numbers of its subtree: sums are formed in that order, and the same inputs give the same bits.

Described in: Thakur, Rabenseifner and Gropp, IJHPCA 2005; Hensgen, Finkel and Manber, IJPP 1988.
"""

from __future__ import annotations

from sparsewire.algorithms.patterns import doublings
from sparsewire.expected import Expected, like
from sparsewire.reduction import SUM, Reduction
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector

__all__ = ["barrier", "broadcast", "reduce"]

WHOLE = Expected()  # a whole vector of whatever length and dtype


def broadcast(
    rank: int, size: int, vec: SparseVector | None, root: int, expected: Expected = WHOLE
) -> Steps[SparseVector]:
    """The root's vector, on every rank; ``expected`` is what the others know of it."""
    place = (rank - root) % size  # 0 is the root
    for distance in doublings(size):
        if distance <= place < 2 * distance:
            [vec] = yield [Recv((rank - distance) % size, expected)]
        elif place < distance and place + distance < size:
            yield [Send((rank + distance) % size, vec)]
    assert vec is not None
    return vec


def reduce(
    rank: int, size: int, vec: SparseVector, root: int, op: Reduction = SUM
) -> Steps[SparseVector | None]:
    """Everybody's sum at the root, None elsewhere."""
    place, expected = (rank - root) % size, like(vec)
    for distance in doublings(size):
        if place % (2 * distance):
            yield [Send((rank - distance) % size, vec)]
            return None
        if place + distance < size:
            [theirs] = yield [Recv((rank + distance) % size, expected)]
            vec = op.merge([vec, theirs])
    return vec


def barrier(rank: int, size: int) -> Steps[None]:
    """Ends when every rank has begun it."""
    token = SparseVector.empty(0)
    for distance in doublings(size):
        yield [Send((rank + distance) % size, token), Recv((rank - distance) % size, like(token))]
