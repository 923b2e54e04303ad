"""Allgather, then everybody adds up everything: what Gloo and Horovod do with sparse tensors (TopkA).

A large vector is sent in segments, range after range, so that one range is added up while the next is on
its way.  Each sender cuts by its own entries; a receiver adds up as far as it has everybody's entries.

Where messages cost more than their bytes, whole vectors are gathered along Bruck's tree, with ceil(log2 P)
messages.

Per rank: k entries to each of P-1 others.  Nothing is sent twice and nothing waits for a sum, so it is hard
to beat at small P; both its traffic and its work grow with P.  Exact; the same bits on every rank, because
all add the same vectors in rank order, range by range.

Baseline in: Li and Hoefler, Ok-Topk, PPoPP'22; Renggli et al., SparCML, SC'19.
"""

from __future__ import annotations

from collections.abc import Callable

from sparsewire.algorithms.bruck import bruck, bruck_rounds, is_faster
from sparsewire.algorithms.bundles import Lists
from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import in_rank_order, others, segment_count
from sparsewire.cost import Cost, CostFigures, Shape
from sparsewire.expected import Expected, like
from sparsewire.reduction import RangeSums
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.work import NOTHING

__all__ = ["allgather_sum", "cost"]

# A few milliseconds on a 1 Gbit/s link: the last segment is added up after everything has arrived.
SEGMENT_BYTES = 1 << 18


def allgather_sum(
    rank: int,
    size: int,
    vec: SparseVector,
    context: Context = PLAIN,
    segment_bytes: int = SEGMENT_BYTES,
) -> Steps[SparseVector]:
    if is_faster(context.figures, size, _vector_bytes(context.shape_of(size, vec))):
        own, vectors = context.rounding.contribution(vec), Lists([like(vec)] * size)
        return context.op.merge((yield from bruck(rank, size, own, vectors)))
    segments = vec.split_evenly(segment_count(vec.nbytes, segment_bytes, vec.length))
    mine = [context.rounding.contribution(segment) for segment in segments]
    peers = others(rank, size)

    def segment_at(start: int) -> Expected:
        """The next one of a sender, which alone knows where it ends."""
        return Expected(vec.length, start, None, vec.dtype)

    sends = [Send(p, segment) for segment in mine for p in peers]
    received = yield sends + [Recv(p, segment_at(0)) for p in peers]
    latest = in_rank_order(rank, size, mine.pop(0), received)
    if all(segment.span == vec.length for segment in latest):  # small vectors come whole
        return context.op.merge(latest)
    sums = RangeSums(context.op)
    start = 0
    while True:
        stop = min(segment.stop for segment in latest)
        sums.add([segment.range(start, stop) for segment in latest])
        if stop == vec.length:
            return sums.concat()
        behind = [p for p in peers if latest[p].stop == stop]
        received = yield [Recv(p, segment_at(stop)) for p in behind]
        for p, segment in zip(behind, received, strict=True):
            latest[p] = segment
        if latest[rank].stop == stop:
            latest[rank] = mine.pop(0)
        start = stop


def cost(figures: CostFigures, shape: Shape, segment_bytes: int = SEGMENT_BYTES) -> Cost:
    if shape.size == 1:
        return figures.cost([])
    others, union = shape.size - 1, shape.union(shape.size)
    if is_faster(figures, shape.size, _vector_bytes(shape)):
        *rounds, last = bruck_rounds(shape.size, _vector_bytes(shape))
        adding = shape.merging([shape.nnz] * shape.size, union, shape.length)
        return figures.cost([*rounds, last._replace(work=adding)])
    count = segment_count(shape.stored_bytes(shape.nnz, shape.length), segment_bytes, shape.length)
    segment = shape.frame_bytes(shape.nnz / count, shape.length / count)
    adding = shape.merging([shape.nnz / count] * shape.size, union / count, shape.length / count)
    # Sums of entries are written one behind the other; those that were formed densely have to be joined.
    joining = shape.joining(union, shape.length) if adding.values and count > 1 else NOTHING
    transfer = figures.seconds(others * count, others * count * segment)
    seconds = figures.pipelined(transfer, count * figures.computing(adding), count)
    return Cost(
        seconds=figures.latency + seconds + figures.computing(joining),
        rounds=count,
        messages=others * count,
        bytes_sent=others * count * segment,
    )


def _vector_bytes(shape: Shape) -> Callable[[int], int]:
    """Bytes of so many vectors."""
    return lambda vectors: vectors * shape.frame_bytes(shape.nnz, shape.length)
