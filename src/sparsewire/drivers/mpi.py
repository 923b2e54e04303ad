"""Ranks of an MPI job: the transport for clusters, whatever their network.

A message is joined into one buffer and sent at once.  The receiver learns its size from a matched probe,
receives it into memory of that size, and reads the pieces in place (``docs/design.md`` has the comparison).

Messages are sent and received by buffer calls that return at once, on a duplicate of the caller's
communicator: they are never mixed up with the caller's messages, and no call can hang.  One lock around all
calls makes MPI_THREAD_SERIALIZED enough for any number of communicators.  A program without non-blocking
calls needs only MPI_THREAD_SINGLE.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from sparsewire.coding import frame
from sparsewire.coding.frame import Message
from sparsewire.drivers.aggregator import check_aggregators, check_agreement, engine_at
from sparsewire.drivers.engine import Engine
from sparsewire.errors import InputError, MissingExtraError, SparsewireError, TransportError
from sparsewire.kernels import memory

try:
    from mpi4py import MPI
except ImportError as error:
    raise MissingExtraError.of("mpi4py", "mpi") from error

__all__ = ["MpiTransport", "connect"]

AT_ONCE_BYTES = 1 << 12  # a message up to this size has arrived when the probe finds it: receive it at once
BUSY_POLLS = 50  # how often to poll in vain before sleeping between polls
LONGEST_SLEEP_S = 5e-4
SENDING_AT_CLOSE_S = 1.0  # how long closing waits for messages that are still being sent
TAGS = 1 << 15  # MPI guarantees that tags below this can be used
GROUP_TAG = 0  # for the messages that MPI itself sends while it makes a group; no transport uses it

_calling = threading.Lock()  # MPI_THREAD_SERIALIZED: one call at a time
_tags = 0  # how many tags were given out, as far as this process knows
_open: weakref.WeakSet[MpiTransport] = weakref.WeakSet()


def connect(comm: MPI.Intracomm | None = None, aggregators: int = 0) -> Engine:
    """This rank of ``comm``, by default of all that mpiexec started.

    The last ``aggregators`` of the ranks only aggregate; if ranks differ about how many, all raise
    CallMismatchError.
    """
    comm = MPI.COMM_WORLD if comm is None else _checked(comm)
    check_agreement(comm.allgather(aggregators))
    check_aggregators(aggregators, comm.size)
    workers, others = range(comm.size - aggregators), range(comm.size - aggregators, comm.size)
    partners = others if comm.rank in workers else workers
    return engine_at(comm.rank, comm.size, MpiTransport(comm.Dup(), partners), aggregators)


def _checked(comm: Any) -> MPI.Intracomm:
    if isinstance(comm, MPI.Comm) and (MPI.Is_finalized() or not comm):
        raise InputError("comm was freed, or is null: give a communicator that is in use")
    if not isinstance(comm, MPI.Intracomm):
        raise InputError(
            f"comm is a {type(comm).__name__}; give an mpi4py communicator such as MPI.COMM_WORLD"
        )
    return comm


@atexit.register
def _close_all() -> None:
    """Runs before MPI is finalized, which would wait for messages that nobody fetches."""
    for transport in [*_open]:
        transport.close()


class MpiTransport:
    """One rank's messages over a communicator that belongs to it alone.

    When it closes, it tells its ``partners`` by an empty message; it does not tell other ranks.  When a rank
    dies, MPI ends the whole job.
    """

    def __init__(self, comm: MPI.Intracomm, partners: Sequence[int] = ()) -> None:
        self.lost: dict[int, str] = {}
        self.kind = ("mpi", MPI.Get_library_version().split("\n")[0])
        self._comm, self._partners = comm, partners
        self._tag = _new_tag(comm)
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # so that errors become exceptions
        self._outgoing: list[Outgoing] = []
        self._incoming: deque[_Incoming] = deque()
        self._status = MPI.Status()
        self._woken = False
        self._closed = False
        self._on_message: Callable[[int, Message], None]
        self._on_error: Callable[[SparsewireError], None]
        _open.add(self)

    def attach(
        self, on_message: Callable[[int, Message], None], on_error: Callable[[SparsewireError], None]
    ) -> None:
        self._on_message, self._on_error = on_message, on_error

    def post(self, peers: Sequence[int], buffers: list[Any]) -> list[Outgoing]:
        joined = _join(buffers)
        try:
            with _calling:
                posted = [
                    Outgoing(peer, self._comm.Isend(_spec(joined), peer, self._tag), joined) for peer in peers
                ]
        except MPI.Exception as error:
            raise TransportError(f"MPI could not send: {error}") from error
        self._outgoing += posted
        return posted

    def poll(self, timeout: float) -> None:
        """Return when a message was received or sent, or when woken up.

        Between polls the thread lets others run, because there may be more ranks than cores.
        """
        end = time.monotonic() + timeout
        polls = 0
        try:
            while not (self._receive() | self._complete_sends()) and not self._woken:
                polls += 1
                if polls < BUSY_POLLS:
                    os.sched_yield()
                    continue
                if time.monotonic() >= end:
                    break
                time.sleep(min(LONGEST_SLEEP_S, polls * 1e-7))
        except MPI.Exception as error:
            self._on_error(TransportError(f"MPI failed: {error}"))
        self._woken = False

    def wake(self) -> None:
        self._woken = True

    def reachable(self, peer: int) -> bool:
        return peer not in self.lost

    def watch(self, peer: int) -> None:
        """There is nothing to do: the launcher notices ranks that die, and partners say that they close."""

    def hint(self) -> str:
        return ""

    def invite(self) -> bytes:
        return b""

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> MpiTransport:
        with _calling:
            chosen = self._comm.group.Incl(list(group))
            comm = self._comm.Create_group(chosen, GROUP_TAG)
            chosen.Free()
        return MpiTransport(comm)

    def close(self, in_order: bool = True) -> None:
        """Give back what MPI holds.

        Messages that nobody fetches are abandoned after a moment.  Then, and after a failure, the
        communicator is not freed: MPI would give its context to the next one, where late messages do harm.
        """
        if self._closed or MPI.Is_finalized():
            return
        self._closed = True
        with suppress(TransportError):
            self.post([peer for peer in self._partners if peer not in self.lost], [])
        end = time.monotonic() + SENDING_AT_CLOSE_S
        while self._outgoing and time.monotonic() < end:
            self._complete_sends()
            os.sched_yield()
        with _calling:
            for request in [*(o.request for o in self._outgoing), *(i.request for i in self._incoming)]:
                if request is not None:
                    request.Free()
            if in_order and not self._outgoing and not self._incoming:
                self._comm.Free()
        _open.discard(self)

    # -- messages --------------------------------------------------------------------------------

    def _complete_sends(self) -> bool:
        if not self._outgoing:
            return False
        before = len(self._outgoing)
        with _calling:
            self._outgoing = [outgoing for outgoing in self._outgoing if not outgoing.test()]
        return len(self._outgoing) < before

    def _receive(self) -> bool:
        """Hand over the messages that are complete, in the order in which they were matched."""
        with _calling:
            while (matched := self._comm.Improbe(MPI.ANY_SOURCE, self._tag, self._status)) is not None:
                self._incoming.append(_Incoming(matched, self._status))
        happened = False
        while self._incoming and self._incoming[0].test():
            incoming = self._incoming.popleft()
            happened = True
            if not len(incoming.data):
                self.lost[incoming.source] = "it closed the communicator"
                continue
            try:
                message = frame.decode(incoming.data)
            except SparsewireError as error:
                self._on_error(type(error)(f"from rank {incoming.source}: {error}"))
            else:
                self._on_message(incoming.source, message)
        return happened


class Outgoing:
    """A message that MPI is sending from a copy that belongs to it."""

    __slots__ = ("_data", "done", "peer", "request")

    def __init__(self, peer: int, request: MPI.Request, data: Any) -> None:
        self.peer = peer
        self.request = request
        self.done = False
        self._data = data

    def test(self) -> bool:
        self.done = self.done or self.request.Test()
        return self.done

    def keep(self) -> None:
        """There is nothing to do: what is sent is a copy."""


class _Incoming:
    """A message that has been matched, and the memory it is received into."""

    __slots__ = ("data", "request", "source")

    def __init__(self, matched: MPI.Message, status: MPI.Status) -> None:
        self.source = status.Get_source()
        words = status.Get_count(MPI.INT64_T)
        # None of ours has a part of a word at its end.  It is received all the same, and decoding refuses it.
        nbytes = status.Get_count(MPI.BYTE) if words == MPI.UNDEFINED else 8 * words
        self.data = memory.empty(nbytes, np.uint8)
        self.request: MPI.Request | None = None
        if nbytes <= AT_ONCE_BYTES:
            matched.Recv(_spec(self.data))
        else:
            self.request = matched.Irecv(_spec(self.data))

    def test(self) -> bool:
        if self.request is None:
            return True
        with _calling:
            return bool(self.request.Test())


def _new_tag(comm: MPI.Intracomm) -> int:
    """A tag that no rank has used: a freed communicator's messages may still arrive on one made after it.

    It is never ``GROUP_TAG``: MPI would take a message of ours for one of its own, and the other way round.
    """
    global _tags
    with _calling:
        tag = comm.allreduce(_tags, MPI.MAX)
        _tags = tag + 1
    return int(GROUP_TAG + 1 + tag % (TAGS - GROUP_TAG - 1))


def _join(buffers: list[Any]) -> Any:
    """The buffers as one."""
    nbytes = sum(map(len, buffers))
    if nbytes < memory.SMALL_BYTES:
        return b"".join(buffers)
    joined = memory.empty(nbytes, np.uint8)
    at = 0
    for buffer in buffers:
        joined[at : at + len(buffer)] = np.frombuffer(buffer, np.uint8)
        at += len(buffer)
    return joined


def _spec(buffer: Any) -> list[Any]:
    """What MPI sends or fills: words of 8 bytes where possible, because its counts may have 31 bits."""
    if len(buffer) % 8:
        return [buffer, len(buffer), MPI.BYTE]
    return [buffer, len(buffer) // 8, MPI.INT64_T]
