"""The touched rows of an embedding with ``sparse=True``: nothing is lost, and nothing is kept.

Few ranks gather each other's rows, and each adds them up in rank order.  Many ranks would gather the same
rows again and again, so there the entries are summed, as those of a vector are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sparsewire.communicator.convert import numpy_to_tensor, tensor_to_numpy
from sparsewire.torch.codes import Code, Sent
from sparsewire.torch.device import HALF
from sparsewire.vector import Array

__all__ = ["RowEntries", "Rows", "TableCode"]


class TableCode(Code):
    """One step of one table; its gradient is a sparse tensor, coalesced or not, and so is the mean."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def kept(self) -> dict[str, torch.Tensor]:
        return {}

    def give_back(self, sent: Sent) -> None:
        """Nothing: the gradient of a step that fails is lost, as it is with DDP."""


class RowEntries(TableCode):
    """The entries of the rows; the answer of the exchange is their mean."""

    def send(self, gradients: Sequence[torch.Tensor]) -> Sent:
        [gradient] = gradients
        return Sent(gradient, self._name)

    def receive(self, answer: Any, sent: Sent) -> torch.Tensor:
        mean: torch.Tensor = answer
        return mean


class Rows(TableCode):
    """The numbers and values of the rows; the answer of the exchange is everybody's, in rank order."""

    def send(self, gradients: Sequence[torch.Tensor]) -> Sent:
        [self._gradient] = gradients
        mine = self._gradient.coalesce()
        values = tensor_to_numpy(mine.values().reshape(-1))
        self._dtype = values.dtype
        return Sent(_packed(tensor_to_numpy(mine.indices()[0]), values), self._name)

    def receive(self, answer: Any, sent: Sent) -> torch.Tensor:
        like, shape = self._gradient, self._gradient.shape[1:]
        of_ranks = [self._unpacked(words) for words in answer]
        touched, places = torch.cat([rows for rows, _ in of_ranks]).unique(return_inverse=True)
        total = torch.zeros(len(touched), *shape, dtype=torch.float32 if like.dtype in HALF else like.dtype)
        places_of_ranks = places.split([len(rows) for rows, _ in of_ranks])
        for here, (_, values) in zip(places_of_ranks, of_ranks, strict=True):
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
        """The numbers of a rank's rows, and their values, from its message."""
        row_bytes = 8 + self._gradient.shape[1:].numel() * self._dtype.itemsize
        data = words.view(np.uint8)
        count = len(data) // row_bytes
        values = data[8 * count : row_bytes * count].view(self._dtype)
        return torch.from_numpy(data[: 8 * count].view(np.int64)), numpy_to_tensor(values)


def _packed(rows: Array, values: Array) -> Array:
    """The numbers of rows and their values in one message of whole words."""
    words = np.zeros(-(-(rows.nbytes + values.nbytes) // 8), np.int64)
    data = words.view(np.uint8)
    data[: rows.nbytes] = rows.view(np.uint8)
    data[rows.nbytes : rows.nbytes + values.nbytes] = values.view(np.uint8)
    return words
