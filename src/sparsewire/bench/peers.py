"""The peers: what torch.distributed users have today, on the same input and the same wires.

gloo-dense    all_reduce of the dense tensor
gloo-sparse   all_reduce of the coalesced sparse COO tensor
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from sparsewire.bench.cases import Indices, Values
from sparsewire.bench.timing import Contender, Moved

__all__ = ["LOOPBACK", "PEERS", "contender", "gloo", "reason_to_skip"]

PEERS = ("gloo-dense", "gloo-sparse")
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def reason_to_skip(peer: str, dtype: str) -> str | None:
    """Why a peer cannot run here, or None; torch is not imported for it."""
    if importlib.util.find_spec("torch") is None:
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


def contender(peer: str, length: int, indices: Indices, values: Values) -> Contender:
    """The peer of that name with this rank's input."""
    if peer == "gloo-dense":
        return GlooDense(length, indices, values)
    return GlooSparse(length, indices, values)


class GlooDense:
    name = "gloo-dense"

    def __init__(self, length: int, indices: Indices, values: Values) -> None:
        import torch

        self._dtype = values.dtype
        self._input = torch.zeros(length, dtype=_to_torch(values).dtype)
        self._input[torch.from_numpy(indices)] = _to_torch(values)
        self._tensor = self._input.clone()

    def prepare(self) -> None:
        self._tensor.copy_(self._input)  # all_reduce works in place

    def run(self) -> None:
        import torch.distributed as dist

        dist.all_reduce(self._tensor)

    def moved(self) -> Moved:
        return Moved()

    def results(self) -> Iterable[Values]:
        yield _to_numpy(self._tensor, self._dtype)


class GlooSparse:
    name = "gloo-sparse"

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
        import torch.distributed as dist

        dist.all_reduce(self._tensor)

    def moved(self) -> Moved:
        return Moved()

    def results(self) -> Iterable[Values]:
        yield _to_numpy(self._tensor.to_dense(), self._dtype)


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
