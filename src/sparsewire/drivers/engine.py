"""One rank's part of many collectives in flight, over any transport.

A transport moves messages between ranks; the engine gives each to its collective, whose number is in the
message.  Messages that come early wait for their collective, and those of a failed one are dropped.  One
thread at a time may use an engine, and everything happens in its calls.

Failure: a rank at which a collective fails sends an ``Abort`` message to all ranks and raises.  A rank that
receives one raises the same error.  Other collectives go on, unless the transport broke: then all fail.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Generic, TypeVar

from sparsewire.coding import frame
from sparsewire.coding.call import Abort, Call, Envelope
from sparsewire.coding.frame import Message
from sparsewire.drivers.execution import Execution, check_peer
from sparsewire.drivers.protocols import Outgoing, Traffic, Transport
from sparsewire.errors import (
    CallMismatchError,
    CollectiveTimeout,
    PeerLostError,
    SparsewireError,
    TransportError,
)
from sparsewire.steps import Send, Steps

__all__ = ["Collective", "Engine", "as_transport_error"]

T = TypeVar("T")

LISTEN_S = 0.5  # after a time-out or a loss: how long to wait for what other ranks report about it
NOTIFY_S = 1.0  # after a failure: how long to try to tell everybody


class Collective(Generic[T]):
    """One collective at this rank, from its start to its end."""

    def __init__(
        self,
        number: int,
        call: bytes,
        caller: int,
        script: Steps[T],
        timeout: float,
        on_end: Callable[[Collective[Any]], None],
    ) -> None:
        self.number = number
        self.call = call
        self.caller = caller  # the rank whose call that is
        self.execution = Execution(script)
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.on_end = on_end
        self.traffic = Traffic()
        self.unsent: list[Outgoing] = []
        self.failure: SparsewireError | None = None  # why it has to end, once known
        self.told = False  # did another rank report the failure?
        self.ended = False
        self.error: BaseException | None = None

    def outcome(self) -> tuple[T, Traffic]:
        """The script's result and what it moved, or the error, once it has ended."""
        if self.error is not None:
            raise self.error
        return self.execution.result, self.traffic

    def awaited(self, rank: int, size: int) -> set[int]:
        """The ranks that this rank is waiting for."""
        sources = self.execution.waiting_for
        if sources is None:  # it may be a message from any rank, so none may be missing
            sources = set(range(size)) - {rank}
        return sources | {outgoing.peer for outgoing in self.unsent}

    def fail(self, error: SparsewireError, told: bool = False) -> None:
        """Remember the first failure; the next step of this collective is its last."""
        if self.failure is None:
            self.failure, self.told = error, told


class Engine:
    """One rank of a group; see ``Driver``."""

    def __init__(self, rank: int, size: int, transport: Transport, aggregators: int = 0) -> None:
        self.rank = rank
        self.size = size
        self.aggregators = aggregators
        self.transport = transport
        self.index_price = 0.0
        self._number = -1  # of the last collective that was started
        self._reserved: set[int] = set()  # collectives whose turn has not come
        self._flight: dict[int, Collective[Any]] = {}
        self._early: dict[int, list[tuple[int, Message]]] = defaultdict(list)  # for collectives to come
        self._abandoned: set[int] = set()  # collectives that failed, as far as this rank knows
        self._late: SparsewireError | None = None  # one of them, not raised here yet
        self._reports: dict[int, set[int]] = {}  # rank whose time ran out -> ranks that it was waiting for
        self._has_news = False  # has a message come that no step has seen?
        self._broken: SparsewireError | None = None
        transport.attach(self._arrived, self._break_down)

    def run(self, script: Steps[T], call: Call, timeout: float) -> tuple[T, Traffic]:
        collective = self.start(script, call, timeout)
        try:
            while not collective.ended:
                self.progress(collective.timeout)
        except BaseException as error:  # such as Ctrl-C
            self._break_down(as_transport_error(self.rank, error))
            self._step_all()
            raise
        return collective.outcome()

    def reserve(self) -> int:
        if self._broken is not None:
            raise TransportError(
                f"this communicator is broken, make a new one: {self._broken}"
            ) from self._broken
        self._number += 1
        self._reserved.add(self._number)
        return self._number

    def start(
        self,
        script: Steps[T],
        call: Call,
        timeout: float,
        on_end: Callable[[Collective[Any]], None] = lambda collective: None,
        number: int | None = None,
    ) -> Collective[T]:
        number = self.reserve() if number is None else number
        self._reserved.discard(number)
        collective = Collective(number, call.pack(), self.rank, script, timeout, on_end)
        self._flight[number] = collective
        for source, message in self._early.pop(number, []):
            self._arrived(source, message)
        self._step(collective)
        return collective

    @property
    def idle(self) -> bool:
        return not self._flight

    def progress(self, timeout: float) -> None:
        next_deadline = min((c.deadline for c in self._flight.values()), default=0.0)
        self.transport.poll(min(timeout, next_deadline - time.monotonic()))
        self._step_all()

    def wake(self) -> None:
        self.transport.wake()

    def refuse(self, error: SparsewireError, number: int | None = None) -> None:
        number = self.reserve() if number is None else number
        self._reserved.discard(number)
        self._abandoned.add(number)
        self._notify(Envelope(number, Call().pack()), Abort(error))

    @property
    def kind(self) -> tuple[str, str]:
        return self.transport.kind

    def invite(self) -> bytes:
        return self.transport.invite()

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Engine:
        return Engine(group.index(self.rank), len(group), self.transport.split(group, invitations))

    def close(self) -> None:
        closed = TransportError("the communicator was closed")
        for collective in [*self._flight.values()]:
            self._end(collective, closed)
        self.transport.close(in_order=self._broken is None and not self._abandoned)
        self._broken = self._broken or closed

    # -- one collective --------------------------------------------------------------------------

    def _step_all(self) -> None:
        self._has_news = True
        while self._has_news:  # again, if messages came while others were told of a failure
            self._has_news = False
            for collective in [*self._flight.values()]:
                if not collective.ended:  # it may have failed together with another one
                    self._step(collective)

    def _step(self, collective: Collective[Any]) -> None:
        """Advance a collective as far as possible without waiting."""
        try:
            if collective.failure is not None:
                raise collective.failure
            self._advance(collective)
            if not collective.ended:
                self._check_presence(collective)
                self._check_time(collective)
        except SparsewireError as error:
            self._fail(collective, error, error)
        except Exception as error:  # the script's own
            self._fail(collective, error, as_transport_error(self.rank, error))

    def _advance(self, collective: Collective[Any]) -> None:
        execution, rounds = collective.execution, collective.execution.rounds
        while sends := execution.advance():
            self._post(collective, sends)
        if collective.unsent:
            collective.unsent = [outgoing for outgoing in collective.unsent if not outgoing.done]
        if execution.done and not collective.unsent:
            late, self._late = self._late, None
            self._end(collective, late)
        elif execution.rounds != rounds:  # it waits for other ranks than before
            for peer in collective.awaited(self.rank, self.size):
                self.transport.watch(peer)

    def _end(self, collective: Collective[Any], error: BaseException | None) -> None:
        del self._flight[collective.number]
        collective.traffic.rounds = collective.execution.rounds
        collective.execution.close()
        for outgoing in collective.unsent:
            outgoing.keep()
        collective.error, collective.ended = error, True
        collective.on_end(collective)

    def _check_presence(self, collective: Collective[Any]) -> None:
        if not self.transport.lost:
            return
        awaited = collective.awaited(self.rank, self.size)
        if awaited.isdisjoint(self.transport.lost):
            return
        self._listen(collective)  # it may have left because of a failure, of which a message is on its way
        peer = min(awaited & self.transport.lost.keys())
        how = f"{self.transport.lost[peer]} (noticed by rank {self.rank})"
        raise PeerLostError(f"rank {peer} is gone: {how}{self._roles([peer])}")

    def _check_time(self, collective: Collective[Any]) -> None:
        """When time is up, name the ranks that are waited for and do not report that they wait themselves."""
        if not self._reports and time.monotonic() < collective.deadline:
            return
        awaited = collective.awaited(self.rank, self.size)
        waiting = Abort(CollectiveTimeout("time-out"), tuple(sorted(awaited)))
        self._notify(Envelope(collective.number, collective.call), waiting)
        self._listen(collective)
        accused = awaited.union(*self._reports.values()) - {self.rank, *self._reports}
        late = sorted(accused or awaited)
        names = ", ".join(str(peer) for peer in late)
        limit = f"within {collective.timeout:g} s" if collective.timeout < math.inf else "in time"
        what, more = Call.unpack(collective.call), self._roles(late) + self.transport.hint()
        raise CollectiveTimeout(f"rank {names} did not arrive {limit} in {what}{more}")

    def _roles(self, peers: Iterable[int]) -> str:
        """What an error message says of these ranks in addition: which of them are aggregators."""
        workers = self.size - self.aggregators
        return "".join(f"; rank {peer} is an aggregator" for peer in peers if peer >= workers)

    # -- failure ---------------------------------------------------------------------------------

    def _fail(self, collective: Collective[Any], error: BaseException, told: SparsewireError) -> None:
        """End a collective here with ``error``, and send ``told`` to all ranks, unless it was received."""
        self._abandoned.add(collective.number)
        # Rank 0 is connected to every rank, so it forwards what it was told: the failing rank may have no
        # connection to some of them, and end before they come.  Time-outs were sent already.
        if (not collective.told or self.rank == 0) and not isinstance(told, CollectiveTimeout):
            self._notify(Envelope(collective.number, collective.call), Abort(told))
        self._end(collective, error)
        if isinstance(told, TransportError):
            self._broken = told
            for other in [*self._flight.values()]:
                self._end(other, told)

    def _break_down(self, error: SparsewireError, told: bool = False) -> None:
        """The transport broke, here or at another rank: everything that is in flight fails."""
        for collective in self._flight.values():
            collective.fail(error, told)
        if not self._flight:
            self._broken = self._broken or error

    def _fail_late(self, number: int, error: SparsewireError) -> None:
        """An earlier collective failed at another rank after this rank had done its part of it.

        What is in flight goes on: this rank raises the error at the end of its next collective.
        """
        if number not in self._abandoned:
            self._abandoned.add(number)
            self._late = self._late or error

    def _listen(self, collective: Collective[Any]) -> None:
        """Receive messages for a moment; raises if one of them reports a failure."""
        end = time.monotonic() + LISTEN_S
        while collective.failure is None and (remaining := end - time.monotonic()) > 0:
            self.transport.poll(remaining)
        if collective.failure is not None:
            raise collective.failure

    def _notify(self, envelope: Envelope, abort: Abort) -> None:
        peers = [p for p in range(self.size) if p != self.rank and self.transport.reachable(p)]
        outgoing = self.transport.post(peers, frame.encode(abort, envelope))
        end = time.monotonic() + NOTIFY_S
        while (remaining := end - time.monotonic()) > 0:
            if all(message.done or message.peer in self.transport.lost for message in outgoing):
                break
            self.transport.poll(remaining)

    # -- messages --------------------------------------------------------------------------------

    def _post(self, collective: Collective[Any], sends: Sequence[Send]) -> None:
        envelope = Envelope(collective.number, collective.call)
        traffic = collective.traffic
        for _, alike in groupby(sends, key=lambda send: id(send.payload)):  # encoded once for several ranks
            group = list(alike)
            for send in group:
                check_peer(send.peer, self.rank, self.size)
            payload = group[0].payload
            traffic.messages_sent += len(group)
            buffers = frame.encode(payload, envelope, self.index_price)
            traffic.bytes_sent += len(group) * sum(map(len, buffers))
            collective.unsent += self.transport.post([send.peer for send in group], buffers)

    def _arrived(self, source: int, message: Message) -> None:
        """Give a message to its collective; a message of another call than this rank's ends the call."""
        (number, call), payload, nbytes = message
        collective = self._flight.get(number)
        self._has_news = True
        if isinstance(payload, Abort):
            self._aborted(source, message, payload)
        elif self._is_to_come(number):
            self._early[number].append((source, message))
        elif collective is None:
            what = f"rank {source} called {Call.unpack(call)}, and rank {self.rank} something else"
            self._fail_late(number, CallMismatchError(what))
        elif call != collective.call:
            collective.fail(_mismatch((collective.caller, collective.call), (source, call)))
        else:
            collective.traffic.messages_received += 1
            collective.traffic.bytes_received += nbytes
            collective.execution.deliver(source, payload)

    def _aborted(self, source: int, message: Message, abort: Abort) -> None:
        number = message.envelope.collective
        if isinstance(abort.error, CollectiveTimeout):
            if number in self._flight or self._is_to_come(number):
                self._reports[source] = set(abort.waiting)
        elif isinstance(abort.error, TransportError):
            self._break_down(abort.error, told=True)
        elif number in self._flight:
            self._flight[number].fail(abort.error, told=True)
        elif self._is_to_come(number):
            self._early[number].append((source, message))
        else:
            self._fail_late(number, abort.error)

    def _is_to_come(self, number: int) -> bool:
        return number > self._number or number in self._reserved


def _mismatch(*calls: tuple[int, bytes]) -> CallMismatchError:
    """The error that names both calls, the lower rank's first, so that every rank says the same."""
    return CallMismatchError(
        ", but ".join(f"rank {rank} called {Call.unpack(call)}" for rank, call in sorted(calls))
    )


def as_transport_error(rank: int, error: BaseException) -> TransportError:
    """What other ranks are told of an error that is not a SparsewireError."""
    return TransportError(f"rank {rank} failed with {type(error).__name__}: {error}")
