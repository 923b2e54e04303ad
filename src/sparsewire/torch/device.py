"""What differs between devices: how gradients are read, written and waited for.

This is the only file that knows streams, events and copies between a device and the host.  On an accelerator
only what is selected crosses to the host and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from sparsewire import kernels
from sparsewire.communicator.convert import numpy_to_tensor, tensor_to_numpy
from sparsewire.reduction import concat
from sparsewire.vector import SparseVector, index_dtype

__all__ = [
    "HALF",
    "Device",
    "Host",
    "device_of_messages",
    "positions_of",
    "vector_from",
    "wait_for_queued_work",
]

HALF = (torch.float16, torch.bfloat16)
WITH_KERNELS = (torch.float32, torch.float64)  # types that numpy and torch have alike


class Device:
    """Any device, by torch operations."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def residual_dtype(self, dtype: torch.dtype) -> str:
        """The type of a residual: small values would be lost in one of a half type."""
        return "float32" if dtype in HALF else str(dtype).removeprefix("torch.")

    def widened(self, gradients: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The gradients in the type of the residual, as error feedback takes them."""
        return [gradient.float() if gradient.dtype in HALF else gradient for gradient in gradients]

    def all_values(self, gradients: Sequence[torch.Tensor]) -> SparseVector:
        """The gradients, one after the other, as a dense vector."""
        whole = torch.cat(list(gradients)) if len(gradients) > 1 else gradients[0]
        return SparseVector.from_dense(tensor_to_numpy(whole))

    def nonzero_entries(self, gradients: Sequence[torch.Tensor], offsets: Sequence[int]) -> SparseVector:
        """The entries that are not zero, NaN among them; each gradient begins at its offset."""
        found = [gradient.nonzero().view(-1) for gradient in gradients]
        positions = torch.cat([here + start for here, start in zip(found, offsets, strict=False)])
        values = torch.cat([gradient[here] for gradient, here in zip(gradients, found, strict=True)])
        return vector_from(offsets[-1], positions, values)

    def write(self, mean: SparseVector, gradients: Sequence[torch.Tensor], offsets: Sequence[int]) -> None:
        """Replace the gradients by the mean."""
        for piece, gradient in zip(mean.split_at(offsets), gradients, strict=True):
            self.write_piece(piece, gradient)

    def write_piece(self, piece: SparseVector, gradient: torch.Tensor) -> None:
        """Replace one gradient by its range of the mean."""
        values = numpy_to_tensor(piece.values).to(gradient.device, gradient.dtype)
        if piece.indices is None:
            gradient.copy_(values)
        else:
            gradient.zero_()
            gradient[positions_of(piece, gradient.device) - piece.start] = values

    def as_tensor(self, array: Any) -> torch.Tensor:
        """An array of a state as a tensor of the same memory; it is one already on an accelerator."""
        return torch.from_numpy(array) if isinstance(array, np.ndarray) else array

    # -- an accelerator works off queues, and a gradient is ready when its queue has come to it --------

    def record_event(self) -> Any:
        """An event at the end of what the calling thread has queued so far."""
        return torch.cuda.current_stream(self.device).record_event() if self._stream else None

    def stream_after(self, events: Iterable[Any]) -> AbstractContextManager[Any]:
        """A context in which work is queued on a stream of its own, behind the events."""
        if self._stream is None:
            return nullcontext()
        for event in events:
            self._stream.wait_event(event)
        stream: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return stream

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future that may be given a result on which queued work is not done yet."""
        return torch.futures.Future(devices=[self.device] if self._stream else None)


class Host(Device):
    """The CPU: the library's kernels read and write gradients where they are."""

    def widened(self, gradients: Sequence[torch.Tensor]) -> Sequence[Any]:
        return [tensor_to_numpy(gradient) for gradient in super().widened(gradients)]

    def nonzero_entries(self, gradients: Sequence[torch.Tensor], offsets: Sequence[int]) -> SparseVector:
        pieces = zip(gradients, offsets, offsets[1:], strict=False)
        return concat(
            [
                SparseVector.piece(offsets[-1], start, stop, None, tensor_to_numpy(gradient)).as_sparse()
                for gradient, start, stop in pieces
            ]
        )

    def write_piece(self, piece: SparseVector, gradient: torch.Tensor) -> None:
        if piece.indices is None or gradient.dtype not in WITH_KERNELS:
            super().write_piece(piece, gradient)
        else:
            kernels.spread(gradient.numpy(), piece.indices, piece.values, offset=piece.start)


def vector_from(length: int, positions: torch.Tensor, values: torch.Tensor) -> SparseVector:
    """Entries on a device as a vector on the host."""
    indices = positions.cpu().numpy().astype(index_dtype(length))
    return SparseVector.piece(length, 0, length, indices, tensor_to_numpy(values))


def positions_of(entries: SparseVector, device: torch.device) -> torch.Tensor:
    """The indices of entries, as torch indexes with them on the device."""
    assert entries.indices is not None
    return torch.from_numpy(entries.indices.astype(np.int64)).to(device)


def wait_for_queued_work(tensor: torch.Tensor) -> None:
    """Return when what the calling thread has queued for the tensor is done."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def device_of_messages(group: Any) -> torch.device:
    """Where a tensor has to be for the process group to send it: on the CPU, except for NCCL alone."""
    cpu = torch.device("cpu")
    return cpu if cpu in group._device_types else torch.device("cuda", torch.cuda.current_device())
