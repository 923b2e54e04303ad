"""All of the gradient, or its entries that are not zero: nothing is lost, and no residual is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sparsewire.torch.codes import Code, Sent
from sparsewire.torch.device import HALF, Device
from sparsewire.torch.group import Group
from sparsewire.vector import SparseVector

__all__ = ["MEAN_VELOCITY", "Exact"]

MEAN_VELOCITY = "mean_velocity"  # what is kept under this name is the same on all ranks


class Exact(Code):
    """The sum of everybody's gradients, divided by the number of ranks.

    With momentum, the mean is replaced by a velocity: momentum * velocity + mean.  Parameters that travel
    densely beside others with momentum correction need it, because the optimiser then has no momentum.
    """

    def __init__(self, group: Group, device: Device, ranks: int, momentum: float = 0.0) -> None:
        super().__init__()
        self._group, self._device, self._ranks, self._momentum = group, device, ranks, momentum
        self._is_full = group.is_dense  # was the last sum dense?
        self._velocity = np.zeros(group.length if momentum else 0, device.residual_dtype(group.dtype))
        # The sum of half types could exceed their range where the mean does not.
        self._divides_first = group.dtype in HALF

    def kept(self) -> dict[str, torch.Tensor]:
        return {MEAN_VELOCITY: torch.from_numpy(self._velocity)} if self._momentum else {}

    def send(self, gradients: Sequence[torch.Tensor]) -> Sent:
        if self._divides_first:
            for gradient in gradients:
                gradient.div_(self._ranks)
        if self._group.is_dense:
            vector = self._device.all_values(gradients)
        else:
            vector = self._device.nonzero_entries(gradients, self._group.offsets)
        return Sent(vector, self._group.names[0], self._is_full)

    def receive(self, answer: Any, sent: Sent) -> SparseVector:
        total: SparseVector = answer
        self._is_full = self._group.is_dense or total.is_dense
        mean = total if self._divides_first else total.divided_by(self._ranks)
        if not self._momentum or not np.isfinite(mean.values).all():
            return mean
        self._velocity *= self._momentum
        self._velocity += mean.to_dense()
        return SparseVector.from_dense(self._velocity)

    def give_back(self, sent: Sent) -> None:
        """Nothing: the gradients of a step that fails are lost, as they are with DDP."""
