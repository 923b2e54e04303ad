"""What users hold: the hook that DDP calls, the order of work, and the state of a checkpoint.

    hook      notes which gradients are ready; a group whose last one is ready goes to the worker
    worker    a thread: encodes, starts the exchange, and writes the mean into the bucket when it has come
    the end of backward    waits until all is written, and raises what went wrong

The hook returns at once, so backward continues while groups are exchanged.  The worker alone touches
residuals, one group after the other, in an order that is the same on every rank.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.autograd.profiler import record_function
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from sparsewire.communicator import Communicator, Last
from sparsewire.communicator.convert import tensor_to_numpy
from sparsewire.errors import InputError, TransportError
from sparsewire.torch.codes import Code, Sent
from sparsewire.torch.codes.exact import MEAN_VELOCITY
from sparsewire.torch.codes.rows import TableCode
from sparsewire.torch.codes.topk import RESIDUAL
from sparsewire.torch.device import Device
from sparsewire.torch.exchange import Exchange
from sparsewire.torch.group import Group
from sparsewire.vector import Array, SparseVector

__all__ = ["Channel", "Compression", "TableChannel"]

FORMAT = 1  # of ``state_dict``
MARGIN_S = 30.0  # beyond the communicator's time-out: for coding, and for telling others of a failure


class Channel(NamedTuple):
    """How the gradients of one group travel."""

    group: Group
    device: Device
    code: Code
    exchange: Exchange


class TableChannel(NamedTuple):
    """How sparse gradients of embeddings travel; every step of a table has a code of its own."""

    code: Callable[[str], TableCode]
    exchange: Exchange


class Compression:
    """The compression of one DDP model's gradients; ``compress`` makes it."""

    def __init__(
        self,
        comm: Communicator,
        process_group: dist.ProcessGroup,
        parameters: Mapping[str, torch.Tensor],
        channels: Sequence[Channel],
        tables: TableChannel,
        scaler: Any,
    ) -> None:
        self._comm, self._process_group, self._scaler = comm, process_group, scaler
        self._channels, self._tables = channels, tables
        self._pending = [_Pending(channel) for channel in channels]
        self._places = {
            parameters[name]: (pending, number)
            for pending in self._pending
            for number, name in enumerate(pending.channel.group.names)
        }
        self._dense_bytes = (
            2
            * (comm.size - 1)
            / comm.size
            * sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
        )
        self._scale = 1.0  # of the loss whose gradients wait in residuals
        self._worker = ThreadPoolExecutor(1, "sparsewire-torch")
        self._buckets: list[_Bucket] = []  # of the backward that is under way
        self._error: BaseException | None = None
        self._unsent: dict[torch.Tensor, torch.Tensor] | None = None  # residuals, after ``detach``
        self._steps = 0
        self._now, self._latest = _Account(), _Account()
        # For a model that is dropped without ``detach``.  At exit, the communicator closes itself.
        self._close = weakref.finalize(self, comm.close)
        self._close.atexit = False

    # -- what the caller sees --------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """What the latest step did at this rank, in plain numbers.

        ``density`` is the share of the compressed values that this rank sent, ``dense_bytes`` what a dense
        ring allreduce would have sent, ``ratio`` how many times less ``bytes_sent`` is; ``waited_s`` is how
        long backward had to wait at its end.
        """
        latest, squares = self._latest, 0.0
        for channel in self._channels:
            if RESIDUAL in channel.code.kept():
                squares += float(channel.code.kept()[RESIDUAL].norm()) ** 2
        return {
            "steps": self._steps,
            "density": latest.entries / latest.values if latest.values else 0.0,
            "bytes_sent": latest.bytes_sent,
            "bytes_received": latest.bytes_received,
            "dense_bytes": self._dense_bytes,
            "ratio": self._dense_bytes / latest.bytes_sent if latest.bytes_sent else 0.0,
            "residual_norm": squares**0.5,
            "waited_s": latest.waited_s,
        }

    def log(self, writer: Any, step: int) -> None:
        """Write ``stats`` as scalars "sparsewire/..." of a TensorBoard ``SummaryWriter``."""
        for name, value in self.stats().items():
            writer.add_scalar(f"sparsewire/{name}", value, step)

    def state_dict(self) -> dict[str, Any]:
        """What this rank has not sent yet, by parameter, and what its method knows: tensors and numbers.

        Every rank saves its own.
        """
        kept: dict[str, dict[str, torch.Tensor]] = {}
        for channel in self._channels:
            for kind, flat in channel.code.kept().items():
                for name, place in channel.group.slices():
                    kept.setdefault(kind, {})[name] = flat[place].detach().cpu().clone()
        return {
            "format": FORMAT,
            "ranks": self._comm.size,
            "scale": self._scale,
            "steps": self._steps,
            "kept": kept,
            "groups": [code.facts() for code in self._codes_with_facts()],
        }

    def load_state_dict(self, saved: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from what this rank saved, or from what all ranks saved, as a list in rank order.

        With the list, the number of ranks may be another: rank r takes what ranks r, r + size, ... had kept,
        scaled so that the mean gets no more and no less than all of it.
        """
        states = [saved] if isinstance(saved, Mapping) else list(saved)
        self._check(states, is_one=isinstance(saved, Mapping))
        first, size = states[0], self._comm.size
        mine = states if isinstance(saved, Mapping) else states[self._comm.rank :: size]
        for channel in self._channels:
            for kind, flat in channel.code.kept().items():
                is_common = kind == MEAN_VELOCITY
                factor, sources = (1.0, states[:1]) if is_common else (size / first["ranks"], mine)
                for name, place in channel.group.slices():
                    flat[place] = 0
                    for state in sources:
                        flat[place] += state["kept"][kind][name].to(flat.device) * factor
        for number, code in enumerate(self._codes_with_facts()):
            code.load_facts(first["groups"][min(number, len(first["groups"]) - 1)])
        self._scale, self._steps = float(first["scale"]), int(first["steps"])

    def detach(self) -> None:
        """Let DDP continue densely on its own process group; residuals are added to the next gradients.

        Every rank calls it, between two steps.
        """
        if self._unsent is not None:
            return
        self._unsent = {}
        for parameter, (pending, number) in self._places.items():
            kept = pending.channel.code.kept()
            if RESIDUAL in kept:
                begin, end = pending.channel.group.offsets[number : number + 2]
                self._unsent[parameter] = kept[RESIDUAL][begin:end]
        self._worker.shutdown()
        self._close()

    # -- the hook: in the thread of backward -----------------------------------------------------

    def on_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A future of the mean, for a bucket whose gradients are all ready.  DDP calls it."""
        if self._unsent is not None:
            return self._reduce_densely(bucket, self._unsent)
        if not self._buckets:
            self._begin_backward()
        with record_function(f"sparsewire.bucket{bucket.index()}") as span:
            accepted = self._accept(bucket)
            self._buckets.append(accepted)
            future: torch.futures.Future[torch.Tensor] = span._call_end_callbacks_on_future(accepted.future)
        return future

    def _begin_backward(self) -> None:
        try:
            Variable._execution_engine.queue_callback(self._end_backward)
        except RuntimeError:  # there is no backward
            self._comm.refuse(
                InputError("DDP's join() is not supported: all ranks have to do the same number of steps")
            )
        scale = self._loss_scale()
        if scale != self._scale:
            factor, self._scale = scale / self._scale, scale
            self._worker.submit(self._rescale, factor)

    def _loss_scale(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0

    def _accept(self, bucket: dist.GradBucket) -> _Bucket:
        """The bucket, noted by its groups; a group that is complete now goes to the worker."""
        buffer = bucket.buffer()
        if buffer.is_sparse:
            device, code = Device(buffer.device), self._tables.code(f"table {bucket.index()}")
            accepted = _Bucket(buffer, device)
            job = _TableJob(device, code, self._tables.exchange, [buffer], [accepted])
            self._worker.submit(self._start, job)
            return accepted
        pieces = list(_pieces(bucket))
        groups = {id(pending): pending for pending in (self._places[parameter][0] for parameter, _ in pieces)}
        accepted = _Bucket(buffer, next(iter(groups.values())).channel.device, len(groups))
        for parameter, gradient in pieces:
            pending, number = self._places[parameter]
            pending.gradients[number] = gradient
        for pending in groups.values():
            pending.buckets.append(accepted)
            if pending.is_complete:
                self._worker.submit(self._start, pending.to_job())
        return accepted

    def _reduce_densely(
        self, bucket: dist.GradBucket, unsent: dict[torch.Tensor, torch.Tensor]
    ) -> torch.futures.Future[torch.Tensor]:
        factor = self._loss_scale() / self._scale
        for parameter, gradient in _pieces(bucket):
            # A gradient of zeros may belong to an unused parameter, whose residual waits until it is used.
            if parameter in unsent and gradient.any():
                gradient += unsent.pop(parameter) * factor
        future: torch.futures.Future[torch.Tensor] = allreduce_hook(self._process_group, bucket)
        return future

    def _end_backward(self) -> None:
        """Wait until all is written, before DDP reads the buckets."""
        for pending in self._pending:
            if pending.buckets:  # some of its gradients never became ready
                self._worker.submit(self._start, pending.to_job())
        since = time.perf_counter()
        with record_function("sparsewire.wait"):
            if not all(bucket.is_written.wait(self._limit) for bucket in self._buckets):
                self._give_up()
        self._now.waited_s = time.perf_counter() - since
        if not self._now.is_finite:
            self._worker.submit(self._undo).result(self._limit)
        self._latest, self._now = self._now, _Account()
        self._buckets = []
        self._steps += 1
        if self._error is not None:
            # An error that is raised here would keep DDP from preparing another step.
            Variable._execution_engine.queue_callback(self._raise)

    @property
    def _limit(self) -> float:
        """Seconds within which every exchange has ended, well or by its time-out."""
        return self._comm.timeout + MARGIN_S

    def _give_up(self) -> None:
        """Let backward end with an error, whatever the worker waits for.  The groups no longer agree."""
        limit = f"within {self._limit:g} s, which no exchange should take"
        self._error = self._error or TransportError(
            f"rank {self._comm.rank}: the means of some gradients were not written {limit}"
        )
        self._comm.close()
        for bucket in self._buckets:
            bucket.finish()

    def _raise(self) -> None:
        error, self._error = self._error, None
        assert error is not None
        raise error

    # -- the worker ------------------------------------------------------------------------------

    def _start(self, job: _Job) -> None:
        try:
            with job.device.stream_after(bucket.event for bucket in job.buckets):
                job.sent = self._send(job)
            try:
                request = job.exchange.start(job.sent)
            except BaseException:
                job.code.give_back(job.sent)
                raise
        except BaseException as error:
            self._finish_buckets(job, error)
        else:
            request.add_done_callback(lambda ended: self._worker.submit(self._finish, job, ended))

    def _send(self, job: _Job) -> Sent:
        try:
            if self._scaler is not None:
                job.code.remember()
            return job.code.send(job.gradients)
        except Exception as error:
            self._comm.refuse(error)

    def _finish(self, job: _Job, request: Any) -> None:
        try:
            with job.device.stream_after(()):
                try:
                    answer = request.result()
                except BaseException:
                    job.code.give_back(job.sent)
                    raise
                values = job.write(job.code.receive(answer, job.sent))
                if self._scaler is not None and not np.isfinite(values).all():
                    self._now.is_finite = False
                self._now.add(job.sent_entries, request.last)
                self._finish_buckets(job)
        except BaseException as error:
            self._finish_buckets(job, error)

    def _finish_buckets(self, job: _Job, error: BaseException | None = None) -> None:
        self._error = self._error or error
        for bucket in job.buckets:
            bucket.finish_group()

    def _undo(self) -> None:
        for channel in self._channels:
            channel.code.undo()

    def _rescale(self, factor: float) -> None:
        for channel in self._channels:
            channel.code.rescale(factor)

    # -- state -----------------------------------------------------------------------------------

    def _codes_with_facts(self) -> Iterator[Code]:
        return (channel.code for channel in self._channels if channel.code.facts() is not None)

    def _check(self, states: Sequence[Mapping[str, Any]], is_one: bool) -> None:
        """Refuse states of another model, method or number of ranks."""
        expected = {
            (kind, name): place.stop - place.start
            for channel in self._channels
            for kind in channel.code.kept()
            for name, place in channel.group.slices()
        }
        for state in states:
            if state.get("format") != FORMAT:
                raise InputError(f"a state of format {state.get('format')!r}; this version loads {FORMAT}")
            found = {
                (kind, name): tensor.numel()
                for kind, tensors in state["kept"].items()
                for name, tensor in tensors.items()
            }
            for key in sorted(expected.keys() | found.keys()):
                if expected.get(key) != found.get(key):
                    raise InputError(
                        f"the {key[0]} of {key[1]} has {expected.get(key, 0):,} values here and "
                        f"{found.get(key, 0):,} in what was saved; it takes the same model and options"
                    )
        ranks = states[0]["ranks"] if states else None
        if ranks != (self._comm.size if is_one else len(states)):
            raise InputError(
                f"{len(states)} state(s), saved by {ranks} ranks, and these are {self._comm.size}: "
                "give every rank the list of what all ranks saved, in rank order"
            )


class _Pending:
    """The gradients of a group that are ready in this backward, until the worker gets them."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.gradients: list[torch.Tensor | None] = [None] * len(channel.group.names)
        self.buckets: list[_Bucket] = []

    @property
    def is_complete(self) -> bool:
        return all(gradient is not None for gradient in self.gradients)

    def to_job(self) -> _GroupJob:
        """The work on these gradients, with zeros for those that are not there; begins an empty list."""
        group = self.channel.group
        gradients = [
            torch.zeros(place.stop - place.start, dtype=group.dtype, device=group.device)
            if gradient is None
            else gradient
            for gradient, (_, place) in zip(self.gradients, group.slices(), strict=True)
        ]
        _, device, code, exchange = self.channel
        job = _GroupJob(device, code, exchange, gradients, self.buckets, group)
        self.gradients, self.buckets = [None] * len(group.names), []
        return job


@dataclass
class _Job(ABC):
    """The work of one step on one group, or on one table."""

    device: Device
    code: Code
    exchange: Exchange
    gradients: list[torch.Tensor]
    buckets: list[_Bucket]

    def __post_init__(self) -> None:
        self.sent = Sent(None)  # until it is known

    @property
    def sent_entries(self) -> tuple[int, int]:
        """How many entries were sent, of how many values that are compressed."""
        return 0, 0

    @abstractmethod
    def write(self, mean: Any) -> Array:
        """Put the mean in the place of the gradients; the values of the mean."""


@dataclass
class _GroupJob(_Job):
    group: Group

    @property
    def sent_entries(self) -> tuple[int, int]:
        return (0, 0) if self.group.is_dense else (self.sent.content.nnz, self.group.length)

    def write(self, mean: SparseVector) -> Array:
        self.device.write(mean, self.gradients, self.group.offsets)
        return mean.values


class _TableJob(_Job):
    def write(self, mean: torch.Tensor) -> Array:
        [bucket] = self.buckets
        bucket.buffer = mean
        return tensor_to_numpy(mean.values())


class _Bucket:
    """A bucket of DDP, until everything in it is the mean."""

    def __init__(self, buffer: torch.Tensor, device: Device, groups: int = 1) -> None:
        self.buffer = buffer
        self.future = device.future()
        self.event = device.record_event()  # behind it, the gradients are ready
        self.is_written = threading.Event()
        self._unfinished_groups = groups

    def finish_group(self) -> None:
        """Note that one of its groups is done; the worker alone calls it."""
        self._unfinished_groups -= 1
        if not self._unfinished_groups:
            self.finish()

    def finish(self) -> None:
        if not self.is_written.is_set():
            self.is_written.set()
            self.future.set_result(self.buffer)


@dataclass
class _Account:
    """What one step did."""

    entries: int = 0  # that were sent
    values: int = 0  # of which they were selected
    bytes_sent: int = 0
    bytes_received: int = 0
    waited_s: float = 0.0
    is_finite: bool = True  # false if the scaler will skip the step

    def add(self, sent_entries: tuple[int, int], last: Last) -> None:
        """Count one exchange."""
        entries, values = sent_entries
        self.entries += entries
        self.values += values
        self.bytes_sent += last.bytes_sent
        self.bytes_received += last.bytes_received


def _pieces(bucket: dist.GradBucket) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each parameter and its range of the bucket, flat, in the order in which it lies in memory."""
    buffer = bucket.buffer()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=False):
        start = gradient.storage_offset() - buffer.storage_offset()
        yield parameter, buffer[start : start + gradient.numel()]
