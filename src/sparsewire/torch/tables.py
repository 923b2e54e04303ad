"""The mean of embeddings' sparse gradients: rows that were touched, and nothing is lost.

Few ranks tell each other their rows, and each adds them up, in rank order.  With many ranks that would be the
same rows again and again; then entries are summed by owners, as those of a vector are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

from sparsewire.communicator import Communicator
from sparsewire.communicator.convert import numpy_to_tensor, tensor_to_numpy
from sparsewire.communicator.request import Request
from sparsewire.torch.device import HALF
from sparsewire.vector import Array

__all__ = ["Table", "table_for"]

FEW_RANKS = 8


class Table(ABC):
    """One step of a table's gradient, whose rows are sparse, coalesced or not."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self._gradient = gradient

    @abstractmethod
    def start(self, comm: Communicator) -> Request:
        """The exchange, on its way."""

    @abstractmethod
    def mean(self, exchanged: Any) -> torch.Tensor:
        """Everybody's, coalesced, from what the exchange brought."""


def table_for(size: int, gradient: torch.Tensor) -> Table:
    """The better way for so many ranks."""
    return ByRows(gradient) if size <= FEW_RANKS else ByEntries(gradient)


class ByRows(Table):
    """Everybody's rows, added up here."""

    def start(self, comm: Communicator) -> Request:
        mine = self._gradient.coalesce()
        values = tensor_to_numpy(mine.values().reshape(-1))
        self._dtype = values.dtype
        return comm.iallgather(_packed(tensor_to_numpy(mine.indices()[0]), values))

    def mean(self, exchanged: Any) -> torch.Tensor:
        like, shape = self._gradient, self._gradient.shape[1:]
        of_ranks = [self._unpacked(words) for words in exchanged]
        touched, places = torch.cat([rows for rows, _ in of_ranks]).unique(return_inverse=True)
        total = torch.zeros(len(touched), *shape, dtype=torch.float32 if like.dtype in HALF else like.dtype)
        starts = places.split([len(rows) for rows, _ in of_ranks])
        for here, (_, values) in zip(starts, of_ranks, strict=True):
            total.index_add_(0, here, values.to(total.dtype).view(-1, *shape))
        return torch.sparse_coo_tensor(
            touched[None],
            total.div_(len(of_ranks)).to(like.dtype),
            like.shape,
            device=like.device,
            is_coalesced=True,
            check_invariants=False,
        )

    def _unpacked(self, words: Array) -> tuple[torch.Tensor, torch.Tensor]:
        row_bytes = 8 + self._gradient.shape[1:].numel() * self._dtype.itemsize
        data = words.view(np.uint8)
        count = len(data) // row_bytes
        values = data[8 * count : row_bytes * count].view(self._dtype)
        return torch.from_numpy(data[: 8 * count].view(np.int64)), numpy_to_tensor(values)


class ByEntries(Table):
    """Sums of entries, each made by one rank."""

    def start(self, comm: Communicator) -> Request:
        return comm.iallreduce(self._gradient, algorithm="balanced", op="avg")

    def mean(self, exchanged: Any) -> torch.Tensor:
        mean: torch.Tensor = exchanged
        return mean


def _packed(rows: Array, values: Array) -> Array:
    """The numbers of rows and their values in one message."""
    words = np.zeros(-(-(rows.nbytes + values.nbytes) // 8), np.int64)
    data = words.view(np.uint8)
    data[: rows.nbytes] = rows.view(np.uint8)
    data[rows.nbytes : rows.nbytes + values.nbytes] = values.view(np.uint8)
    return words
