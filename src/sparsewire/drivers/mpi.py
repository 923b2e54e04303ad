"""Ranks of an MPI job: the transport for clusters, whatever their network.

A message is joined into one buffer and sent at once.  The receiver learns its size from a matched probe,
receives it into memory of that size, and reads the pieces in place (``docs/design.md`` has the comparison).

Messages are sent and received by buffer calls that return at once, on a duplicate of the caller's
communicator: they are never mixed up with the caller's messages, and no call can hang.  One lock around all
calls makes MPI_THREAD_SERIALIZED enough for any number of communicators.  A program without non-blocking
calls needs only MPI_THREAD_SINGLE.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from sparsewire.coding import frame
from sparsewire.coding.frame import Message
from sparsewire.drivers.aggregator import check_aggregators, check_agreement, engine_at
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.protocols import NeverGrows
from sparsewire.drivers.waiting import announced
from sparsewire.errors import (
    CollectiveTimeout,
    InputError,
    MissingExtraError,
    PeerLostError,
    SparsewireError,
    TransportError,
)
from sparsewire.kernels import memory

# At its end, Open MPI with ULFM has the ranks that are left wait for each other, and then for all ranks of
# the job: now and then for the dead, without end.  The second wait can be left out before MPI is started.
HAS_ULFM, ENDS_AT_ONCE = "OMPI_MCA_mpi_ft_enable", "OMPI_MCA_async_mpi_finalize"
if os.environ.get(HAS_ULFM) in ("1", "true"):
    os.environ.setdefault(ENDS_AT_ONCE, "1")
try:
    from mpi4py import MPI
except ImportError as error:
    raise MissingExtraError.of("mpi4py", "mpi") from error

__all__ = ["MpiTransport", "connect"]

AT_ONCE_BYTES = 1 << 12  # a message up to this size has arrived when the probe finds it: receive it at once
BUSY_POLLS = 50  # how often to poll in vain before sleeping between polls
LONGEST_SLEEP_S = 5e-4
CONFIRMED_BYTES = 8 << 20  # after so many bytes to a rank, the next message is sent when it is received
SENDING_AT_CLOSE_S = 1.0  # how long closing waits for messages that are still being sent
TAGS = 1 << 15  # MPI guarantees that tags below this can be used
GROUP_TAG = 0  # for the messages that MPI itself sends while it makes a group; no transport uses it
SHRINK_TAG = 1  # for those of the ranks that survive a failure; no transport uses it either

_calling = threading.Lock()  # MPI_THREAD_SERIALIZED: one call at a time
_closed: list[MpiTransport] = []  # in order, and not freed yet
_tags = 0  # how many tags were given out, as far as this process knows


def _free_closed() -> None:
    _closed[:] = [transport for transport in _closed if not transport.free()]


def connect(comm: MPI.Intracomm | None = None, aggregators: int = 0) -> Engine:
    """This rank of ``comm``, by default of all that mpiexec started.

    The last ``aggregators`` of the ranks only aggregate; if ranks differ about how many, all raise
    CallMismatchError.
    """
    comm = MPI.COMM_WORLD if comm is None else _checked(comm)
    with announced(comm.rank, lambda: f"other ranks of {comm.size} to join"):
        check_agreement(comm.allgather(aggregators))
    check_aggregators(aggregators, comm.size)
    _free_closed()
    return engine_at(comm.rank, comm.size, MpiTransport(comm.Dup()), aggregators)


def _checked(comm: Any) -> MPI.Intracomm:
    if isinstance(comm, MPI.Comm) and (MPI.Is_finalized() or not comm):
        raise InputError("comm was freed, or is null: give a communicator that is in use")
    if not isinstance(comm, MPI.Intracomm):
        raise InputError(
            f"comm is a {type(comm).__name__}; give an mpi4py communicator such as MPI.COMM_WORLD"
        )
    return comm


class MpiTransport(NeverGrows):
    """One rank's messages over a communicator that belongs to it alone.

    A rank that ends closes it before MPI is finalized, which would wait for messages that nobody fetches; the
    engine sees to that, and tells the others.  When a rank dies, MPI ends the whole job, unless it has ULFM
    (User-Level Failure Mitigation), which tells the others.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.lost: dict[int, str] = {}
        self.met = range(comm.size)
        self.kind = ("mpi", MPI.Get_library_version().split("\n")[0])
        self._comm = comm
        self._tag = _new_tag(comm)
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # so that errors become exceptions
        self._outgoing: list[Outgoing] = []
        self._incoming: deque[_Incoming] = deque()
        self._sources: list[int] = [MPI.ANY_SOURCE]  # whose messages are received
        self._paused: set[int] = set()
        self._unconfirmed = [0] * comm.size  # bytes sent to each rank since it last had to confirm
        self._status = MPI.Status()
        self._woken = False
        self._closed = False
        self._on_message: Callable[[int, Message], None]
        self._on_error: Callable[[SparsewireError], None]

    def attach(
        self, on_message: Callable[[int, Message], None], on_error: Callable[[SparsewireError], None]
    ) -> None:
        self._on_message, self._on_error = on_message, on_error

    def post(self, peers: Sequence[int], buffers: list[Any]) -> list[Outgoing]:
        joined = _join(buffers)
        try:
            with _calling:
                posted = [Outgoing(peer, self._send(joined, peer), joined) for peer in peers]
        except MPI.Exception as error:
            if not self._notice_lost(error):
                raise TransportError(f"MPI could not send: {error}") from error
            raise PeerLostError(f"rank {min(self.lost)} is gone: {self.lost[min(self.lost)]}") from error
        self._outgoing += posted
        return posted

    def _send(self, joined: Any, peer: int) -> MPI.Request:
        """Begin to send; now and then, the message counts as sent only when the peer receives it.

        MPI itself keeps small messages that nobody receives, so a rank could send without end.
        """
        self._unconfirmed[peer] += len(joined)
        if self._unconfirmed[peer] <= CONFIRMED_BYTES:
            return self._comm.Isend(_spec(joined), peer, self._tag)
        self._unconfirmed[peer] = 0
        return self._comm.Issend(_spec(joined), peer, self._tag)

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
            if not self._notice_lost(error):
                self._on_error(TransportError(f"MPI failed: {error}"))
        self._woken = False

    def _notice_lost(self, error: MPI.Exception) -> bool:
        """Does the error say that ranks have died, and does MPI go on without them?"""
        if error.Get_error_class() not in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
            return False
        with _calling:
            failed = self._comm.Get_failed()
            self._comm.Ack_failed(failed.size)  # from now on, messages of the others are received again
            for rank in MPI.Group.Translate_ranks(failed, None, self._comm.group):
                self.lost.setdefault(rank, "its process has ended, says MPI")
        # What was on its way is gone: a request that failed once is complete when it is asked again.
        self._outgoing = [outgoing for outgoing in self._outgoing if outgoing.peer not in self.lost]
        self._incoming = deque(one for one in self._incoming if one.source not in self.lost)
        return True

    def wake(self) -> None:
        self._woken = True

    def reachable(self, peer: int) -> bool:
        return peer not in self.lost

    def watch(self, peer: int) -> None:
        """There is nothing to do: the launcher notices ranks that die, and others say that they close."""

    def pause(self, peer: int) -> None:
        """Leave its messages to MPI.  What waits there is bounded, because senders ask for confirmation."""
        self._paused.add(peer)
        self._choose_sources()

    def resume(self, peer: int) -> None:
        self._paused.discard(peer)
        self._choose_sources()

    def _choose_sources(self) -> None:
        others = [peer for peer in self.met if peer not in self._paused]
        self._sources = others if self._paused else [MPI.ANY_SOURCE]

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

    def shrink(self, timeout: float) -> tuple[MpiTransport, list[int]]:
        try:
            self._wait_for_survivors(timeout)
            with _calling:
                comm = self._comm.Shrink()
                comm.Set_errhandler(MPI.ERRORS_RETURN)
                group = MPI.Group.Translate_ranks(comm.group, None, self._comm.group)
            assert isinstance(comm, MPI.Intracomm)
            self.close(in_order=False)
            return MpiTransport(comm), list(group)
        except (MPI.Exception, NotImplementedError) as error:
            raise TransportError(
                f"this MPI cannot go on without ranks that died ({error}): it needs ULFM, which Open MPI 5 "
                "has with mpiexec --with-ft ulfm"
            ) from error

    def _wait_for_survivors(self, timeout: float) -> None:
        """Return when every rank that is alive has come here, because MPI's own call has no time-out."""
        end = time.monotonic() + timeout
        missing = set(range(self._comm.size)) - {self._comm.rank}
        told: set[int] = set()
        status, nothing = MPI.Status(), bytearray(8)
        while missing := missing - self.lost.keys():
            try:
                with _calling:
                    for peer in missing - told:
                        told.add(peer)
                        self._comm.Isend(_spec(nothing), peer, SHRINK_TAG).Free()
                    while self._comm.Iprobe(MPI.ANY_SOURCE, SHRINK_TAG, status):
                        self._comm.Recv(_spec(nothing), status.source, SHRINK_TAG)
                        missing.discard(status.source)
            except MPI.Exception as error:
                if not self._notice_lost(error):
                    raise
            if time.monotonic() > end:
                names = ", ".join(map(str, sorted(missing)))
                raise CollectiveTimeout(f"rank {names} did not call shrink() within {timeout:g} s")
            time.sleep(LONGEST_SLEEP_S)

    def close(self, in_order: bool = True) -> None:
        """Give back what MPI holds.

        Messages that nobody fetches are abandoned after a moment.  Then, and after a failure, the
        communicator is never freed: MPI would give its context to the next one, where late messages do harm.
        Otherwise it is freed when the last message of every rank has come, which may be later.
        """
        if self._closed or MPI.Is_finalized():
            return
        self._closed = True
        end = time.monotonic() + SENDING_AT_CLOSE_S
        while self._outgoing and time.monotonic() < end:
            with suppress(MPI.Exception):  # to a rank that has died
                self._complete_sends()
            os.sched_yield()
        with _calling:
            for request in [*(o.request for o in self._outgoing), *(i.request for i in self._incoming)]:
                if request is not None:
                    request.Free()
        if in_order and not self._outgoing and not self._incoming:
            _closed.append(self)
        _free_closed()

    def free(self) -> bool:
        """Free the communicator, if no rank will send any more on it."""
        self._receive()
        is_unused = len(self.lost) == len(self.met) - 1
        if is_unused:
            with _calling:
                self._comm.Free()
        return is_unused

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
            for source in self._sources:
                while (matched := self._comm.Improbe(source, self._tag, self._status)) is not None:
                    self._incoming.append(_Incoming(matched, self._status))
        happened = False
        while self._incoming and self._incoming[0].test():
            incoming = self._incoming.popleft()
            happened = True
            try:
                self._on_message(incoming.source, frame.decode(incoming.data))
            except Exception as error:
                self._on_error(frame.blame(incoming.source, error))
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
    return int(SHRINK_TAG + 1 + tag % (TAGS - SHRINK_TAG - 1))


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
