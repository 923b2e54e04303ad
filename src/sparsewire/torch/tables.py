"""The mean of embeddings' sparse gradients: rows that were touched, and nothing is lost.

Few ranks tell each other their rows, and each adds them up, in rank order.  With many ranks that would be the
same rows again and again; then entries are summed by owners, as those of a vector are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from sparsewire.communicator import Communicator
from sparsewire.convert import numpy_to_tensor, tensor_to_numpy
from sparsewire.request import Request
from sparsewire.torch.device import HALF
from sparsewire.vector import Array

__all__ = ["Table", "mean_of_table"]

FEW_RANKS = 8


class Table(ABC):
    """A sparse gradient on its way."""

    request: Request

    @abstractmethod
    def mean(self) -> torch.Tensor:
        """Everybody's, coalesced, once the request has ended."""


def mean_of_table(comm: Communicator, gradient: torch.Tensor) -> Table:
    """Start the exchange of a gradient whose rows are sparse, coalesced or not."""
    return ByRows(comm, gradient) if comm.size <= FEW_RANKS else ByEntries(comm, gradient)


class ByRows(Table):
    """Everybody's rows, added up here."""

    def __init__(self, comm: Communicator, gradient: torch.Tensor) -> None:
        mine = gradient.coalesce()
        values = tensor_to_numpy(mine.values().reshape(-1))
        self._like, self._size, self._dtype = gradient, comm.size, values.dtype
        self.request = comm.iallgather(_packed(tensor_to_numpy(mine.indices()[0]), values))

    def mean(self) -> torch.Tensor:
        like, shape = self._like, self._like.shape[1:]
        of_ranks = [self._unpacked(words) for words in self.request.result()]
        touched, places = torch.cat([rows for rows, _ in of_ranks]).unique(return_inverse=True)
        total = torch.zeros(len(touched), *shape, dtype=torch.float32 if like.dtype in HALF else like.dtype)
        starts = places.split([len(rows) for rows, _ in of_ranks])
        for here, (_, values) in zip(starts, of_ranks, strict=True):
            total.index_add_(0, here, values.to(total.dtype).view(-1, *shape))
        return torch.sparse_coo_tensor(
            touched[None],
            total.div_(self._size).to(like.dtype),
            like.shape,
            device=like.device,
            is_coalesced=True,
            check_invariants=False,
        )

    def _unpacked(self, words: Array) -> tuple[torch.Tensor, torch.Tensor]:
        row_bytes = 8 + self._like.shape[1:].numel() * self._dtype.itemsize
        data = words.view(np.uint8)
        count = len(data) // row_bytes
        values = data[8 * count : row_bytes * count].view(self._dtype)
        return torch.from_numpy(data[: 8 * count].view(np.int64)), numpy_to_tensor(values)


class ByEntries(Table):
    """Sums of entries, each made by one rank."""

    def __init__(self, comm: Communicator, gradient: torch.Tensor) -> None:
        self.request = comm.iallreduce(gradient, algorithm="balanced", op="avg")

    def mean(self) -> torch.Tensor:
        mean: torch.Tensor = self.request.result()
        return mean


def _packed(rows: Array, values: Array) -> Array:
    """The numbers of rows and their values in one message."""
    words = np.zeros(-(-(rows.nbytes + values.nbytes) // 8), np.int64)
    data = words.view(np.uint8)
    data[: rows.nbytes] = rows.view(np.uint8)
    data[rows.nbytes : rows.nbytes + values.nbytes] = values.view(np.uint8)
    return words
