"""What DDP calls with its buckets, and the handle that the caller of ``compress`` keeps.

    hook      notes which gradients have come; a group whose last one has come is handed to the worker
    worker    a thread: selects, starts the exchange, and writes the mean into the bucket when it is there
    the end of backward    waits until all is written, and raises what went wrong

The hook returns at once, so backward goes on while groups are exchanged.  The worker alone touches residuals,
one group after the other, in an order that is the same on every rank.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.autograd.profiler import record_function
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from sparsewire.communicator import Communicator, Last
from sparsewire.communicator.convert import tensor_to_numpy
from sparsewire.errors import InputError
from sparsewire.torch.device import Device
from sparsewire.torch.exchange import COMMON, Exchange, Lossy
from sparsewire.torch.tables import Table, table_for

__all__ = ["Compression"]

FORMAT = 1  # of ``state_dict``


class Compression:
    """The compression of one DDP model's gradients; ``compress`` makes it."""

    def __init__(
        self,
        comm: Communicator,
        group: dist.ProcessGroup,
        parameters: Mapping[str, torch.Tensor],
        exchanges: Sequence[Exchange],
        scaler: Any,
    ) -> None:
        self._comm, self._process_group, self._scaler = comm, group, scaler
        self._groups = [_Group(exchange) for exchange in exchanges]
        self._places = {
            parameters[name]: (group, place)
            for group in self._groups
            for place, name in enumerate(group.exchange.layout.names)
        }
        self._dense_bytes = (
            2
            * (comm.size - 1)
            / comm.size
            * sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
        )
        self._scale = 1.0  # of the loss that residuals belong to
        self._worker = ThreadPoolExecutor(1, "sparsewire-torch")
        self._buckets: list[_Bucket] = []  # of the backward that is under way
        self._error: BaseException | None = None
        self._left: dict[torch.Tensor, torch.Tensor] | None = None  # once detached: what was not sent
        self._steps = 0
        self._now, self._latest = _Account(), _Account()
        # For a model that is dropped without ``detach``; at exit, the communicator itself takes its leave.
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
        for exchange in self._lossy():
            squares += float(exchange.memories()["residual"].norm()) ** 2
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
        """What this rank has not sent yet, by parameter, and what its methods know: tensors and numbers.

        Every rank saves its own.
        """
        kept: dict[str, dict[str, torch.Tensor]] = {}
        for exchange in self._exchanges():
            for kind, flat in exchange.memories().items():
                for name, place in exchange.layout.slices():
                    kept.setdefault(kind, {})[name] = flat[place].detach().cpu().clone()
        return {
            "format": FORMAT,
            "ranks": self._comm.size,
            "scale": self._scale,
            "steps": self._steps,
            "kept": kept,
            "groups": [exchange.facts() for exchange in self._lossy()],
        }

    def load_state_dict(self, saved: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from what this rank saved; or from what all ranks did, as a list in rank order.

        With the list, the number of ranks may be another: rank r takes what ranks r, r + size, ... left, in
        such a measure that the mean gets no more and no less than it was owed.
        """
        states = [saved] if isinstance(saved, Mapping) else list(saved)
        self._check(states, is_one=isinstance(saved, Mapping))
        first, size = states[0], self._comm.size
        mine = states if isinstance(saved, Mapping) else states[self._comm.rank :: size]
        for exchange in self._exchanges():
            for kind, flat in exchange.memories().items():
                factor, givers = (1.0, states[:1]) if kind == COMMON else (size / first["ranks"], mine)
                for name, place in exchange.layout.slices():
                    flat[place] = 0
                    for state in givers:
                        flat[place] += state["kept"][kind][name].to(flat.device) * factor
        for number, exchange in enumerate(self._lossy()):
            exchange.load_facts(first["groups"][min(number, len(first["groups"]) - 1)])
        self._scale, self._steps = float(first["scale"]), int(first["steps"])

    def detach(self) -> None:
        """Let DDP go on densely, on its own process group; what waited is added to the next gradients.

        Every rank calls it, between two steps.
        """
        if self._left is not None:
            return
        self._left = {}
        for parameter, (group, number) in self._places.items():
            if isinstance(group.exchange, Lossy):
                begin, end = group.exchange.layout.cuts[number : number + 2]
                self._left[parameter] = group.exchange.memories()["residual"][begin:end]
        self._worker.shutdown()
        self._close()

    # -- the hook: in the thread of backward -----------------------------------------------------

    def arrived(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A bucket is full; the future's result is what DDP goes on with."""
        if self._left is not None:
            return self._densely(bucket, self._left)
        if not self._buckets:
            self._begin()
        with record_function(f"sparsewire.bucket{bucket.index()}") as span:
            coming = self._take(bucket)
            self._buckets.append(coming)
            future: torch.futures.Future[torch.Tensor] = span._call_end_callbacks_on_future(coming.future)
        return future

    def _begin(self) -> None:
        try:
            Variable._execution_engine.queue_callback(self._end)
        except RuntimeError:  # there is no backward
            self._comm.refuse(
                InputError("DDP's join() is not supported: all ranks have to do the same number of steps")
            )
        scale = self._scale_of_loss()
        if scale != self._scale:
            factor, self._scale = scale / self._scale, scale
            self._worker.submit(self._rescale, factor)

    def _scale_of_loss(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0

    def _take(self, bucket: dist.GradBucket) -> _Bucket:
        buffer = bucket.buffer()
        if buffer.is_sparse:
            coming = _Bucket(buffer, Device(buffer.device))
            self._worker.submit(self._start_table, coming)
            return coming
        pieces = list(_pieces(bucket))
        groups = {id(group): group for group in (self._places[parameter][0] for parameter, _ in pieces)}
        coming = _Bucket(buffer, next(iter(groups.values())).exchange.memory, len(groups))
        for parameter, gradient in pieces:
            group, place = self._places[parameter]
            group.gradients[place] = gradient
        for group in groups.values():
            group.buckets.append(coming)
            if group.is_complete:
                self._worker.submit(self._start, group.hand_over())
        return coming

    def _densely(
        self, bucket: dist.GradBucket, left: dict[torch.Tensor, torch.Tensor]
    ) -> torch.futures.Future[torch.Tensor]:
        factor = self._scale_of_loss() / self._scale
        for parameter, gradient in _pieces(bucket):
            if parameter in left and gradient.any():  # or it is unused, and nobody would look at it
                gradient += left.pop(parameter) * factor
        future: torch.futures.Future[torch.Tensor] = allreduce_hook(self._process_group, bucket)
        return future

    def _end(self) -> None:
        """At the end of backward, before DDP looks at the buckets."""
        for group in self._groups:
            if group.buckets:  # some of its gradients were never announced
                self._worker.submit(self._start, group.hand_over())
        since = time.perf_counter()
        with record_function("sparsewire.wait"):
            for bucket in self._buckets:
                bucket.done.wait()
        self._now.waited_s = time.perf_counter() - since
        if not self._now.is_finite:
            self._worker.submit(self._undo).result()
        self._latest, self._now = self._now, _Account()
        self._buckets = []
        self._steps += 1
        if self._error is not None:  # raised when DDP is through, or it could not begin another step
            Variable._execution_engine.queue_callback(self._raise)

    def _raise(self) -> None:
        error, self._error = self._error, None
        assert error is not None
        raise error

    # -- the worker ------------------------------------------------------------------------------

    def _start(self, job: _Job) -> None:
        try:
            with job.exchange.memory.after(bucket.mark for bucket in job.buckets):
                selected = self._select(job)
            try:
                request = job.exchange.start(selected)
            except BaseException:
                job.exchange.give_back(selected)
                raise
        except BaseException as error:
            self._deliver(job.buckets, error)
        else:
            job.selected = selected
            request.add_done_callback(lambda ended: self._worker.submit(self._finish, job, ended))

    def _select(self, job: _Job) -> Any:
        try:
            return job.exchange.select(job.gradients)
        except Exception as error:
            self._comm.refuse(error)

    def _finish(self, job: _Job, request: Any) -> None:
        exchange = job.exchange
        try:
            with exchange.memory.after(()):
                try:
                    exchanged = request.result()
                except BaseException:
                    exchange.give_back(job.selected)
                    raise
                mean = exchange.finish(exchanged, job.selected)
                self._look_at(mean.values)
                exchange.memory.write(mean, job.gradients, exchange.layout.cuts)
                if not exchange.layout.is_dense:
                    self._now.selected(job.selected.nnz, exchange.layout.length)
                self._now.moved(request.last)
                self._deliver(job.buckets)
        except BaseException as error:
            self._deliver(job.buckets, error)

    def _deliver(self, buckets: Sequence[_Bucket], error: BaseException | None = None) -> None:
        self._error = self._error or error
        for bucket in buckets:
            bucket.finished_one()

    def _start_table(self, bucket: _Bucket) -> None:
        """The gradient of an embedding with ``sparse=True``: rows that were touched, and nothing is lost."""
        try:
            with bucket.memory.after([bucket.mark]):
                table = table_for(self._comm.size, bucket.buffer)
                request = table.start(self._comm)
        except BaseException as error:
            self._deliver([bucket], error)
        else:
            request.add_done_callback(
                lambda ended: self._worker.submit(self._finish_table, bucket, table, ended)
            )

    def _finish_table(self, bucket: _Bucket, table: Table, request: Any) -> None:
        try:
            with bucket.memory.after(()):
                bucket.buffer = table.mean(request.result())
                self._look_at(tensor_to_numpy(bucket.buffer.values()))
                self._now.moved(request.last)
                self._deliver([bucket])
        except BaseException as error:
            self._deliver([bucket], error)

    def _look_at(self, mean: Any) -> None:
        """Will the scaler skip this step?"""
        if self._scaler is not None and not np.isfinite(mean).all():
            self._now.is_finite = False

    def _undo(self) -> None:
        for exchange in self._exchanges():
            exchange.undo()

    def _rescale(self, factor: float) -> None:
        for exchange in self._exchanges():
            exchange.rescale(factor)

    # -- state -----------------------------------------------------------------------------------

    def _exchanges(self) -> Iterator[Exchange]:
        return (group.exchange for group in self._groups)

    def _lossy(self) -> Iterator[Lossy]:
        return (exchange for exchange in self._exchanges() if isinstance(exchange, Lossy))

    def _check(self, states: Sequence[Mapping[str, Any]], is_one: bool) -> None:
        """Refuse what belongs to another model or was saved otherwise."""
        expected = {
            (kind, name): place.stop - place.start
            for exchange in self._exchanges()
            for kind in exchange.memories()
            for name, place in exchange.layout.slices()
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


class _Group:
    """An exchange, and the gradients that have come for it."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.gradients: list[torch.Tensor | None] = [None] * len(exchange.layout.names)
        self.buckets: list[_Bucket] = []

    @property
    def is_complete(self) -> bool:
        return all(gradient is not None for gradient in self.gradients)

    def hand_over(self) -> _Job:
        """What has come; zeros stand for gradients that have not."""
        layout = self.exchange.layout
        gradients = [
            torch.zeros(place.stop - place.start, dtype=layout.dtype, device=layout.device)
            if gradient is None
            else gradient
            for gradient, (_, place) in zip(self.gradients, layout.slices(), strict=True)
        ]
        job = _Job(self.exchange, gradients, self.buckets)
        self.gradients, self.buckets = [None] * len(layout.names), []
        return job


@dataclass
class _Job:
    """One step of one group."""

    exchange: Exchange
    gradients: list[torch.Tensor]
    buckets: list[_Bucket]
    selected: Any = None


class _Bucket:
    """A bucket of DDP, until everything in it is the mean."""

    def __init__(self, buffer: torch.Tensor, memory: Device, groups: int = 1) -> None:
        self.buffer, self.memory = buffer, memory
        self.future = memory.future()
        self.mark = memory.mark()
        self.done = threading.Event()
        self._unfinished = groups

    def finished_one(self) -> None:
        """One of its groups is through; called by the worker alone."""
        self._unfinished -= 1
        if not self._unfinished:
            self.future.set_result(self.buffer)
            self.done.set()


@dataclass
class _Account:
    """What one step did."""

    entries: int = 0  # sent, of
    values: int = 0  # so many that are compressed
    bytes_sent: int = 0
    bytes_received: int = 0
    waited_s: float = 0.0
    is_finite: bool = True  # as far as the scaler asks

    def selected(self, entries: int, values: int) -> None:
        self.entries += entries
        self.values += values

    def moved(self, last: Last) -> None:
        self.bytes_sent += last.bytes_sent
        self.bytes_received += last.bytes_received


def _pieces(bucket: dist.GradBucket) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each parameter and its part of the bucket, flat, in the order in which it lies in memory."""
    buffer = bucket.buffer()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=False):
        start = gradient.storage_offset() - buffer.storage_offset()
        yield parameter, buffer[start : start + gradient.numel()]
