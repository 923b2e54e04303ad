"""Ranks as processes, connected by TCP: the driver that needs nothing but a network.

The rank's own thread does everything, inside the call.  Messages carry the number of their collective: early
ones wait for theirs, and leftovers of one that failed are dropped.

Failure: whoever fails tells everybody (an ``Abort`` message) and raises; whoever is told raises the same.
"""

from __future__ import annotations

import json
import socket
import time
from collections import defaultdict
from typing import Any, TypeVar

import numpy as np

from sparsewire import wire
from sparsewire.drivers._base import Execution, Traffic, check_peer
from sparsewire.drivers.mesh import Address, Mesh, listen, reach
from sparsewire.errors import (
    CallMismatchError,
    CollectiveTimeout,
    PeerLostError,
    SparsewireError,
    TransportError,
)
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.wire import Abort, Call, Envelope, Message

__all__ = ["TcpDriver", "connect"]

T = TypeVar("T")

GRACE_S = 0.5  # after a time-out or a loss: how long to listen to what others have to say about it
FAREWELL_S = 1.0  # after a failure: how long to try to tell everybody


def connect(rank: int, size: int, master: Address | socket.socket, secret: str, timeout: float) -> TcpDriver:
    """Join the job whose rank 0 listens at ``master``; returns when every rank has come.

    Rank 0 may give the socket that listens already, others give its address.
    """
    deadline = time.monotonic() + timeout
    if rank == 0:
        driver = TcpDriver(0, size, listen(master) if isinstance(master, tuple) else master, secret)
    else:
        assert isinstance(master, tuple)
        to_master = reach(master, deadline)
        driver = TcpDriver(rank, size, listen((to_master.getsockname()[0], 0)), secret)
        driver.mesh.adopt(0, to_master)
    try:
        driver.exchange_addresses(max(0.0, deadline - time.monotonic()))
    except BaseException:
        driver.close()
        raise
    return driver


class TcpDriver:
    """One rank of a job."""

    def __init__(self, rank: int, size: int, listener: socket.socket, secret: str) -> None:
        self.rank = rank
        self.size = size
        self.mesh = Mesh(rank, size, listener, secret, self._arrived, self._failed)
        self._broken: SparsewireError | None = None
        self._early: dict[int, list[tuple[int, Message]]] = defaultdict(list)  # for collectives to come
        self._abandoned: set[int] = set()  # collectives that failed, as far as this rank knows
        self._late: SparsewireError | None = None  # one of them, not raised here yet
        # the collective in progress, or the last one
        self._number = -1
        self._call = b""
        self._execution: Execution[Any] | None = None
        self._traffic = Traffic()
        self._failure: SparsewireError | None = None
        self._told = False  # did somebody else tell us of the failure?
        self._reports: dict[int, set[int]] = {}  # rank whose time ran out -> whom it was waiting for

    def run(self, script: Steps[T], call: Call, timeout: float) -> tuple[T, Traffic]:
        execution = Execution(script)
        self._begin(call, execution)
        try:
            result = self._drive(execution, timeout)
        except SparsewireError as error:
            self._tell(error)
            raise
        except BaseException as error:
            self._tell(TransportError(f"rank {self.rank} failed with {type(error).__name__}: {error}"))
            raise
        finally:
            self._execution = None
            self.mesh.keep_unsent()
            execution.close()
        if self._late is not None:
            late, self._late = self._late, None
            raise late
        return result, self._traffic

    def refuse(self, error: SparsewireError) -> None:
        self._begin(Call(), None)
        self._tell(error)

    def close(self) -> None:
        self.mesh.close()
        self._broken = self._broken or TransportError("the communicator was closed")

    def exchange_addresses(self, timeout: float) -> None:
        """Collective 0: everybody learns from rank 0 where everybody listens."""
        script = _address_book(self.rank, self.size, self.mesh.address)
        table, _ = self.run(script, Call("rendezvous", length=self.size), timeout)
        self.mesh.addresses = dict(enumerate(table))

    # -- one collective --------------------------------------------------------------------------

    def _begin(self, call: Call, execution: Execution[Any] | None) -> None:
        if self._broken is not None:
            raise TransportError(
                f"this communicator is broken, make a new one: {self._broken}"
            ) from self._broken
        self._number += 1
        self._call = call.pack()
        self._execution = execution
        self._traffic = Traffic()
        self._failure, self._told = None, False
        self._reports = {}
        for source, message in self._early.pop(self._number, []):
            self._arrived(source, message)

    def _drive(self, execution: Execution[T], timeout: float) -> T:
        deadline = time.monotonic() + timeout
        while True:
            if self._failure is not None:
                raise self._failure
            self._post(execution.advance())
            if execution.done and not self.mesh.unsent():
                self._traffic.rounds = execution.rounds
                return execution.result
            awaited = self._awaited(execution)
            self._check_presence(awaited)
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._reports:
                raise self._time_out(awaited, timeout)
            self.mesh.poll(remaining)

    def _awaited(self, execution: Execution[Any]) -> set[int]:
        """The ranks without whom this rank cannot go on."""
        sources = execution.waiting_for
        if sources is None:  # anybody's message would do, so nobody may be missing
            sources = set(range(self.size)) - {self.rank}
        return sources | self.mesh.unsent()

    def _check_presence(self, awaited: set[int]) -> None:
        for peer in sorted(awaited):
            self.mesh.watch(peer)
        if not awaited & self.mesh.lost.keys():
            return
        self._listen(GRACE_S)  # did it leave because of a failure that we are about to be told of?
        if self._failure is not None:
            raise self._failure
        for peer in sorted(awaited & self.mesh.lost.keys()):
            how = self.mesh.lost[peer]
            raise PeerLostError(f"rank {peer} is gone: {how} (noticed by rank {self.rank})")

    def _time_out(self, awaited: set[int], timeout: float) -> CollectiveTimeout:
        """Blame those who are waited for and do not say themselves that they are waiting."""
        self._notify(Abort(CollectiveTimeout("time-out"), tuple(sorted(awaited))))
        self._listen(GRACE_S)
        accused = awaited.union(*self._reports.values()) - {self.rank, *self._reports}
        late = ", ".join(str(peer) for peer in sorted(accused or awaited))
        what = Call.unpack(self._call)
        refused = self.mesh.refused
        hint = f"; {refused} connections could not prove to be ranks" if refused else ""
        return CollectiveTimeout(f"rank {late} did not arrive within {timeout:g} s in {what}{hint}")

    # -- failure ---------------------------------------------------------------------------------

    def _failed(self, error: SparsewireError) -> None:
        """Remember the first failure; the call raises it when it sees it."""
        self._failure = self._failure or error

    def _failed_late(self, number: int, error: SparsewireError) -> None:
        """An earlier collective failed elsewhere after this rank's part of it, one-sided, had ended well.

        The present one is not disturbed: it goes on to its end, and then this rank raises.
        """
        if number not in self._abandoned:
            self._abandoned.add(number)
            self._late = self._late or error

    def _tell(self, error: SparsewireError) -> None:
        """Let everybody know why this call fails here, unless it was they who told us."""
        self._abandoned.add(self._number)
        if isinstance(error, TransportError):
            self._broken = error
        if isinstance(error, CollectiveTimeout):
            return  # told already
        # Rank 0 is connected to everybody, so it passes on what it was told: to some the failing rank
        # may have had no connection yet, and leave before they come.
        if not self._told or self.rank == 0:
            self._notify(Abort(error))

    def _listen(self, seconds: float) -> None:
        """Take in what others have to say, until one of them tells us of a failure."""
        end = time.monotonic() + seconds
        while self._failure is None and (remaining := end - time.monotonic()) > 0:
            self.mesh.poll(remaining)

    def _notify(self, abort: Abort) -> None:
        for peer in range(self.size):
            if peer != self.rank and self.mesh.reachable(peer):
                self._post([Send(peer, abort)])
        end = time.monotonic() + FAREWELL_S
        while self.mesh.unsent() - self.mesh.lost.keys() and (remaining := end - time.monotonic()) > 0:
            self.mesh.poll(remaining)

    # -- messages --------------------------------------------------------------------------------

    def _post(self, sends: list[Send]) -> None:
        encoded: dict[int, list[Any]] = {}  # what goes to several ranks is encoded once
        for send in sends:
            check_peer(send.peer, self.rank, self.size)
            if id(send.payload) not in encoded:
                envelope = Envelope(self._number, self._call)
                encoded[id(send.payload)] = wire.encode(send.payload, envelope)
            self._traffic.messages_sent += 1
            self._traffic.bytes_sent += wire.size(send.payload)
            self.mesh.post(send.peer, encoded[id(send.payload)])

    def _arrived(self, source: int, message: Message) -> None:
        """Sort a message by collective; what disagrees with this rank's call ends the call."""
        (number, call), payload = message
        if isinstance(payload, Abort):
            self._aborted(source, message, payload)
        elif number > self._number:
            self._early[number].append((source, message))
        elif number < self._number:
            what = f"rank {source} called {Call.unpack(call)}, and rank {self.rank} something else"
            self._failed_late(number, CallMismatchError(what))
        elif call != self._call and number not in self._abandoned:
            self._failed(self._mismatch(source, call))
        elif self._execution is not None:
            self._traffic.messages_received += 1
            self._traffic.bytes_received += wire.size(payload)
            self._execution.deliver(source, payload)

    def _aborted(self, source: int, message: Message, abort: Abort) -> None:
        number = message.envelope.collective
        if isinstance(abort.error, CollectiveTimeout):
            if number >= self._number:
                self._reports[source] = set(abort.waiting)
        elif isinstance(abort.error, TransportError) or number == self._number:
            self._told = self._told or self._failure is None
            self._failed(abort.error)
        elif number > self._number:
            self._early[number].append((source, message))
        else:
            self._failed_late(number, abort.error)

    def _mismatch(self, source: int, call: bytes) -> CallMismatchError:
        calls = sorted([(self.rank, Call.unpack(self._call)), (source, Call.unpack(call))])
        return CallMismatchError(", but ".join(f"rank {rank} called {what}" for rank, what in calls))


def _address_book(rank: int, size: int, mine: Address) -> Steps[list[Address]]:
    """Everybody's address, by way of rank 0."""
    if rank:
        [book] = yield [Send(0, _to_vector(mine)), Recv(0)]
        return [_from_vector(page) for page in book]
    pages = yield [Recv(peer) for peer in range(1, size)]
    book = [_to_vector(mine), *pages]
    yield [Send(peer, book) for peer in range(1, size)]
    return [_from_vector(page) for page in book]


def _to_vector(address: Address) -> SparseVector:
    return SparseVector.from_dense(np.frombuffer(json.dumps(address).encode(), np.uint8).astype(np.int32))


def _from_vector(vector: SparseVector) -> Address:
    host, port = json.loads(vector.to_dense().astype(np.uint8).tobytes())
    return str(host), int(port)
