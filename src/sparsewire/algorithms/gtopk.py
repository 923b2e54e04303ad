"""gTop-k: the k largest entries, again after each sum, up a binary tree; the root tells all.

In every round half of the remaining ranks send their k entries to a neighbour, which adds them to its own
and keeps the k largest.  Per rank at most 2 ceil(log2 P) messages of k entries; any P.

The result is not the k largest of the sum: an entry that is small in one half of the tree is dropped there.
The rank that drops it keeps it: ``left`` is all that this rank has dropped, whoever sent it, so nothing is
lost.

Paper: Shi et al., A distributed synchronous SGD algorithm with global top-k sparsification for low bandwidth
networks, ICDCS'19.  There an entry that one half dropped and the other did not is cleared by both.
"""

from __future__ import annotations

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.ok_topk import Regions, TopkSum
from sparsewire.algorithms.patterns import doublings
from sparsewire.algorithms.tree import broadcast
from sparsewire.cost import Cost, CostFigures, RoundCost, Shape
from sparsewire.expected import like
from sparsewire.reduction import SUM
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.work import Work

__all__ = ["cost", "gtopk"]


def gtopk(
    rank: int,
    size: int,
    vec: SparseVector,
    k: int,
    regions: Regions | None = None,
    context: Context = PLAIN,
) -> Steps[TopkSum]:
    """The result has no regions; given ones are ignored, and so is the context."""
    total, dropped = vec.as_sparse(), []
    expected = like(vec)._replace(is_dense=False, most=k)

    def keep_largest() -> None:
        nonlocal total
        total, others = total.split_largest(k)
        dropped.append(others)

    for distance in doublings(size):
        keep_largest()
        if rank % (2 * distance):
            yield [Send(rank - distance, total)]
            break
        if rank + distance < size:
            [theirs] = yield [Recv(rank + distance, expected)]
            total = SUM.merge([total, theirs]).as_sparse()
    keep_largest()
    total = yield from broadcast(rank, size, None if rank else total, root=0, expected=expected)
    return TopkSum(total, SUM.merge(dropped).as_sparse())


def cost(figures: CostFigures, shape: Shape) -> Cost:
    """The cost of the root, which receives from one rank, and sends to one, in every round."""
    frame = shape.frame_bytes(shape.nnz, shape.length)
    adding = Work(entries=3 * shape.nnz, values=4 * shape.nnz)
    up = [RoundCost(0, 0, (1, frame), adding) for _ in doublings(shape.size)]
    down = [RoundCost(1, frame, (0, 0)) for _ in doublings(shape.size)]
    return figures.cost([*up, *down])
