"""The bandwidth-optimal dense ring: the textbook baseline.

    reduce     P-1 rounds: each rank passes a partial sum of one range to its right
    gather     P-1 rounds: each rank passes a finished range to its right

Per rank: 2(P-1) messages and 2(P-1)/P of the vector, whatever is in it.  Exact; the same bits on every
rank, because each range is added up once around the ring.

Described in: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009.
"""

from __future__ import annotations

from sparsewire.model import Cost, Network, Round, Shape
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector, concat, dense_sum, even_cuts

__all__ = ["cost", "dense_ring"]


def dense_ring(rank: int, size: int, vec: SparseVector) -> Steps[SparseVector]:
    pieces = vec.as_dense().split(even_cuts(vec.length, size))
    left, right = (rank - 1) % size, (rank + 1) % size
    for step in range(size - 1):
        given, taken = (rank - step) % size, (rank - step - 1) % size
        [partial] = yield [Send(right, pieces[given]), Recv(left)]
        pieces[taken] = dense_sum([partial, pieces[taken]])
    for step in range(size - 1):
        given, taken = (rank + 1 - step) % size, (rank - step) % size
        [pieces[taken]] = yield [Send(right, pieces[given]), Recv(left)]
    return concat(pieces)


def cost(network: Network, shape: Shape) -> Cost:
    piece = shape.dense_frame_bytes(shape.length / shape.size)
    return network.cost([Round(1, piece)] * (2 * (shape.size - 1)))
