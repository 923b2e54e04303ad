"""OmniReduce: aggregators add up what is not zero, by blocks or by entries, while more is on its way.

    workers      send what they have to aggregators, in messages of which several are on their way at once
    aggregators  send each sum to every worker as soon as nobody can have anything more to add

Every rank aggregates a share (colocated), or ranks of their own do (dedicated).  Shares are dealt out in
small parts, so a hot region of the vector is everybody's.  ``blocks`` is the form for dense vectors most of
whose blocks are zero, ``pairs`` the one for sparse vectors.  Per rank: (P-1)/P of its vector and of the sum,
sent and received; with aggregators of their own, all of its vector is sent and all of the sum received, each
in one direction of the link.  Exact; the same bits on every rank and on every run, because what is complete
is added up in rank order.

Paper: Fei et al., Efficient sparse collective communication and its application to accelerate distributed
deep learning, SIGCOMM'21.
"""

from sparsewire.algorithms.omnireduce.cost import best_block, cost, tune
from sparsewire.algorithms.omnireduce.script import OmniReduce, aggregate, omnireduce

__all__ = ["OmniReduce", "aggregate", "best_block", "cost", "omnireduce", "tune"]
