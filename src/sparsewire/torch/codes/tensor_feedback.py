"""Error feedback by torch operations, for residuals that are tensors on a device.

It selects the same entries as the kernels do: the lowest index first among equals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import precision_of
from sparsewire.communicator.convert import numpy_to_tensor
from sparsewire.compress import BlockTopK, ErrorFeedback, TopK
from sparsewire.compress.feedback import FeedbackState
from sparsewire.compress.schedule import count_of, density_at
from sparsewire.compress.state import StepState
from sparsewire.errors import InputError
from sparsewire.torch.device import positions_of, vector_from
from sparsewire.vector import SparseVector

__all__ = ["TensorFeedback"]


@dataclass(frozen=True)
class TensorFeedback(ErrorFeedback):
    """Error feedback whose residual is a tensor on a device."""

    device: Any = "cpu"
    precision: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, TopK | BlockTopK):
            raise InputError(
                f"{type(self.inner).__name__} selects on the CPU only; topk and block_topk do not"
            )

    def init(self, length: int, dtype: Any = "float32") -> FeedbackState:
        def zeros() -> Any:
            return torch.zeros(length, dtype=getattr(torch, str(dtype)), device=self.device)

        return FeedbackState(zeros(), zeros() if self.momentum else None, StepState())

    def add(self, gradient: Any, state: FeedbackState) -> tuple[SparseVector, FeedbackState]:
        start = 0
        residual: Any = state.residual
        velocity: Any = state.velocity
        for piece in gradient:
            here = slice(start, start + len(piece))
            if velocity is not None:
                piece = velocity[here].mul_(self.momentum).add_(piece)
            residual[here] += piece
            start = here.stop
        assert isinstance(state.inner, StepState)
        positions = self._selected_positions(residual, state.inner.step)
        selected = vector_from(len(residual), positions, residual[positions])
        for tensor in (residual, velocity):
            if tensor is not None:
                tensor[positions] = 0
        return self._rounded(selected, state), replace(state, inner=StepState(state.inner.step + 1))

    def give_back(self, entries: SparseVector, state: FeedbackState) -> FeedbackState:
        residual: Any = state.residual
        positions = positions_of(entries.as_sparse(), residual.device)
        residual[positions] += numpy_to_tensor(entries.as_sparse().values).to(residual.device)
        return state

    def rounding(self, state: FeedbackState) -> None:
        """None: the rounding error of a rank's own values is given back before they are sent.

        That of sums is lost.  So is what QSGD loses once more, where the exchange begins buckets elsewhere.
        """

    def _selected_positions(self, residual: torch.Tensor, step: int) -> torch.Tensor:
        """The positions that the inner compressor would take, in order."""
        inner: Any = self.inner
        density = density_at(inner.density, step)
        if isinstance(inner, TopK):
            return _largest(residual.abs(), count_of(len(residual), density))
        block = inner.block
        padded = torch.nn.functional.pad(residual, (0, -len(residual) % block)).view(-1, block)
        norms = torch.linalg.vector_norm(padded, dim=1, dtype=torch.float64)
        blocks = _largest(norms, count_of(len(norms), density))
        positions = (blocks[:, None] * block + torch.arange(block, device=residual.device)).view(-1)
        return positions[positions < len(residual)]

    def _rounded(self, selected: SparseVector, state: FeedbackState) -> SparseVector:
        precision = precision_of(self.precision, selected.dtype, "sum")
        if precision is None:
            return selected
        sent = rounded(selected, precision, None)
        error = selected.values - sent.values
        self.give_back(selected.with_values(np.where(np.isfinite(error), error, 0)), state)
        return sent


def _largest(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    """The positions of the largest, in order; of equal ones the first, and never zeros.

    It writes to its input, where NaN becomes infinity.
    """
    if not count:
        return magnitudes.new_empty(0, dtype=torch.int64)
    magnitudes.nan_to_num_(nan=math.inf, posinf=math.inf)
    kth = torch.topk(magnitudes, count, sorted=True).values[-1]
    above = (magnitudes > kth).nonzero().view(-1)
    equal = (magnitudes == kth).nonzero().view(-1)[: count - len(above)] if kth != 0 else above[:0]
    return torch.cat([above, equal]).sort().values
