"""``compress(ddp)``: one line, and DDP exchanges only what counts of its gradients."""

# No ``from __future__ import annotations``: DDP compares the annotations of a hook with classes.

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sparsewire.algorithms import ALGORITHMS
from sparsewire.coding.values import Precision, precision_of
from sparsewire.communicator import Communicator
from sparsewire.compress import BlockTopK, Density, TopK, Warmup
from sparsewire.compress.schedule import count_of, density_at
from sparsewire.cost import Shape
from sparsewire.errors import InputError
from sparsewire.sync import Method, Sync
from sparsewire.torch.device import Device
from sparsewire.torch.exchange import Exchange, Lossless, Lossy
from sparsewire.torch.group import Layout, Selection, group_parameters
from sparsewire.torch.handle import Compression
from sparsewire.torch.host import Host
from sparsewire.torch.transport import communicator

__all__ = ["METHODS", "compress"]

# What is selected, and how it is summed; what loses nothing selects nothing.
METHODS: dict[str, Method | None] = {
    "topk": Method(TopK, "auto"),
    "ok_topk": Method(TopK, "ok_topk"),
    "block_topk": Method(BlockTopK, "auto"),
    "exact": None,
    "dense": None,
}
ANY_SHAPE = "balanced"  # the algorithm where nothing is known about entries


def compress(
    ddp: DistributedDataParallel,
    density: Density = 0.01,
    method: str = "topk",
    *,
    warmup_steps: int = 0,
    parameters: str | Sequence[str] = "*",
    min_size: int = 16_384,
    precision: str | Precision | None = None,
    momentum: float = 0.0,
    scaler: Any = None,
    process_group: dist.ProcessGroup | None = None,
    group_bytes: int = 16 << 20,
    on_device: bool | None = None,
    timeout: float = 300.0,
) -> Compression:
    """Have a DDP model exchange only what counts of its gradients, from the next backward on.

    Every rank calls it, right after ``DDP(model)``.  Methods:

    - "topk": every rank's largest entries, a share of ``density`` of each group of parameters, are summed
      exactly; the others wait in a residual (error feedback).
    - "ok_topk": of the sums, too, only the largest are kept: traffic does not grow with the number of ranks.
    - "block_topk": as "topk", with whole blocks of neighbouring values.
    - "exact": what is not zero, and nothing is lost: for embeddings and all that is sparse by nature.
    - "dense": everything.

    ``density`` is a number, or a function of the step; ``warmup_steps`` lets it fall from 25% over so many
    steps.  Parameters that no pattern of ``parameters`` names, or with fewer than ``min_size`` values, go
    densely, fused.  ``precision`` sends the others in fewer bits ("float16", "bfloat16", "qsgd8", ...);
    method "dense" sends all so, and what rounding leaves out is lost.  ``momentum`` is that of momentum
    correction: the optimiser should then have none.  ``scaler`` is the GradScaler, if there is one: a step
    that it skips is undone, for which a copy of what waits is kept.  Parameters of about ``group_bytes`` are
    exchanged together.  ``on_device`` selects with torch operations instead of kernels, as for gradients that
    are not on the CPU.
    """
    ddp = getattr(ddp, "_orig_mod", ddp)  # what torch.compile has wrapped
    if not isinstance(ddp, DistributedDataParallel):
        raise InputError(f"compress() takes DistributedDataParallel(model), not a {type(ddp).__name__}")
    group = process_group or ddp.process_group
    comm = communicator(group, timeout)
    try:
        options = Options(method, _schedule(density, warmup_steps), precision, momentum, on_device)
        model = _parameters(ddp)
        patterns = [parameters] if isinstance(parameters, str) else list(parameters)
        if method == "exact":
            min_size = 0  # what is small costs no more with the others
        selection = Selection(patterns if method != "dense" else [], min_size)
        selection.check_patterns(name for name, _ in ddp.module.named_parameters())
        layouts = group_parameters(model.items(), selection, group_bytes)
        may_be_unused = ddp.find_unused_parameters or ddp.static_graph
        may_be_skipped = scaler is not None
        exchanges = [options.exchange(layout, comm, may_be_unused, may_be_skipped) for layout in layouts]
        handle = Compression(comm, group, model, exchanges, scaler)
        said = f"{options.described()}, {[layout.described() for layout in layouts]}"
    except Exception as error:
        _refuse(comm, error)
    _check_alike(comm, said)
    try:
        ddp.register_comm_hook(handle, sparsewire_hook)
    except Exception as error:
        _refuse(comm, error)
    return handle


def sparsewire_hook(state: Compression, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP calls."""
    return state.arrived(bucket)


@dataclass(frozen=True)
class Options:
    """How groups are exchanged; the same on every rank."""

    method: str
    density: Density
    precision: str | Precision | None
    momentum: float
    on_device: bool | None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"unknown method {self.method!r}; known are {', '.join(METHODS)}")
        precision_of(self.precision, np.dtype("float32"), "sum")  # refuses what is unknown
        if self.method == "exact" and self.precision is not None:
            raise InputError(
                f"'exact' loses nothing, and precision {self.precision} would: take another method"
            )
        if METHODS[self.method] is None and self.momentum:
            raise InputError(f"momentum correction is for what waits; with {self.method!r} nothing does")

    def described(self) -> str:
        """What ranks compare; of a schedule, where it begins: a function has another address on each."""
        return str(replace(self, density=density_at(self.density, 0)))

    def exchange(
        self, layout: Layout, comm: Communicator, may_be_unused: bool, may_be_skipped: bool
    ) -> Exchange:
        is_on_host = layout.device.type == "cpu" and not self.on_device
        memory = Host(layout.device) if is_on_host else Device(layout.device)
        row = METHODS[self.method]
        if row is None or layout.is_dense:
            # What goes densely beside what waits is not rounded: it has no residual to make that good.
            precision = self.precision if self.method == "dense" else None
            momentum = self.momentum if layout.is_dense else 0.0
            algorithm = self._algorithm(layout, comm)
            return Lossless(layout, memory, may_be_skipped, comm, algorithm, precision, momentum)
        algorithm = row.algorithm
        if algorithm == "auto":
            algorithm = self._algorithm(layout, comm)
        sync = Sync(
            comm,
            row._replace(algorithm=algorithm),
            self.density,
            momentum=self.momentum,
            precision=self.precision,
            feedback=memory.feedback(self.precision),
        )
        return Lossy(layout, memory, may_be_skipped, sync, may_be_unused)

    def _algorithm(self, layout: Layout, comm: Communicator) -> str:
        """The one of the lowest predicted time, of those that add up each entry in one place, in rank order.

        They all give the same bits.  With "auto" the order of sums would depend on what has been seen, and a
        process that goes on from a checkpoint has seen nothing.
        """
        density = self.density.density if isinstance(self.density, Warmup) else self.density
        if METHODS[self.method] is None or layout.is_dense:
            density = 1.0
        elif callable(density):
            return ANY_SHAPE
        nnz, price = count_of(layout.length, density), comm.network.index_price
        shape = Shape(comm.size, layout.length, nnz, layout.dtype.itemsize, index_price=price)
        able = {name: row for name, row in ALGORITHMS.items() if row.supports_precision}
        return min(able, key=lambda name: able[name].cost(comm.network, shape).seconds)


def _schedule(density: Density, warmup_steps: int) -> Density:
    if not warmup_steps:
        return density
    if callable(density):
        raise InputError("density is a schedule already; leave out warmup_steps")
    return Warmup(density, warmup_steps)


def _parameters(ddp: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """Those whose gradients come in dense buckets, by name: DDP itself knows best which it leaves out."""
    names = {parameter: name for name, parameter in ddp.module.named_parameters()}
    parameters, are_sparse = ddp._build_params_for_reducer()
    return {
        names[parameter]: parameter
        for parameter, is_sparse in zip(parameters, are_sparse, strict=True)
        if not is_sparse
    }


def _refuse(comm: Communicator, error: Exception) -> NoReturn:
    """Raise the error on every rank, as this one cannot take part."""
    try:
        comm.refuse(error)
    finally:
        comm.close()


def _check_alike(comm: Communicator, said: str) -> None:
    """All ranks give the same options and the same model, or all raise."""
    digests = comm.allgather(np.array([zlib.crc32(said.encode())], np.int64))
    others = [rank for rank, digest in enumerate(digests) if digest[0] != digests[0][0]]
    if others:
        comm.close()
        who = ", ".join(map(str, others))
        raise InputError(f"rank {who} called compress() with other options, or another model, than rank 0")
