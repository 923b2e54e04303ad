"""Gradients in the memory of the CPU: the library's kernels go over them where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sparsewire import kernels
from sparsewire.communicator.convert import tensor_to_numpy
from sparsewire.compress import Compressor, ErrorFeedback
from sparsewire.reduction import concat
from sparsewire.torch.device import Device
from sparsewire.vector import SparseVector

__all__ = ["Host"]

WITH_KERNELS = (torch.float32, torch.float64)  # types that numpy and torch have alike


class Host(Device):
    """The device that kernels can read and write."""

    def feedback(self, precision: Any) -> Callable[[Compressor[Any], float, bool], ErrorFeedback]:
        return ErrorFeedback

    def gradient(self, gradients: Sequence[torch.Tensor]) -> Sequence[Any]:
        return [tensor_to_numpy(gradient) for gradient in super().gradient(gradients)]

    def nonzeros(self, gradients: Sequence[torch.Tensor], cuts: Sequence[int]) -> SparseVector:
        pieces = zip(gradients, cuts, cuts[1:], strict=False)
        return concat(
            [
                SparseVector.piece(cuts[-1], start, stop, None, tensor_to_numpy(gradient)).as_sparse()
                for gradient, start, stop in pieces
            ]
        )

    def write_piece(self, piece: SparseVector, gradient: torch.Tensor) -> None:
        if piece.indices is None or gradient.dtype not in WITH_KERNELS:
            super().write_piece(piece, gradient)
        else:
            kernels.spread(gradient.numpy(), piece.indices, piece.values, offset=piece.start)
