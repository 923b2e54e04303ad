"""Sparse collective communication: a sum of vectors that are mostly zero costs what its non-zeros cost.

>>> import numpy as np, sparsewire as sw
>>> comm = sw.init()
>>> comm.allreduce(np.array([0.0, 3.0], dtype="float32"))
array([0., 3.], dtype=float32)
"""

from importlib.metadata import version as _version

from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS, OmniReduce, Regions, TopkSum
from sparsewire.coding.rounding import Feedback
from sparsewire.coding.values import QSGD
from sparsewire.communicator import Communicator, Last
from sparsewire.communicator.join import init, join
from sparsewire.communicator.request import Request
from sparsewire.drivers.tcp.protection import TLS
from sparsewire.errors import (
    CallMismatchError,
    CollectiveTimeout,
    InputError,
    MissingExtraError,
    PeerLostError,
    SparsewireError,
    TransportError,
    WireError,
)
from sparsewire.sync import METHODS, Method, Sync, SyncState
from sparsewire.vector import SparseVector

__all__ = [
    "ALGORITHMS",
    "METHODS",
    "QSGD",
    "TLS",
    "TOPK_ALGORITHMS",
    "CallMismatchError",
    "CollectiveTimeout",
    "Communicator",
    "Feedback",
    "InputError",
    "Last",
    "Method",
    "MissingExtraError",
    "OmniReduce",
    "PeerLostError",
    "Regions",
    "Request",
    "SparseVector",
    "SparsewireError",
    "Sync",
    "SyncState",
    "TopkSum",
    "TransportError",
    "WireError",
    "init",
    "join",
]

__version__ = _version("sparsewire")
