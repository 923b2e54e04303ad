"""The peers: what users of torch.distributed and of MPI have today, on the same input and the same links.

gloo-dense       all_reduce of the dense tensor
gloo-sparse      all_reduce of the coalesced sparse COO tensor
mpi-dense        MPI_Allreduce of the dense array
mpi-same-bytes   MPI_Allreduce of a dense array with as many bytes as one rank's sparse vector
barrier          our own barrier: what any call costs, whatever it moves

The last two do not add up the case's vectors: they show how much of a small call's time its data do not take.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from sparsewire.bench.harness.clock import Contender, Moved
from sparsewire.bench.harness.contenders import choose_names, moved_by_last_call
from sparsewire.bench.harness.draws import Indices
from sparsewire.bench.harness.problem import Values
from sparsewire.communicator import Communicator
from sparsewire.communicator.convert import numpy_to_tensor, tensor_to_numpy
from sparsewire.errors import InputError

# Driver -> its peers; the first is the dense sum that steps and linear models are compared with.
PEERS = {
    "tcp": ("gloo-dense", "gloo-sparse"),
    "mpi": ("mpi-dense", "mpi-same-bytes", "barrier"),
}
PEER_NAMES = tuple(name for names in PEERS.values() for name in names)
INDEX_BYTES = 4
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def reason_to_skip(peer: str, dtype: str) -> str | None:
    """Why a peer cannot run here, or None; torch is not imported to find out."""
    if peer == "mpi-dense" and dtype == "bfloat16":
        return "MPI has no sum of bfloat16"
    if peer in PEERS["tcp"] and importlib.util.find_spec("torch") is None:
        return "torch is not installed: pip install 'sparsewire[torch]'"
    if peer == "gloo-sparse" and dtype == "float16":
        return "gloo has no sparse sum of float16"  # gloo fails in the middle and breaks the process group
    return None


def choose_peers(text: str, driver: str) -> tuple[str, ...]:
    """The names in ``a,b,c``; "all" is every peer of the driver."""
    known = PEERS.get(driver, ())
    return known if text == "all" else tuple(choose_names(text, "peer", known))


def dense_peer(driver: str) -> str:
    """The dense sum that users of a driver have today."""
    if driver not in PEERS:
        raise InputError(f"unknown driver {driver!r}; known are {', '.join(PEERS)}")
    return PEERS[driver][0]


@contextmanager
def gloo(rank: int, size: int, master: tuple[str, int], interface: str, timeout_s: float) -> Iterator[None]:
    """The same ranks as torch's default process group, within a ``with`` statement."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = interface
    timeout = timedelta(seconds=timeout_s)
    store = dist.TCPStore(*master, size, is_master=rank == 0, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()  # without this call a rank may die at exit


def contender(peer: str, comm: Communicator, length: int, indices: Indices, values: Values) -> Contender:
    """The peer of that name with this rank's input."""
    if peer == "barrier":
        return Barrier(comm)
    if peer == "gloo-sparse":
        return GlooSparse(length, indices, values)
    if peer == "mpi-same-bytes":
        nbytes = len(indices) * (INDEX_BYTES + values.dtype.itemsize)
        return DensePeer(peer, np.zeros(-(-nbytes // 4), np.float32), is_sum=False)
    dense = np.zeros(length, values.dtype)
    dense[indices] = values
    return DensePeer(peer, dense)


def gloo_allreduce(tensor: Any) -> None:
    """Sum in place a tensor that is dense or sparse."""
    import torch.distributed as dist

    dist.all_reduce(tensor)


def allreduce_in_place(peer: str) -> Callable[[Values], Any]:
    """A function that sums a dense array in place, as the driver of that peer does."""
    if peer in PEERS["tcp"]:
        return lambda array: gloo_allreduce(numpy_to_tensor(array))
    from mpi4py import MPI

    # With MPICH on shared memory this takes two thirds of the time that two buffers take.
    return lambda array: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)


class DensePeer(Contender):
    """A dense array that is summed in place; ``is_sum`` says whether it is the case's vector."""

    def __init__(self, name: str, array: Values, *, is_sum: bool = True) -> None:
        self.name = name
        self._input, self._total, self._is_sum = array, array.copy(), is_sum
        self._allreduce = allreduce_in_place(name)

    def prepare(self) -> None:
        np.copyto(self._total, self._input)

    def run(self) -> None:
        self._allreduce(self._total)

    def results(self) -> Iterable[Values]:
        return [self._total] if self._is_sum else []


class GlooSparse(Contender):
    name = "gloo-sparse"

    def __init__(self, length: int, indices: Indices, values: Values) -> None:
        import torch

        self._input = torch.sparse_coo_tensor(
            torch.from_numpy(indices)[None, :],
            numpy_to_tensor(values),
            (length,),
            is_coalesced=True,
            check_invariants=False,
        )
        self._tensor = self._input.clone()

    def prepare(self) -> None:
        self._tensor = self._input.clone()

    def run(self) -> None:
        gloo_allreduce(self._tensor)

    def results(self) -> Iterable[Values]:
        yield tensor_to_numpy(self._tensor.to_dense())


class Barrier(Contender):
    name = "barrier"

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def run(self) -> None:
        self._comm.barrier()

    def moved(self) -> Moved:
        return replace(moved_by_last_call(self._comm), algorithm=None)
