"""``compress(ddp)``: the call, its options and their rules."""

# No ``from __future__ import annotations``: DDP compares the annotations of a hook with classes.

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sparsewire.coding.values import Precision, precision_of
from sparsewire.communicator import Communicator
from sparsewire.communicator.agreement import check_alike, gather
from sparsewire.compress import BlockTopK, Density, ErrorFeedback, TopK, Warmup
from sparsewire.compress.schedule import density_at
from sparsewire.errors import InputError
from sparsewire.sync import Method, Sync
from sparsewire.torch.codes.exact import Exact
from sparsewire.torch.codes.rows import RowEntries, Rows
from sparsewire.torch.codes.tensor_feedback import TensorFeedback
from sparsewire.torch.codes.topk import LargestEntries
from sparsewire.torch.device import HALF, Device, Host
from sparsewire.torch.exchange.over_communicator import Gathering, RankOrderSums, SelectedSums
from sparsewire.torch.group import Group, Selection, group_parameters
from sparsewire.torch.handle import Channel, Compression, TableChannel
from sparsewire.torch.transport import communicator

__all__ = ["METHODS", "compress"]

# What is selected, and how it is summed; methods that lose nothing select nothing.
METHODS: dict[str, Method | None] = {
    "topk": Method(TopK, "auto"),
    "ok_topk": Method(TopK, "ok_topk"),
    "gtopk": Method(TopK, "gtopk"),
    "spardl": Method(TopK, "spardl"),
    "auto": Method(TopK, "auto_topk"),
    "block_topk": Method(BlockTopK, "auto"),
    "exact": None,
    "dense": None,
}
MOST_RANKS_FOR_ROWS = 8  # with more, rows of embeddings are not gathered


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
    """Let a DDP model exchange only a part of its gradients, from the next backward on.

    Every rank calls it, right after ``DDP(model)``.  Methods:

    - "topk": every rank's largest entries, a share of ``density`` of each group of parameters, are summed
      exactly, in rank order; the others wait in a residual (error feedback).
    - "ok_topk": of the sums, too, only the largest are kept: traffic does not grow with the number of ranks.
    - "gtopk", "spardl": the same with fewer messages, for many ranks; they keep the largest less exactly.
    - "auto": the one of these three with the lowest predicted time.
    - "block_topk": as "topk", with whole blocks of neighbouring values.
    - "exact": what is not zero, and nothing is lost: for embeddings and all that is sparse by nature.
    - "dense": everything.

    ``density`` is a number, or a function of the step that is the same on every rank; ``warmup_steps`` lets
    it fall from 25% over so many steps.  Parameters that no pattern of ``parameters`` matches, or with fewer
    than ``min_size`` values, are exchanged densely, many at once.  ``precision`` sends the others in fewer
    bits ("float16", "bfloat16", "qsgd8", ...); method "dense" sends all so, and what rounding leaves out is
    lost.  ``momentum`` is that of momentum correction: the optimiser should then have none.  ``scaler`` is
    the GradScaler, if there is one: a step that it skips is undone, for which residuals are copied.
    Parameters of about ``group_bytes`` are exchanged together.  ``on_device`` selects with torch operations
    instead of kernels, as for gradients that are not on the CPU.
    """
    ddp = getattr(ddp, "_orig_mod", ddp)  # what torch.compile has wrapped
    if not isinstance(ddp, DistributedDataParallel):
        raise InputError(f"compress() takes DistributedDataParallel(model), not a {type(ddp).__name__}")
    options = Options(
        method,
        density,
        warmup_steps,
        precision,
        momentum,
        parameters,
        min_size,
        group_bytes,
        on_device,
        scaler,
    )
    group = process_group or ddp.process_group
    comm = communicator(group, timeout)
    with _refused_by_all(comm):
        handle, facts = options.applied_to(ddp, comm, group)
    _check_alike(comm, facts)
    with _refused_by_all(comm):
        ddp.register_comm_hook(handle, sparsewire_hook)
    return handle


def sparsewire_hook(state: Compression, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP calls."""
    return state.on_bucket(bucket)


@dataclass(frozen=True)
class Options:
    """What the caller of ``compress`` asks for; the same on every rank."""

    method: str
    density: Density
    warmup_steps: int
    precision: str | Precision | None
    momentum: float
    parameters: str | Sequence[str]
    min_size: int
    group_bytes: int
    on_device: bool | None
    scaler: Any

    def applied_to(
        self, ddp: DistributedDataParallel, comm: Communicator, process_group: dist.ProcessGroup
    ) -> tuple[Compression, dict[str, Any]]:
        """The handle for a model, and what ranks compare; an InputError if options make no sense."""
        self._check()
        model = _parameters(ddp)
        selection = self._selection()
        selection.check_patterns(name for name, _ in ddp.module.named_parameters())
        groups = group_parameters(model.items(), selection, self.group_bytes)
        may_be_unused = ddp.find_unused_parameters or ddp.static_graph
        channels = [self._channel(group, comm, may_be_unused) for group in groups]
        handle = Compression(comm, process_group, model, channels, _tables(comm), self.scaler)
        return handle, self._facts() | _facts(model, groups)

    def _check(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"unknown method {self.method!r}; known are {', '.join(METHODS)}")
        if self.warmup_steps and callable(self.density):
            raise InputError("density is a schedule already; leave out warmup_steps")
        precision_of(self.precision, np.dtype("float32"), "sum")  # refuses what is unknown
        if self.method == "exact" and self.precision is not None:
            raise InputError(
                f"'exact' loses nothing, and precision {self.precision} would: take another method"
            )
        if METHODS[self.method] is None and self.momentum:
            raise InputError(f"momentum correction is for residuals; {self.method!r} has none")

    def _patterns(self) -> list[str]:
        return [self.parameters] if isinstance(self.parameters, str) else list(self.parameters)

    def _selection(self) -> Selection:
        """The parameters that are not exchanged densely."""
        patterns = [] if self.method == "dense" else self._patterns()
        # With "exact", small parameters cost no more in the same group as others.
        return Selection(patterns, 0 if self.method == "exact" else self.min_size)

    def _schedule(self) -> Density:
        if not self.warmup_steps or callable(self.density):
            return self.density
        return Warmup(self.density, self.warmup_steps)

    def _facts(self) -> dict[str, Any]:
        """What ranks compare.  Schedules are compared by their first density, because functions cannot be."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        options["density"] = density_at(self.density, 0)
        options["parameters"] = self._patterns()
        options["scaler"] = self.scaler is not None
        plain = (str, int, float, list, type(None))  # which JSON can carry
        return {name: value if isinstance(value, plain) else str(value) for name, value in options.items()}

    def _channel(self, group: Group, comm: Communicator, may_be_unused: bool) -> Channel:
        """How a group travels."""
        is_on_host = group.device.type == "cpu" and not self.on_device
        device = Host(group.device) if is_on_host else Device(group.device)
        row = METHODS[self.method]
        if row is None or group.is_dense:
            # Only "dense" is rounded: in other methods, what goes densely has no residual for the rounding
            # error.  Half types are not, because they are small already.
            is_rounded = self.method == "dense" and group.dtype not in HALF
            code = Exact(group, device, comm.size, self.momentum)
            exchange = RankOrderSums(comm, precision=self.precision if is_rounded else None)
            return Channel(group, device, code, exchange)
        feedback: Any = ErrorFeedback
        if not is_on_host:
            feedback = partial(TensorFeedback, device=group.device, precision=self.precision)
        sync = Sync(
            comm, row, self._schedule(), momentum=self.momentum, precision=self.precision, feedback=feedback
        )
        return Channel(group, device, LargestEntries(group, device, sync, may_be_unused), SelectedSums(sync))


def _tables(comm: Communicator) -> TableChannel:
    if comm.size <= MOST_RANKS_FOR_ROWS:
        return TableChannel(Rows, Gathering(comm))
    return TableChannel(RowEntries, RankOrderSums(comm, op="avg"))


def _parameters(ddp: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """The parameters whose gradients come in dense buckets, by name, as DDP itself finds them."""
    names = {parameter: name for name, parameter in ddp.module.named_parameters()}
    parameters, are_sparse = ddp._build_params_for_reducer()
    return {
        names[parameter]: parameter
        for parameter, is_sparse in zip(parameters, are_sparse, strict=True)
        if not is_sparse
    }


@contextmanager
def _refused_by_all(comm: Communicator) -> Iterator[None]:
    """Raise an error of this rank on every rank, and leave the communicator."""
    try:
        yield
    except Exception as error:
        try:
            comm.refuse(error)
        finally:
            comm.close()


def _facts(model: Mapping[str, torch.Tensor], groups: Sequence[Group]) -> dict[str, str]:
    """What ranks compare of the model, parameter by parameter.  Devices may differ."""
    group_of = {name: number for number, group in enumerate(groups) for name in group.names}
    return {
        f"parameter {place} of the model": f"{name} of shape {list(parameter.shape)} and type "
        f"{str(parameter.dtype).removeprefix('torch.')}, in group {group_of[name]},"
        for place, (name, parameter) in enumerate(model.items())
    }


def _check_alike(comm: Communicator, facts: dict[str, Any]) -> None:
    """Raise on all ranks, and name what differs, if a rank has other options or another model."""
    try:
        check_alike(gather(comm, facts))
    except InputError:
        comm.close()
        raise
