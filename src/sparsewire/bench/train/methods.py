"""How ranks under DDP compute a mean gradient: our methods, and what users of torch have today.

none           each rank keeps its own gradient: the floor of a step's time, and no training together
dense          DDP as it is
fp16           torch's hook that sends half precision
powersgd       torch's hook of rank 1 (Vogels et al., NeurIPS 2019)
sparse-gloo    DDP as it is, where the table's gradient is a sparse tensor
dense-float64  DDP as it is in double precision: what the others' parameters are compared with
exact          ours: ``sparsewire.torch.compress``, all that is not zero
exact-sparse   the same on the model of sparse-gloo
topk, ok_topk, block_topk
               ours: the largest entries.  The optimiser's momentum moves before the selection (momentum
               correction: Lin et al., Deep gradient compression, ICLR 2018); without one it would be the same
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparsewire.bench.train.tasks import Batch, Task

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

# PowerSGD's hook waits for gloo inside a gloo thread, and with two buckets in flight it waits forever.
ONE_BUCKET_MB = 1000
POWER_SGD_START = 2  # the first step that it allows, because DDP has rebuilt its buckets by then


@dataclass(frozen=True)
class Compression:
    """How much of a gradient our methods send, and the momentum that they apply instead of the optimiser."""

    density: float
    warmup_steps: int = 0
    momentum: float = 0.0


@dataclass(frozen=True)
class Method:
    """What is done to a model under DDP; our methods return a handle, which counts what it sends."""

    attach: Callable[[DistributedDataParallel, Compression], Any] = lambda ddp, compression: None
    corrects_momentum: bool = False  # the optimiser then has no momentum
    sparse: bool = False  # the table's gradient is a sparse tensor
    dtype: str = "float32"
    bucket_cap_mb: int | None = None


class Trainer:
    """A model that is trained by one method; all begin with the same parameters."""

    def __init__(self, method: str, task: Task, width: int, seed: int, compression: Compression) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        how = METHODS[method]
        torch.manual_seed(seed)
        self.method = method
        self.model = task.model(width, how.sparse).to(getattr(torch, how.dtype))
        self._ddp = DistributedDataParallel(self.model, bucket_cap_mb=how.bucket_cap_mb)
        corrected, plain = (task.momentum, 0.0) if how.corrects_momentum else (0.0, task.momentum)
        self._handle = how.attach(self._ddp, replace(compression, momentum=corrected))
        self._optimiser = torch.optim.SGD(self.model.parameters(), lr=task.learning_rate, momentum=plain)

    def batch(self, drawn: Batch) -> tuple[Any, Any]:
        """Examples as the model takes them."""
        import torch

        inputs, classes = map(torch.from_numpy, drawn)
        dtype = next(self.model.parameters()).dtype
        return inputs.to(dtype) if inputs.is_floating_point() else inputs, classes

    def step(self, inputs: Any, classes: Any) -> Any:
        """The loss before the step."""
        from torch.nn.functional import cross_entropy

        self._optimiser.zero_grad()
        loss = cross_entropy(self._ddp(inputs), classes)
        loss.backward()
        self._optimiser.step()
        return loss.detach()

    def bytes_sent(self) -> float | None:
        """Bytes that this rank sent in its last step; None for peers, which do not count."""
        return self._handle.stats()["bytes_sent"] if self._handle else None

    def parameters(self) -> npt.NDArray[Any]:
        """All parameters as one array."""
        pieces = [parameter.detach().numpy().ravel() for parameter in self.model.parameters()]
        return np.concatenate(pieces)


def _no_communication(ddp: DistributedDataParallel, compression: Compression) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    ddp.register_comm_hook(None, noop_hook)


def _half_precision(ddp: DistributedDataParallel, compression: Compression) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp.register_comm_hook(None, fp16_compress_hook)


def _power_sgd(ddp: DistributedDataParallel, compression: Compression) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=POWER_SGD_START)
    ddp.register_comm_hook(state, powerSGD_hook)


def _compress(method: str, ddp: DistributedDataParallel, compression: Compression) -> Any:
    import sparsewire.torch as swt

    return swt.compress(
        ddp,
        compression.density,
        method,
        warmup_steps=compression.warmup_steps,
        momentum=compression.momentum,
    )


OURS = {
    "topk": Method(partial(_compress, "topk"), corrects_momentum=True),
    "ok_topk": Method(partial(_compress, "ok_topk"), corrects_momentum=True),
    "block_topk": Method(partial(_compress, "block_topk"), corrects_momentum=True),
    "exact": Method(partial(_compress, "exact")),
    "exact-sparse": Method(partial(_compress, "exact"), sparse=True),
}
METHODS = {
    "none": Method(_no_communication),
    "dense": Method(),
    "fp16": Method(_half_precision),
    "powersgd": Method(_power_sgd, bucket_cap_mb=ONE_BUCKET_MB),
    "sparse-gloo": Method(sparse=True),
    "dense-float64": Method(dtype="float64"),
    **OURS,
}
