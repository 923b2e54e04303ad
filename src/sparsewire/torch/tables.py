"""The mean of embeddings' sparse gradients: rows that were touched, and nothing is lost.

Few ranks tell each other their rows, and each adds them up, in rank order.  With many ranks that would be the
same rows again and again; then entries are summed by owners, as those of a vector are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from sparsewire.communicator import Communicator
from sparsewire.convert import numpy_to_tensor, tensor_to_numpy
from sparsewire.request import Request
from sparsewire.torch.device import HALF

__all__ = ["Table", "mean_of_table"]

FEW_RANKS = 8


class Table(ABC):
    """A sparse gradient on its way."""

    requests: Sequence[Request]

    @abstractmethod
    def mean(self) -> torch.Tensor:
        """Everybody's, coalesced, once all requests have ended."""


def mean_of_table(comm: Communicator, gradient: torch.Tensor) -> Table:
    """Start the exchange of a gradient whose rows are sparse, coalesced or not."""
    return ByRows(comm, gradient) if comm.size <= FEW_RANKS else ByEntries(comm, gradient)


class ByRows(Table):
    """Everybody's rows, added up here."""

    def __init__(self, comm: Communicator, gradient: torch.Tensor) -> None:
        mine = gradient.coalesce()
        self._like, self._size = gradient, comm.size
        rows, values = mine.indices()[0], mine.values().reshape(-1)
        self.requests = [comm.iallgather(tensor_to_numpy(part)) for part in (rows, values)]

    def mean(self) -> torch.Tensor:
        of_ranks, values = (request.result() for request in self.requests)
        like, width = self._like, self._like.shape[1:]
        touched, places = torch.cat([torch.from_numpy(rows) for rows in of_ranks]).unique(return_inverse=True)
        dtype = torch.float32 if like.dtype in HALF else like.dtype
        total = torch.zeros(len(touched), *width, dtype=dtype)
        for here, of_rank in zip(places.split([len(rows) for rows in of_ranks]), values, strict=True):
            total.index_add_(0, here, numpy_to_tensor(of_rank).to(dtype).view(-1, *width))
        mean = total.div_(self._size).to(like.dtype)
        return torch.sparse_coo_tensor(
            touched[None], mean, like.shape, device=like.device, is_coalesced=True, check_invariants=False
        )


class ByEntries(Table):
    """Sums of entries, each made by one rank."""

    def __init__(self, comm: Communicator, gradient: torch.Tensor) -> None:
        self.requests = [comm.iallreduce(gradient, algorithm="balanced", op="avg")]

    def mean(self) -> torch.Tensor:
        mean: torch.Tensor = self.requests[0].result()
        return mean
