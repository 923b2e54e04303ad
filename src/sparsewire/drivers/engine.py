"""One rank's part of many collectives in flight, over any transport.

A transport moves messages between ranks; the engine gives each to its collective, whose number is in the
message.  Messages that come early wait for their collective, and those of a failed one are dropped.  One
thread at a time may use an engine, and everything happens in its calls.

Failure: a rank at which a collective fails sends an ``Abort`` message to all ranks and raises.  A rank that
receives one sends it on to the ranks it is connected with, and raises the same error.  So a rank that leaves
has said why before its connection ends, and nobody takes it for the cause.  Other collectives go on, unless
the transport broke: then all fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeVar

from sparsewire.coding import frame
from sparsewire.coding.call import Abort, Call, Envelope, mismatch
from sparsewire.coding.frame import Message
from sparsewire.drivers import farewell
from sparsewire.drivers.abandoned import Abandoned
from sparsewire.drivers.backlog import Backlog
from sparsewire.drivers.blame import Answer, culprits
from sparsewire.drivers.collective import Collective
from sparsewire.drivers.execution import check_peer
from sparsewire.drivers.protocols import Outgoing, Traffic, Transport
from sparsewire.errors import (
    CallMismatchError,
    CollectiveTimeout,
    PeerLostError,
    SparsewireError,
    TransportError,
    WireError,
)
from sparsewire.steps import Send, Steps

__all__ = ["Engine", "as_transport_error"]

T = TypeVar("T")

LISTEN_S = 0.5  # after a loss: how long to wait for what other ranks know about it
ASK_S = 0.75  # after a time-out: how long to wait for what other ranks wait for
HEARSAY_S = 1.0  # as LISTEN_S, if this rank was never connected with the lost one
NOTIFY_S = 1.0  # after a failure: how long to try to tell everybody
RELAY_S = 0.25  # the same, if another rank has told this one, and tells everybody
FAREWELL = 2**64 - 1  # in place of a collective's number: the sender, or the rank it waits for, has left
LONGEST_POLL_S = 1.0
AWAY_S = 0.5  # a rank that does not poll for so much longer was stopped, or busy, and kept others waiting


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
        self._backlog = Backlog(transport)
        self._abandoned = Abandoned()  # as far as this rank knows
        self.late: SparsewireError | None = None  # one of them, not raised here yet
        self._answers: dict[int, dict[int, Answer]] = {}  # rank -> for each of its collectives
        self._asking: set[int] = set()  # ranks that want to know that from this one
        self._answered: set[int] = set()  # ranks that were told
        self._late: set[int] = set()  # ranks that did not answer when time was up, here or elsewhere
        self._sent, self._received = [0] * size, [0] * size  # messages to each rank, and from it
        self._farewells: dict[int, str] = {}  # ranks that have left, and why
        self._obituaries: set[int] = set()  # ranks that left without a word, as rank 0 tells all
        self._polled = 0.0  # when this rank last looked at the network
        self._has_news = False  # has a message come that no step has seen?
        self._broken: SparsewireError | None = None
        self._untold = False  # it broke while nothing was in flight: others learn of it in the next call
        transport.attach(self._received_from, self._break_down)
        if size > 1:
            farewell.expect(self)

    def run(self, script: Steps[T], call: Call, timeout: float) -> tuple[T, Traffic]:
        number, collective = self.reserve(), None
        try:
            collective = self.start(script, call, timeout, number=number)
            while not collective.ended:
                self.progress(collective.timeout)
        except BaseException as error:
            self.break_down(error)
            if collective is None or not isinstance(error, Exception):  # such as Ctrl-C
                raise
        return collective.outcome()

    def reserve(self) -> int:
        if self._broken is not None:
            if self._untold:
                self._tell()
                raise self._broken
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
        if self._broken is not None:  # since this one took its number
            raise self._broken
        collective = Collective(number, call.pack(), self.rank, script, timeout, on_end)
        if not self._flight:
            self._polled = collective.since
        self._flight[number] = collective
        for source, message in self._backlog.take(number):
            self._arrived(source, message)
        self._step(collective)
        return collective

    @property
    def idle(self) -> bool:
        return not self._flight

    @property
    def awaited(self) -> list[int]:
        """The ranks that something in flight waits for."""
        return sorted(set().union(*(c.awaited(self.rank, self.size) for c in self._flight.values())))

    def progress(self, timeout: float) -> None:
        next_deadline = min((c.deadline for c in self._flight.values()), default=0.0)
        self._poll(min(timeout, next_deadline - time.monotonic()))
        if self._asking:
            self._answer()
        self._step_all()

    def _poll(self, timeout: float) -> None:
        self.transport.poll(min(timeout, LONGEST_POLL_S))
        self._notice_absence()
        if self.rank == 0 and self.transport.lost:
            self._spread_losses()

    def _notice_absence(self) -> None:
        now = time.monotonic()
        if now - self._polled > LONGEST_POLL_S + AWAY_S:
            for collective in self._flight.values():
                collective.since = now
        self._polled = now

    def wake(self) -> None:
        self.transport.wake()

    def refuse(self, error: SparsewireError, number: int | None = None) -> None:
        number = self.reserve() if number is None else number
        self._reserved.discard(number)
        self._abandoned.add(number)
        self._backlog.take(number)  # what other ranks have sent for it already
        self._notify(Envelope(number, Call().pack()), Abort(error), self._reachable())

    @property
    def kind(self) -> tuple[str, str]:
        return self.transport.kind

    def invite(self) -> bytes:
        return self.transport.invite()

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Engine:
        return Engine(group.index(self.rank), len(group), self.transport.split(group, invitations))

    def shrink(self, timeout: float) -> tuple[Engine, list[int]]:
        """See ``Driver.shrink``.  Every rank keeps its role, as a worker or an aggregator."""
        if self._broken is None:  # those who wait for this rank must not take it for dead
            has_called = TransportError(f"rank {self.rank} has called shrink()")
            self._notify(Envelope(), Abort(has_called), self._reachable())
        self._break(TransportError("the communicator was closed"))  # another one follows
        transport, group = self.transport.shrink(timeout)
        aggregators = sum(rank >= self.size - self.aggregators for rank in group)
        if aggregators == len(group):
            transport.close()
            raise TransportError("every worker is gone: only aggregators are left")
        return type(self)(group.index(self.rank), len(group), transport, aggregators), group

    @property
    def rendezvous(self) -> tuple[str, int]:
        return self.transport.rendezvous

    def newcomers(self, at_least: int, timeout: float) -> list[str]:
        return self.transport.newcomers(at_least, timeout)

    def grow(self, invitations: Sequence[bytes], newcomers: Sequence[str]) -> Engine:
        self._break(TransportError("the communicator was closed"))  # another one follows
        transport = self.transport.grow(invitations, newcomers)
        return Engine(self.rank, len(invitations) + len(newcomers), transport)

    def break_down(self, error: BaseException) -> None:
        failure = as_transport_error(self.rank, error)
        self._break_down(failure)
        try:
            with suppress(Exception):  # what has failed once may fail again while others are told
                self._step_all()
        finally:
            self._break(failure)

    def close(self, why: str = "it closed the communicator") -> None:
        was_whole = self._broken is None
        self._break(TransportError("the communicator was closed"))
        if was_whole:
            self._notify(Envelope(FAREWELL), Abort(PeerLostError(why)), self._connected())
        elif self._untold:
            self._tell()
        self.transport.close(in_order=was_whole and not self._abandoned)

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
                self._backlog.resume(collective.awaited(self.rank, self.size))
                self._check_presence(collective)
                self._check_time(collective)
        except SparsewireError as error:
            self._fail(collective, error, error)
        except OSError as error:  # the system's, such as too many open files: scripts do no I/O
            failure = as_transport_error(self.rank, error)
            self._fail(collective, failure, failure)
        except Exception as error:  # the script's own
            self._fail(collective, error, as_transport_error(self.rank, error))

    def _advance(self, collective: Collective[Any]) -> None:
        execution, rounds = collective.execution, collective.execution.rounds
        while sends := execution.advance():
            self._post(collective, sends)
        if collective.unsent:
            collective.unsent = [outgoing for outgoing in collective.unsent if not outgoing.done]
        if execution.done and not collective.unsent:
            self._end(collective, None)
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
        # It may have left because of a failure, of which a message is on its way.  If this rank was never
        # connected with it, rank 0 was, and knows.
        if self._knows_one(awaited) or 0 in self.transport.lost:
            self._listen(collective, LISTEN_S)
        else:
            self._listen(collective, HEARSAY_S, lambda: self._knows_one(awaited))
        lost = {peer for peer in awaited & self.transport.lost.keys() if self._is_known(peer)}
        if not lost:  # a rank that ended without a word is dead, and a reason why others are gone
            lost = {p for p in self.transport.lost if self._is_known(p) and p not in self._farewells}
        peer = min(lost or awaited & self.transport.lost.keys(), default=None)
        if peer is None:
            return
        how = f"{self._farewells.get(peer, self.transport.lost[peer])} (noticed by rank {self.rank})"
        raise PeerLostError(f"rank {peer} is gone: {how}{self._roles([peer])}")

    def _is_known(self, peer: int) -> bool:
        """Was this rank, or rank 0, connected with it, so that its end is more than a dial in vain?"""
        return peer in self.transport.met or peer in self._obituaries

    def _knows_one(self, peers: Set[int]) -> bool:
        return any(self._is_known(peer) for peer in peers & self.transport.lost.keys())

    def _spread_losses(self) -> None:
        """Tell all ranks who left without a word: rank 0 is connected with every rank, and others are not."""
        for peer in self.transport.lost.keys() - self._obituaries - self._farewells.keys():
            if self._broken is None and self._is_known(peer):
                self._obituaries.add(peer)
                obituary = Abort(PeerLostError(self.transport.lost[peer]), (peer,))
                self._post_abort(Envelope(FAREWELL), obituary, self._connected())

    def _check_time(self, collective: Collective[Any]) -> None:
        """When time is up, name the ranks that keep this one waiting; see ``blame``."""
        if time.monotonic() < collective.deadline:
            return
        self._notice_absence()
        self._asking.update(self._reachable())
        self._answered.clear()
        self._answer()
        self._listen(collective, ASK_S)
        late, answer = culprits(self.rank, collective.number, self._own_answer(collective), self._answers)
        if not answer:
            self._late.update(late)
        names = ", ".join(str(peer) for peer in late)
        limit = f"within {collective.timeout:g} s"
        what, more = Call.unpack(collective.call), self._roles(late) + self.transport.hint()
        how = "; they answer, and do not hear from each other" if answer else ""
        raise CollectiveTimeout(f"rank {names} did not arrive {limit} in {what}{how}{more}")

    def _roles(self, peers: Iterable[int]) -> str:
        """What an error message says of these ranks in addition: which of them are aggregators."""
        workers = self.size - self.aggregators
        return "".join(f"; rank {peer} is an aggregator" for peer in peers if peer >= workers)

    # -- failure ---------------------------------------------------------------------------------

    def _fail(self, collective: Collective[Any], error: BaseException, told: SparsewireError) -> None:
        """End a collective here with ``error``, after telling others ``told``."""
        self._abandoned.add(collective.number)
        envelope, abort = Envelope(collective.number, collective.call), Abort(told, tuple(sorted(self._late)))
        if collective.told:
            self._notify(envelope, abort, self._connected(), RELAY_S)
        else:
            self._notify(envelope, abort, self._reachable())
        if isinstance(told, TransportError):
            self._broken = self._broken or told  # before a call that waits for the end of this one begins
        if collective.number in self._flight:
            self._end(collective, error)
        if isinstance(told, TransportError):
            self._break(told)

    def _break(self, error: SparsewireError) -> None:
        """Nothing goes on here, and nothing begins."""
        self._broken = self._broken or error
        for collective in [*self._flight.values()]:
            self._end(collective, error)

    def _reachable(self) -> list[int]:
        return [p for p in range(self.size) if p != self.rank and self.transport.reachable(p)]

    def _connected(self) -> list[int]:
        return [p for p in self._reachable() if p in self.transport.met]

    def _break_down(self, error: SparsewireError, told: bool = False) -> None:
        """The transport broke, here or at another rank: everything that is in flight fails."""
        for collective in self._flight.values():
            collective.fail(error, told)
        if not self._flight and self._broken is None:
            self._broken, self._untold = error, not told

    def _tell(self) -> None:
        assert self._broken is not None
        self._untold = False
        self._notify(Envelope(), Abort(self._broken), self._reachable())

    def _fail_late(self, number: int, error: SparsewireError) -> None:
        """An earlier collective failed at another rank after this rank had done its part of it.

        What is in flight goes on: this rank raises the error at the end of its next collective.
        """
        if number not in self._abandoned:
            self._abandoned.add(number)
            self.late = self.late or error

    def take_late(self) -> SparsewireError:
        assert self.late is not None
        late, self.late = self.late, None
        return late

    def _listen(
        self, collective: Collective[Any], seconds: float, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Receive messages for a moment; raises if one of them reports a failure."""
        end = time.monotonic() + seconds
        with self._backlog.receiving_all():
            while collective.failure is None and (remaining := end - time.monotonic()) > 0 and not enough():
                self._poll(remaining)
                self._answer()
        if collective.failure is not None:
            raise collective.failure

    def _answer(self) -> None:
        """Tell ranks that ask whom this one waits for, once; who is told answers, too."""
        while self._asking:
            peer = self._asking.pop()
            if peer in self._answered or not self.transport.reachable(peer):
                continue
            self._answered.add(peer)
            for collective in self._flight.values():
                awaited, waited, *counts = self._own_answer(collective)
                report = Abort(CollectiveTimeout("time-out"), tuple(sorted(awaited)), waited, *counts)
                self._post_abort(Envelope(collective.number, collective.call), report, [peer])

    def _own_answer(self, collective: Collective[Any]) -> Answer:
        waited = time.monotonic() - collective.since
        awaited = collective.awaited(self.rank, self.size)
        return Answer(awaited, waited, tuple(self._sent), tuple(self._received))

    def _post_abort(self, envelope: Envelope, abort: Abort, peers: Iterable[int]) -> list[Outgoing]:
        """Begin to send it to each of the ranks, also if that fails for some of them."""
        outgoing: list[Outgoing] = []
        for peer in peers:
            with suppress(OSError, SparsewireError):  # such as too many open files, for one more connection
                outgoing += self.transport.post([peer], frame.encode(abort, envelope))
        return outgoing

    def _notify(
        self, envelope: Envelope, abort: Abort, peers: Iterable[int], seconds: float = NOTIFY_S
    ) -> None:
        outgoing = self._post_abort(envelope, abort, peers)
        # A rank that did not answer takes no messages either, so nobody waits until it has this one.
        outgoing = [message for message in outgoing if message.peer not in self._late]
        end = time.monotonic() + seconds
        with self._backlog.receiving_all():
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
            peers = [send.peer for send in group]
            for peer in peers:
                self._sent[peer] += 1
            try:
                collective.unsent += self.transport.post(peers, buffers)
            except OSError as error:
                raise TransportError(f"rank {self.rank} cannot send to ranks {peers}: {error}") from error

    def _received_from(self, source: int, message: Message) -> None:
        self._received[source] += not isinstance(message.payload, Abort)
        self._arrived(source, message)

    def _arrived(self, source: int, message: Message) -> None:
        """Give a message to its collective; a message of another call than this rank's ends the call."""
        (number, call), payload, nbytes = message
        collective = self._flight.get(number)
        self._has_news = True
        if isinstance(payload, Abort):
            self._aborted(source, message, payload)
        elif self._is_to_come(number):
            self._backlog.keep(source, message)
            if self._backlog.exceeds(source) and not self._is_needed(source):
                self._backlog.pause(source)
        elif collective is None:
            what = f"rank {source} called {Call.described(call)}, and rank {self.rank} something else"
            self._fail_late(number, CallMismatchError(what))
        elif call != collective.call:
            collective.fail(mismatch((collective.caller, collective.call), (source, call)))
        else:
            collective.traffic.messages_received += 1
            collective.traffic.bytes_received += nbytes
            collective.execution.deliver(source, payload)

    def _is_needed(self, source: int) -> bool:
        """Has a message of this rank to come before something in flight can go on?"""
        return any(
            source in c.awaited(self.rank, self.size) and source not in c.execution.unread
            for c in self._flight.values()
        )

    def _aborted(self, source: int, message: Message, abort: Abort) -> None:
        number = message.envelope.collective
        if number == FAREWELL and abort.waiting:
            others = {peer for peer in abort.waiting if peer < self.size} - {self.rank, source}
            self._obituaries |= others
            self.transport.lost.update(
                (peer, str(abort.error)) for peer in others - self.transport.lost.keys()
            )
        elif number == FAREWELL:
            self._farewells[source] = str(abort.error)
            self.transport.lost.setdefault(source, str(abort.error))
        elif abort.waited is not None:
            waiting = {peer for peer in abort.waiting if peer < self.size}
            if not len(abort.sent) == len(abort.received) == self.size:
                raise WireError("an answer that does not speak of every rank")
            answer = Answer(waiting, abort.waited, abort.sent, abort.received)
            self._answers.setdefault(source, {})[number] = answer
            self._asking.add(source)
        elif isinstance(abort.error, TransportError):
            self._late.update(peer for peer in abort.waiting if peer < self.size)
            self._break_down(abort.error, told=True)
        elif number in self._flight:
            self._flight[number].fail(abort.error, told=True)
        elif self._is_to_come(number):
            self._backlog.keep(source, message)
        else:
            self._fail_late(number, abort.error)

    def _is_to_come(self, number: int) -> bool:
        return number > self._number or number in self._reserved


def as_transport_error(rank: int, error: BaseException) -> TransportError:
    """What other ranks are told of an error that is not a SparsewireError."""
    made = TransportError(f"rank {rank} failed with {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
