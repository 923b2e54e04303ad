"""Gradients on any device, by torch operations: only what is selected crosses to the host and back.

The same entries as the kernels of the host select: the lowest index first among equals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import precision_of
from sparsewire.communicator.convert import numpy_to_tensor, tensor_to_numpy
from sparsewire.compress import BlockTopK, Compressor, ErrorFeedback, TopK
from sparsewire.compress.base import StepState
from sparsewire.compress.feedback import FeedbackState
from sparsewire.compress.schedule import count_of, density_at
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector, index_dtype

__all__ = ["Device", "DeviceFeedback"]

HALF = (torch.float16, torch.bfloat16)


class Device:
    """How gradients are read and written where they are."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def feedback(self, precision: Any) -> Callable[[Compressor[Any], float, bool], ErrorFeedback]:
        """What makes the error feedback of a group."""
        return partial(DeviceFeedback, device=self.device, precision=precision)

    def gradient(self, gradients: Sequence[torch.Tensor]) -> Sequence[Any]:
        """What is added to a residual; half types are widened, or small values would be lost in it."""
        return [gradient.float() if gradient.dtype in HALF else gradient for gradient in gradients]

    def residual_dtype(self, dtype: torch.dtype) -> str:
        return "float32" if dtype in HALF else str(dtype).removeprefix("torch.")

    def everything(self, gradients: Sequence[torch.Tensor]) -> SparseVector:
        """The gradients as they are, one after the other."""
        whole = torch.cat(list(gradients)) if len(gradients) > 1 else gradients[0]
        return SparseVector.from_dense(tensor_to_numpy(whole))

    def nonzeros(self, gradients: Sequence[torch.Tensor], cuts: Sequence[int]) -> SparseVector:
        """The entries that are not zero, NaN among them."""
        found = [gradient.nonzero().view(-1) for gradient in gradients]
        indices = torch.cat([places + start for places, start in zip(found, cuts, strict=False)])
        values = torch.cat([gradient[places] for gradient, places in zip(gradients, found, strict=True)])
        return to_vector(cuts[-1], indices, values)

    def write(self, mean: SparseVector, gradients: Sequence[torch.Tensor], cuts: Sequence[int]) -> None:
        """Put the mean in the place of the gradients."""
        for piece, gradient in zip(mean.split_at(cuts), gradients, strict=True):
            self.write_piece(piece, gradient)

    def write_piece(self, piece: SparseVector, gradient: torch.Tensor) -> None:
        values = numpy_to_tensor(piece.values).to(gradient.device, gradient.dtype)
        if piece.indices is None:
            gradient.copy_(values)
        else:
            gradient.zero_()
            gradient[to_places(piece, gradient.device) - piece.start] = values

    def tensor(self, array: Any) -> torch.Tensor:
        """The memory of a state, as a tensor."""
        return torch.from_numpy(array) if isinstance(array, np.ndarray) else array

    # -- an accelerator works off a queue: gradients are there only when it has come to them -----------

    def mark(self) -> Any:
        """The end of what the caller has queued so far."""
        return torch.cuda.current_stream(self.device).record_event() if self._stream else None

    def after(self, marks: Iterable[Any]) -> AbstractContextManager[Any]:
        """A queue of its own, which goes on behind the marks."""
        if self._stream is None:
            return nullcontext()
        for mark in marks:
            self._stream.wait_event(mark)
        queue: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return queue

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future whose result may still be on its way in the queue."""
        return torch.futures.Future(devices=[self.device] if self._stream else None)


@dataclass(frozen=True)
class DeviceFeedback(ErrorFeedback):
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
        places = self._places(residual, state.inner.step)
        selected = to_vector(len(residual), places, residual[places])
        for array in (residual, velocity):
            if array is not None:
                array[places] = 0
        return self._rounded(selected, state), replace(state, inner=StepState(state.inner.step + 1))

    def give_back(self, entries: SparseVector, state: FeedbackState) -> FeedbackState:
        residual: Any = state.residual
        places = to_places(entries.as_sparse(), residual.device)
        residual[places] += numpy_to_tensor(entries.as_sparse().values).to(residual.device)
        return state

    def rounding(self, state: FeedbackState) -> None:
        """What a rank's own values lose is given back before they are sent; sums are rounded to nearest."""

    def _places(self, residual: torch.Tensor, step: int) -> torch.Tensor:
        """Where the inner compressor would find what it takes."""
        inner: Any = self.inner
        density = density_at(inner.density, step)
        if isinstance(inner, TopK):
            return largest(residual.abs(), count_of(len(residual), density))
        block = inner.block
        padded = torch.nn.functional.pad(residual, (0, -len(residual) % block)).view(-1, block)
        norms = torch.linalg.vector_norm(padded, dim=1, dtype=torch.float64)
        blocks = largest(norms, count_of(len(norms), density))
        places = (blocks[:, None] * block + torch.arange(block, device=residual.device)).view(-1)
        return places[places < len(residual)]

    def _rounded(self, selected: SparseVector, state: FeedbackState) -> SparseVector:
        precision = precision_of(self.precision, selected.dtype, "sum")
        if precision is None:
            return selected
        sent = rounded(selected, precision, None)
        error = selected.values - sent.values
        self.give_back(selected.with_values(np.where(np.isfinite(error), error, 0)), state)
        return sent


def largest(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    """Where the largest are, in order; of equal ones the first, and never zeros.  NaN becomes infinity."""
    if not count:
        return magnitudes.new_empty(0, dtype=torch.int64)
    magnitudes.nan_to_num_(nan=math.inf, posinf=math.inf)
    kth = torch.topk(magnitudes, count, sorted=True).values[-1]
    above = (magnitudes > kth).nonzero().view(-1)
    equal = (magnitudes == kth).nonzero().view(-1)[: count - len(above)] if kth != 0 else above[:0]
    return torch.cat([above, equal]).sort().values


def to_vector(length: int, places: torch.Tensor, values: torch.Tensor) -> SparseVector:
    """Entries on a device as a vector on the host."""
    indices = places.cpu().numpy().astype(index_dtype(length))
    return SparseVector.piece(length, 0, length, indices, tensor_to_numpy(values))


def to_places(entries: SparseVector, device: torch.device) -> torch.Tensor:
    """Where entries are, for indexing on the device."""
    assert entries.indices is not None
    return torch.from_numpy(entries.indices.astype(np.int64)).to(device)
