"""The peers: what users of torch.distributed and of MPI have today, on the same input and the same wires.

gloo-dense       all_reduce of the dense tensor
gloo-sparse      all_reduce of the coalesced sparse COO tensor
mpi-dense        MPI_Allreduce of the dense array
mpi-same-bytes   MPI_Allreduce of a dense array with as many bytes as one rank's sparse vector
barrier          our own barrier: what any call costs, whatever it moves

The last two do not add up the case's vectors; they say how much of a small call's time is not for its data.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from sparsewire.bench.cases import Indices, Values
from sparsewire.bench.timing import Contender, Moved
from sparsewire.communicator import Communicator

__all__ = [
    "LOOPBACK",
    "PEERS",
    "allreduce_in_place",
    "contender",
    "gloo",
    "gloo_allreduce",
    "mpi_allreduce",
    "reason_to_skip",
]

# Driver -> its peers.
PEERS = {
    "tcp": ("gloo-dense", "gloo-sparse"),
    "mpi": ("mpi-dense", "mpi-same-bytes", "barrier"),
}
INDEX_BYTES = 4
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def reason_to_skip(peer: str, dtype: str) -> str | None:
    """Why a peer cannot run here, or None; torch is not imported for it."""
    if peer == "mpi-dense" and dtype == "bfloat16":
        return "MPI has no sum of bfloat16"
    if peer in PEERS["tcp"] and importlib.util.find_spec("torch") is None:
        return "torch is not installed: pip install 'sparsewire[torch]'"
    if peer == "gloo-sparse" and dtype == "float16":
        return "gloo has no sparse sum of float16"  # it fails in the middle and breaks the process group
    return None


@contextmanager
def gloo(rank: int, size: int, master: tuple[str, int], interface: str, timeout_s: float) -> Iterator[None]:
    """A gloo process group of its own, beside ours, for the length of the block."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = interface
    timeout = timedelta(seconds=timeout_s)
    store = dist.TCPStore(*master, size, is_master=rank == 0, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()  # without it a rank may die at exit


def contender(peer: str, comm: Communicator, length: int, indices: Indices, values: Values) -> Contender:
    """The peer of that name with this rank's input."""
    if peer == "gloo-dense":
        return GlooDense(length, indices, values)
    if peer == "gloo-sparse":
        return GlooSparse(length, indices, values)
    if peer == "mpi-dense":
        return MpiDense(length, indices, values)
    if peer == "mpi-same-bytes":
        return MpiSameBytes(len(indices) * (INDEX_BYTES + values.dtype.itemsize))
    return Barrier(comm)


def mpi_allreduce(array: Values) -> None:
    """In place: with MPICH on shared memory that takes two thirds of the time of two buffers."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)


def gloo_allreduce(tensor: Any) -> None:
    """In place; dense or sparse."""
    import torch.distributed as dist

    dist.all_reduce(tensor)


def allreduce_in_place(peer: str) -> Callable[[Values], Any]:
    """What "gloo-dense" or "mpi-dense" does to a dense array."""
    if peer == "mpi-dense":
        return mpi_allreduce
    import torch

    return lambda array: gloo_allreduce(torch.from_numpy(array))


class GlooDense:
    name = "gloo-dense"
    precision = "exact"

    def __init__(self, length: int, indices: Indices, values: Values) -> None:
        import torch

        self._dtype = values.dtype
        self._input = torch.zeros(length, dtype=_to_torch(values).dtype)
        self._input[torch.from_numpy(indices)] = _to_torch(values)
        self._tensor = self._input.clone()

    def prepare(self) -> None:
        self._tensor.copy_(self._input)  # all_reduce works in place

    def run(self) -> None:
        gloo_allreduce(self._tensor)

    def moved(self) -> Moved:
        return Moved()

    def results(self) -> Iterable[Values]:
        yield _to_numpy(self._tensor, self._dtype)


class GlooSparse:
    name = "gloo-sparse"
    precision = "exact"

    def __init__(self, length: int, indices: Indices, values: Values) -> None:
        import torch

        self._dtype = values.dtype
        self._input = torch.sparse_coo_tensor(
            torch.from_numpy(indices)[None, :],
            _to_torch(values),
            (length,),
            is_coalesced=True,
            check_invariants=False,
        )
        self._tensor = self._input.clone()

    def prepare(self) -> None:
        self._tensor = self._input.clone()

    def run(self) -> None:
        gloo_allreduce(self._tensor)

    def moved(self) -> Moved:
        return Moved()

    def results(self) -> Iterable[Values]:
        yield _to_numpy(self._tensor.to_dense(), self._dtype)


class MpiDense:
    name = "mpi-dense"
    precision = "exact"

    def __init__(self, length: int, indices: Indices, values: Values) -> None:
        self._input = np.zeros(length, values.dtype)
        self._input[indices] = values
        self._total = self._input.copy()

    def prepare(self) -> None:
        np.copyto(self._total, self._input)

    def run(self) -> None:
        mpi_allreduce(self._total)

    def moved(self) -> Moved:
        return Moved()

    def results(self) -> Iterable[Values]:
        yield self._total


class MpiSameBytes:
    name = "mpi-same-bytes"
    precision = "exact"

    def __init__(self, nbytes: int) -> None:
        self._total = np.zeros(-(-nbytes // 4), np.float32)

    def prepare(self) -> None:
        """Zeros stay zeros."""

    def run(self) -> None:
        mpi_allreduce(self._total)

    def moved(self) -> Moved:
        return Moved()

    def results(self) -> Iterable[Values]:
        """Nothing that could be compared with the case's sum."""
        return ()


class Barrier:
    name = "barrier"
    precision = "exact"

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def prepare(self) -> None:
        """There is no input."""

    def run(self) -> None:
        self._comm.barrier()

    def moved(self) -> Moved:
        last = self._comm.last
        assert last is not None
        return Moved(last.bytes_sent, last.bytes_received, last.messages_sent)

    def results(self) -> Iterable[Values]:
        """Nothing that could be compared with the case's sum."""
        return ()


def _to_torch(values: Values) -> Any:
    import torch

    if values.dtype.name == "bfloat16":  # torch knows ml_dtypes' bfloat16 by its bits only
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def _to_numpy(tensor: Any, dtype: np.dtype[Any]) -> Values:
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16)).view(dtype)
    return np.asarray(tensor)
