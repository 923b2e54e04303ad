"""Ranks as processes, connected by TCP: the driver that needs nothing but a network.

Two ranks are connected when they first need each other.  Whoever needs the other dials; if both dial at
once there are two connections, each rank keeps sending on the one it dialled, and reads from both.  So the
messages of a pair keep their order without any agreement.

Sending is a gather write of the arrays themselves; receiving fills the arrays of the result.  The rank's
own thread does all of it, inside the call: nothing is read or written between calls.

Failure: whoever fails tells everybody (an ``Abort`` message) and raises; whoever is told raises the same.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from sparsewire import wire
from sparsewire.drivers import handshake
from sparsewire.drivers._base import Execution, Traffic
from sparsewire.errors import (
    CallMismatchError,
    CollectiveTimeout,
    InputError,
    PeerLostError,
    SparsewireError,
    TransportError,
)
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.wire import Abort, Call, Envelope, Message

__all__ = ["TcpDriver", "connect", "listen"]

T = TypeVar("T")
Address = tuple[str, int]

GRACE_S = 0.5  # after a time-out: how long to listen to what others were waiting for
FAREWELL_S = 1.0  # after a failure: how long to try to tell everybody
STRANGER_S = 10.0  # how long a connection may take to prove that it is a rank
MAX_STRANGERS = 256  # unproven connections at once; beyond that the oldest one goes
IOV_MAX = 512  # buffers in one gather write; POSIX systems allow 1024


def connect(rank: int, size: int, master: Address | socket.socket, secret: str, timeout: float) -> TcpDriver:
    """Join the job whose rank 0 listens at ``master``; returns when every rank has come.

    Rank 0 may give the socket that listens already, others give its address.
    """
    deadline = time.monotonic() + timeout
    if rank == 0:
        driver = TcpDriver(0, size, listen(master) if isinstance(master, tuple) else master, secret)
    else:
        assert isinstance(master, tuple)
        to_master = _reach(master, deadline)
        driver = TcpDriver(rank, size, listen((to_master.getsockname()[0], 0)), secret)
        driver.adopt(0, to_master)
    try:
        driver.exchange_addresses(max(0.0, deadline - time.monotonic()))
    except BaseException:
        driver.close()
        raise
    return driver


class TcpDriver:
    """One rank of a mesh."""

    def __init__(self, rank: int, size: int, listener: socket.socket, secret: str) -> None:
        self.rank = rank
        self.size = size
        self._secret = secret.encode()
        self._listener = listener
        self._addresses: dict[int, Address] = {}
        self._routes: dict[int, _Link] = {}  # rank -> the one connection on which we send to it
        self._links: dict[int, set[_Link]] = defaultdict(set)  # rank -> all open connections with it
        self._strangers: deque[_Link] = deque()  # accepted, not yet authenticated, oldest first
        self._refused = 0
        self._lost: dict[int, str] = {}  # ranks that are gone, and how we know
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._broken: SparsewireError | None = None
        # the collective in progress, or the last one
        self._number = -1
        self._call = b""
        self._execution: Execution[Any] | None = None
        self._traffic = Traffic()
        self._failure: SparsewireError | None = None
        self._told = False  # did somebody else tell us of the failure?
        self._reports: dict[int, set[int]] = {}  # rank whose time ran out -> whom it was waiting for
        self._early: dict[int, list[tuple[int, Message]]] = defaultdict(list)  # for collectives to come

    # -- the driver's interface ------------------------------------------------------------------

    def run(self, script: Steps[T], call: Call, timeout: float) -> tuple[T, Traffic]:
        execution = Execution(script)
        self._begin(call, execution)
        try:
            return self._drive(execution, timeout), self._traffic
        except SparsewireError as error:
            self._fail(error)
            raise
        except BaseException as error:
            self._fail(TransportError(f"rank {self.rank} failed with {type(error).__name__}: {error}"))
            raise
        finally:
            self._execution = None
            execution.close()

    def refuse(self, error: SparsewireError) -> None:
        self._begin(Call(), None)
        self._fail(error)

    def close(self) -> None:
        for link in {*self._strangers, *self._routes.values()}.union(*self._links.values()):
            link.close()
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.close()
        self._broken = self._broken or TransportError("the communicator was closed")

    # -- rendezvous ------------------------------------------------------------------------------

    def adopt(self, peer: int, connected: socket.socket) -> None:
        """Use a connection that was dialled elsewhere."""
        self._routes[peer] = self._start(connected, lambda link: self._dialled(link, peer))

    def exchange_addresses(self, timeout: float) -> None:
        """Collective 0: everybody learns from rank 0 where everybody listens."""
        mine = self._listener.getsockname()[:2]
        table, _ = self.run(
            _address_book(self.rank, self.size, mine), Call("rendezvous", length=self.size), timeout
        )
        self._addresses = dict(enumerate(table))

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
        self._failure = None
        self._told = False
        self._reports = {}
        for source, message in self._early.pop(self._number, []):
            self._arrived(source, message)

    def _drive(self, execution: Execution[T], timeout: float) -> T:
        deadline = time.monotonic() + timeout
        while True:
            if self._failure is not None:
                raise self._failure
            for send in execution.advance():
                self._post(send.peer, send.payload)
            if execution.done and not any(link.outgoing for link in self._routes.values()):
                self._traffic.rounds = execution.rounds
                return execution.result
            self._check_awaited(execution)
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._reports:
                raise self._timed_out(execution, timeout)
            self._poll(remaining)

    def _check_awaited(self, execution: Execution[Any]) -> None:
        awaited = execution.waiting_for
        for peer in range(self.size) if awaited is None else sorted(awaited):
            if peer in self._addresses and peer != self.rank and not self._links[peer]:
                self._route(peer)  # so that we notice if it is not there any more
        unsent = {peer for peer, link in self._routes.items() if link.outgoing}
        for peer, how in self._lost.items():
            if awaited is None or peer in awaited or peer in unsent:
                raise PeerLostError(f"rank {peer} is gone: {how} (noticed by rank {self.rank})")

    def _timed_out(self, execution: Execution[Any], timeout: float) -> CollectiveTimeout:
        """Blame those who are waited for and do not say themselves that they are waiting."""
        awaited = execution.waiting_for
        if awaited is None:
            awaited = set(range(self.size)) - {self.rank}
        awaited |= {peer for peer, link in self._routes.items() if link.outgoing}
        self._notify(Abort(CollectiveTimeout("time-out"), tuple(sorted(awaited))))
        end = time.monotonic() + GRACE_S
        while (remaining := end - time.monotonic()) > 0:
            self._poll(remaining)
        accused = awaited.union(*self._reports.values()) - {self.rank, *self._reports}
        late = ", ".join(str(peer) for peer in sorted(accused or awaited))
        refused = f"; {self._refused} connections could not prove to be ranks" if self._refused else ""
        what = Call.unpack(self._call)
        return CollectiveTimeout(f"rank {late} did not arrive within {timeout:g} s in {what}{refused}")

    def _fail(self, error: SparsewireError) -> None:
        """Tell everybody, unless it was they who told us."""
        if isinstance(error, TransportError):
            self._broken = error
        if not self._told and not isinstance(error, CollectiveTimeout):
            self._notify(Abort(error))

    def _notify(self, abort: Abort) -> None:
        for peer in range(self.size):
            known = peer in self._addresses or peer in self._routes or self._links[peer]
            if peer != self.rank and peer not in self._lost and known:
                self._post(peer, abort)
        end = time.monotonic() + FAREWELL_S
        while any(link.outgoing for link in self._routes.values()):
            remaining = end - time.monotonic()
            if remaining <= 0:
                break
            self._poll(remaining)

    # -- messages --------------------------------------------------------------------------------

    def _post(self, peer: int, payload: wire.Payload) -> None:
        buffers = wire.encode(payload, Envelope(self._number, self._call))
        self._traffic.messages_sent += 1
        self._traffic.bytes_sent += wire.size(payload)
        link = self._route(peer)
        link.outgoing += buffers
        self._flush(link)

    def _arrived(self, source: int, message: Message) -> None:
        """Sort a message by collective; what disagrees with this rank's call ends the call."""
        (number, call), payload = message
        if isinstance(payload, Abort):
            self._aborted(source, message, payload)
        elif number > self._number:
            self._early[number].append((source, message))
        elif number == self._number and call != self._call and self._execution is not None:
            self._failure = self._failure or self._mismatch(source, call)
        elif number == self._number and self._execution is not None:
            self._traffic.messages_received += 1
            self._traffic.bytes_received += wire.size(payload)
            self._execution.deliver(source, payload)
        # else: a leftover of a collective that failed here

    def _aborted(self, source: int, message: Message, abort: Abort) -> None:
        if isinstance(abort.error, CollectiveTimeout):
            if message.envelope.collective >= self._number:
                self._reports[source] = set(abort.waiting)
        elif isinstance(abort.error, TransportError) or message.envelope.collective == self._number:
            if self._failure is None:
                self._failure, self._told = abort.error, True
        elif message.envelope.collective > self._number:
            self._early[message.envelope.collective].append((source, message))

    def _mismatch(self, source: int, call: bytes) -> CallMismatchError:
        calls = sorted([(self.rank, Call.unpack(self._call)), (source, Call.unpack(call))])
        return CallMismatchError(", but ".join(f"rank {rank} called {what}" for rank, what in calls))

    # -- connections -----------------------------------------------------------------------------

    def _route(self, peer: int) -> _Link:
        """The connection on which we send to ``peer``: an open one, or a new one."""
        if peer not in self._routes:
            if self._links[peer]:
                self._routes[peer] = next(iter(self._links[peer]))
            else:
                host, port = self._addresses[peer]
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                dialled = socket.socket(family, socket.SOCK_STREAM)
                dialled.setblocking(False)
                dialled.connect_ex((host, port))  # a refusal shows when we try to read the greeting
                self.adopt(peer, dialled)
        return self._routes[peer]

    def _accept(self, _: int) -> None:
        with contextlib.suppress(OSError):
            accepted, _address = self._listener.accept()
            self._strangers.append(self._start(accepted, self._accepted))
        while self._strangers and self._strangers[0].peer is not None:
            self._strangers.popleft()
        if len(self._strangers) > MAX_STRANGERS:
            self._drop(self._strangers.popleft(), "too many connections that do not prove anything")

    def _start(self, sock: socket.socket, reader: Callable[[_Link], _Reader]) -> _Link:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(sock)
        link.reader = reader(link)
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._ready(link, mask))
        self._resume(link)
        return link

    def _accepted(self, link: _Link) -> _Reader:
        return self._conversation(link, handshake.accept(self._secret, self.rank, self.size))

    def _dialled(self, link: _Link, peer: int) -> _Reader:
        link.dialled = peer
        return self._conversation(link, handshake.dial(self._secret, self.rank, peer, self.size))

    def _conversation(self, link: _Link, dialogue: handshake.Dialogue) -> _Reader:
        """All that is ever read from a connection: the handshake, then messages."""
        peer = yield from _authenticate(link.sock, dialogue)
        link.peer = peer
        self._links[peer].add(link)
        self._flush(link)
        while True:
            self._arrived(peer, (yield from wire.read_message()))

    def _poll(self, timeout: float) -> None:
        """Wait for the network once, and do what it allows."""
        for key, mask in self._selector.select(max(0.0, min(timeout, 1.0))):
            key.data(mask)
        self._refuse_slow_strangers()  # after the reads: an answer may have waited here while we computed

    def _refuse_slow_strangers(self) -> None:
        now = time.monotonic()
        while self._strangers and (
            self._strangers[0].peer is not None or self._strangers[0].since + STRANGER_S < now
        ):
            link = self._strangers.popleft()
            if link.peer is None:
                self._drop(link, "it proved nothing in time")

    def _ready(self, link: _Link, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(link)
        if mask & selectors.EVENT_READ:
            self._fill(link)

    def _flush(self, link: _Link) -> None:
        """Send what the connection takes."""
        try:
            done = link.send()
        except OSError as error:
            self._drop(link, f"sending to it failed ({error})")
            return
        if link.open and done == link.watched:
            link.watched = not done
            mask = selectors.EVENT_READ if done else selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(link.sock, mask, lambda mask: self._ready(link, mask))

    def _fill(self, link: _Link) -> None:
        """Receive what is there, into the buffers that the reader wants filled."""
        try:
            while link.open:
                count = link.sock.recv_into(link.wanted)
                if not count:
                    self._drop(link, "it closed the connection")
                    return
                link.wanted = link.wanted[count:]
                if not link.wanted:
                    self._resume(link)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(link, f"the connection broke ({error})")

    def _resume(self, link: _Link) -> None:
        try:
            link.wanted = next(link.reader)
        except handshake.AuthenticationError as error:
            self._refused += link.dialled is None
            self._drop(link, str(error))
        except SparsewireError as error:
            self._failure = self._failure or type(error)(f"from rank {link.peer}: {error}")
            self._drop(link, str(error))

    def _drop(self, link: _Link, reason: str) -> None:
        if not link.open:
            return
        self._selector.unregister(link.sock)
        link.close()
        peer = link.dialled if link.peer is None else link.peer
        if peer is None:
            return  # a stranger
        if link.peer is None:
            reason += " during the handshake; is SPARSEWIRE_SECRET the same everywhere?"
        self._links[peer].discard(link)
        if not self._links[peer]:
            self._lost.setdefault(peer, reason)


_Reader = Generator[memoryview, None, None]


class _Link:
    """One connection: what waits to be sent, and the reader that says where received bytes go."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.open = True
        self.since = time.monotonic()
        self.peer: int | None = None  # who it is, once proven
        self.dialled: int | None = None  # who it should be, if we dialled
        self.reader: _Reader
        self.wanted = memoryview(b"")
        self.outgoing: deque[Any] = deque()
        self.watched = False  # is somebody waiting until it takes more bytes?

    def send(self) -> bool:
        """Write until all is sent (True) or the connection takes no more (False)."""
        if self.peer is None or not self.open:
            return True
        while self.outgoing:
            try:
                self._consume(self.sock.sendmsg([*islice(self.outgoing, IOV_MAX)]))
            except BlockingIOError:
                return False
        return True

    def _consume(self, count: int) -> None:
        """Remove the first ``count`` bytes of what waits."""
        while self.outgoing and count >= len(self.outgoing[0]):
            count -= len(self.outgoing.popleft())
        if count:
            self.outgoing[0] = memoryview(self.outgoing[0])[count:]

    def close(self) -> None:
        self.open = False
        self.sock.close()


def _authenticate(sock: socket.socket, dialogue: handshake.Dialogue) -> Generator[memoryview, None, int]:
    """Carry a handshake's dialogue over a connection; returns the peer's rank."""
    given = b""
    step = next(dialogue)
    while True:
        try:
            if isinstance(step, bytes):
                sock.send(step)  # some hundred bytes into an empty buffer: never partial
                step = next(dialogue)
            else:
                buffer = bytearray(step)
                yield memoryview(buffer)
                given = bytes(buffer)
                step = dialogue.send(given)
        except StopIteration as end:
            return int(end.value)
        except OSError as error:
            raise handshake.AuthenticationError(f"the connection broke ({error})") from error


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


def listen(address: Address) -> socket.socket:
    """A socket that listens at this address alone; port 0 is any free one."""
    host, port = address
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(where[:2], family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        raise InputError(
            f"cannot listen at {host}:{port}, which MASTER_ADDR and MASTER_PORT name: {error}"
        ) from error
    listener.setblocking(False)
    return listener


def _reach(master: Address, deadline: float) -> socket.socket:
    """Dial rank 0 until it is there."""
    started = time.monotonic()
    while True:
        try:
            return socket.create_connection(master, timeout=max(0.05, deadline - time.monotonic()))
        except socket.gaierror as error:
            raise InputError(f"MASTER_ADDR={master[0]} cannot be resolved: {error}") from error
        except OSError as error:
            if time.monotonic() > deadline:
                waited = time.monotonic() - started
                raise CollectiveTimeout(
                    f"rank 0 did not arrive within {waited:.1f} s at {master[0]}:{master[1]}: {error}"
                ) from error
            time.sleep(0.02)
