"""The bandwidth-optimal dense ring: the textbook baseline.

    reduce     P-1 steps: take the partial sum of one range from the left, add one's own, pass it to the right
    gather     P-1 steps: take a finished range from the left, pass it to the right

A range travels in segments, so that one is being added up while the next is on its way.  Per rank: 2(P-1)
ranges of 1/P of the vector, whatever is in them.  Exact; the same bits on every rank, because each range is
added up once around the ring.

Described in: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009.
"""

from __future__ import annotations

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import ring, segment_count
from sparsewire.cost import Cost, CostFigures, Shape
from sparsewire.reduction import concat
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector
from sparsewire.work import Work

__all__ = ["cost", "dense_ring"]

# Long enough that Python's time for a message does not matter; short enough that adding one overlaps with
# the transfer of the next.
SEGMENT_BYTES = 1 << 21


def dense_ring(
    rank: int, size: int, vec: SparseVector, context: Context = PLAIN, segment_bytes: int = SEGMENT_BYTES
) -> Steps[SparseVector]:
    count = segment_count(vec.length / size * vec.dtype.itemsize, segment_bytes, vec.length)
    pieces = [piece.split_evenly(count) for piece in vec.as_dense().split_evenly(size)]
    return concat((yield from ring(rank, size, pieces, context.op.dense)))


def cost(figures: CostFigures, shape: Shape, segment_bytes: int = SEGMENT_BYTES) -> Cost:
    spreading = figures.computing(shape.spreading(shape.nnz, shape.length))
    if shape.size == 1:
        return Cost(spreading, 0, 0, 0)
    span, steps = shape.length / shape.size, shape.size - 1
    count = segment_count(span * shape.value_bytes, segment_bytes, shape.length)
    segment_bytes = shape.dense_frame_bytes(span / count)
    moving = figures.seconds(1, segment_bytes)
    adding = figures.computing(Work(values=2 * span / count))
    # A step begins when its first segment has arrived and its sender has finished the step before.  It takes
    # the slower of moving and adding for all segments, and the faster for one.
    first = figures.latency + moving + adding
    if adding <= moving:
        summing = steps * max(first, count * moving) + count * moving
    else:
        summing = first + (steps - 1) * max(first, count * adding) + (count - 1) * adding + moving
    passing_on = (steps - 1) * max(figures.latency + moving, count * moving) + figures.latency
    exposed = figures.exposed(steps * count * min(moving, adding), count)
    joining = figures.computing(Work(values=shape.length))
    return Cost(
        seconds=spreading + summing + passing_on + exposed + joining,
        rounds=2 * steps * count,
        messages=2 * steps * count,
        bytes_sent=2 * steps * count * segment_bytes,
    )
