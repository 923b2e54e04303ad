"""The bandwidth-optimal dense ring: the textbook baseline.

    reduce     P-1 steps: take the partial sum of one range from the left, add one's own, pass it to the right
    gather     P-1 steps: take a finished range from the left, pass it to the right

A range travels in segments, so that one is being added up while the next is on its way.  Per rank: 2(P-1)
ranges of 1/P of the vector, whatever is in them.  Exact; the same bits on every rank, because each range is
added up once around the ring.

Described in: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009.
"""

from __future__ import annotations

from sparsewire.algorithms._patterns import segment_count
from sparsewire.model import Cost, Network, Shape
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector, concat, dense_sum

__all__ = ["cost", "dense_ring"]

# Long enough that what Python spends on a message does not matter, short enough to overlap with the next.
SEGMENT_BYTES = 1 << 20


def dense_ring(
    rank: int, size: int, vec: SparseVector, segment_bytes: int = SEGMENT_BYTES
) -> Steps[SparseVector]:
    count = segment_count(vec.length / size * vec.dtype.itemsize, segment_bytes, vec.length)
    pieces = [piece.cut(count) for piece in vec.as_dense().cut(size)]
    left, right = (rank - 1) % size, (rank + 1) % size
    last = 2 * (size - 1) - 1
    sends = [Send(right, segment) for segment in pieces[rank]] if size > 1 else []
    for step in range(last + 1):
        taken = pieces[(rank - step - 1) % size]
        for place, mine in enumerate(taken):
            [got] = yield [*sends, Recv(left)]
            taken[place] = dense_sum([got, mine]) if step < size - 1 else got
            sends = [Send(right, taken[place])] if step < last else []
    return concat([segment for piece in pieces for segment in piece])


def cost(network: Network, shape: Shape, segment_bytes: int = SEGMENT_BYTES) -> Cost:
    span, steps = shape.length / shape.size, 2 * (shape.size - 1)
    if not steps:
        return network.cost([])
    count = segment_count(span * shape.value_bytes, segment_bytes, shape.length)
    segment_bytes = shape.dense_frame_bytes(span / count)
    busy = network.seconds(1, segment_bytes)
    # A step begins when its first segment has come, and its sender is through with the step before.
    pace = max(network.latency + busy, count * busy)
    seconds = (steps - 1) * pace + network.latency + count * busy
    return Cost(seconds, steps * count, steps * count, steps * count * segment_bytes)
