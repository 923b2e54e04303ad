"""SparDL: the largest entries of each of P blocks, in 2 ceil(log2 P) messages.

    select     everybody keeps its k/P largest entries of each block
    reduce     in rounds: send the blocks of far ranks half of the way, add up what comes, keep k/P of a block
    gather     everybody gets the k/P entries that are left of each block, along Bruck's tree

Rank r owns block r.  In the round of distance d, d = ..., 4, 2, 1, it sends the blocks of the ranks r+d ..
r+2d-1 to rank r+d, and gets its own block and those of r+1 .. r+d-1 from rank r-d.  Any P will do.

Nobody sends or receives more than 4k(P-1)/P words (an entry has two), because a block never has more than k/P
entries when it travels.  So the result is not the k largest of the sum: a block that has more than its share
of them loses some.  The rank that drops an entry keeps it: ``left`` is all that this rank has dropped,
whoever sent it.  Every rank gets the same bits, because each block is finished by its owner alone.

Paper: Zhao et al., SparDL: Distributed deep learning training with efficient sparse communication, ICDE'24.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sparsewire import work
from sparsewire.algorithms.bruck import bruck, bruck_rounds
from sparsewire.algorithms.bundles import Entries
from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.ok_topk import Regions, TopkSum
from sparsewire.algorithms.patterns import doublings
from sparsewire.cost import Cost, CostFigures, RoundCost, Shape
from sparsewire.reduction import SUM, concat
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.work import Work

__all__ = ["cost", "spardl"]


def spardl(
    rank: int,
    size: int,
    vec: SparseVector,
    k: int,
    regions: Regions | None = None,
    context: Context = PLAIN,
) -> Steps[TopkSum]:
    """The result has no regions; given ones are ignored, and so is the context."""
    cuts, quotas = _blocks(vec.length, size, k)
    bundle = Entries(vec.length, cuts, quotas, vec.dtype)
    dropped = [SparseVector.empty(vec.length, vec.dtype)]

    def keep_largest(blocks: Sequence[SparseVector]) -> list[SparseVector]:
        """As many entries of this rank's block, and of those that follow it, as may travel."""
        kept, rests = [], []
        for step, block in enumerate(blocks):
            if block.nnz > (quota := quotas[(rank + step) % size]):
                block, rest = block.split_largest(quota)
                rests.append(rest)
            kept.append(block)
        if rests:
            dropped.append(concat(sorted(rests, key=lambda rest: rest.start)).whole())
        return kept

    work.count(entries=_handling(size))
    blocks = vec.as_sparse().split_at(cuts)
    held = keep_largest(blocks[rank:] + blocks[:rank])  # of rank, rank+1, ...
    for distance in reversed([*doublings(size)]):
        given = [(rank + step) % size for step in range(distance, len(held))]
        wanted = [(rank + step) % size for step in range(len(given))]
        source, payload = (rank - distance) % size, bundle.pack(held[distance:], given)
        [received] = yield [Send(given[0], payload), Recv(source, bundle.expected(wanted))]
        mine = bundle.pack(held[: len(wanted)], wanted)
        merged = [SUM.merge(both).as_sparse() for both in zip(mine, received, strict=True)]
        sums = bundle.unpack(merged, wanted)
        held = keep_largest(sums) + held[len(sums) : distance]
    total = concat((yield from bruck(rank, size, held[0], bundle)))
    return TopkSum(total, SUM.merge(dropped).as_sparse())


def _blocks(length: int, size: int, k: int) -> tuple[list[int], list[int]]:
    """The cuts between blocks, and how many entries of each may travel: k in all.

    With fewer entries than ranks, the last ranks own nothing: no position has to wait for ever.

    >>> _blocks(10, 4, 6), _blocks(10, 4, 2)
    (([0, 2, 5, 7, 10], [1, 2, 1, 2]), ([0, 5, 10, 10, 10], [1, 1, 0, 0]))
    """
    count = min(size, k)
    cuts, shares = ([total * block // count for block in range(count + 1)] for total in (length, k))
    quotas = [after - before for before, after in pairwise(shares)]
    return cuts + [length] * (size - count), quotas + [0] * (size - count)


def cost(figures: CostFigures, shape: Shape) -> Cost:
    size, k = shape.size, shape.nnz
    share, span = k / size, shape.length / size

    def nbytes(blocks: int) -> int:
        return shape.frame_bytes(blocks * share, blocks * span)

    def adding(blocks: int) -> Work:
        """Two vectors are merged, and searched for the largest entries, which are copied."""
        return Work(entries=2 * blocks * share, values=6 * blocks * share)

    counts = [min(distance, size - distance) for distance in reversed([*doublings(size)])]
    reducing = [RoundCost(1, nbytes(count), work=adding(count)) for count in counts]
    gathering = [
        one._replace(work=Work(values=count * share))
        for one, count in zip(bruck_rounds(size, nbytes), reversed(counts), strict=True)
    ]
    # At first the entries of each block are searched; in the end, those that were dropped are merged.
    return figures.cost([*reducing, *gathering], before=Work(entries=k + _handling(size), values=3 * k))


def _handling(size: int) -> int:
    """How many entries could be merged in the time that calling kernels for each block takes.

    Measured: about 25 us for a block.
    """
    return 4000 * size
