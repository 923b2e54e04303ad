"""TCP connections between ranks: who is connected to whom, and bytes in both directions.

Two ranks are connected when they first need each other.  The rank that needs the other dials.  If both dial
at once there are two connections: each rank keeps sending on the one that it dialled, and reads from both.
So the messages of a pair keep their order, and the ranks need not agree on a connection.

Sending is a gather write of the arrays themselves; receiving fills the arrays of the result.  Nothing is
read or written outside ``poll`` and ``post``.  A ``Mesh`` is the ``Transport`` of a group.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

from sparsewire.coding import frame
from sparsewire.coding.frame import Message
from sparsewire.drivers.tcp import handshake
from sparsewire.errors import CollectiveTimeout, InputError, SparsewireError

__all__ = ["Address", "Mesh", "Outgoing", "listen", "reach"]

HANDSHAKE_S = 10.0  # how long a connection may take to prove that it is from a rank
MAX_HANDSHAKES = 256  # connections that have proved nothing yet; if there are more, the oldest one is closed
IOV_MAX = 512  # buffers in one gather write; POSIX systems allow 1024

Address = tuple[str, int]
_Reader: TypeAlias = Generator[memoryview, None, None]


class Mesh:
    """One rank's connections."""

    def __init__(self, rank: int, size: int, listener: socket.socket, secret: str) -> None:
        self.address: Address = listener.getsockname()[:2]
        self.kind = ("tcp", self.address[0])
        self.addresses: dict[int, Address] = {}  # where each rank listens, once known
        self.lost: dict[int, str] = {}  # ranks that are gone, and how we know
        self.refused = 0  # connections that could not prove to be ranks
        self._rank, self._size, self._secret = rank, size, secret
        self._on_message: Callable[[int, Message], None]
        self._on_error: Callable[[SparsewireError], None]
        self._listener = listener
        self._routes: dict[int, _Link] = {}  # rank -> the one connection on which we send to it
        self._links: dict[int, set[_Link]] = defaultdict(set)  # rank -> all open connections with it
        self._handshakes: deque[_Link] = deque()  # accepted, not yet authenticated, oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._wake_receiver, self._wake_sender = socket.socketpair()  # a byte sent here ends another poll
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._woken)
        self._group_listener: socket.socket | None = None  # for the ranks of a group that is being made

    def attach(
        self, on_message: Callable[[int, Message], None], on_error: Callable[[SparsewireError], None]
    ) -> None:
        self._on_message, self._on_error = on_message, on_error

    def post(self, peers: Sequence[int], buffers: list[Any]) -> list[Outgoing]:
        """Send the buffers, in order; what a connection does not take now goes out in ``poll``."""
        posted = [Outgoing(peer, deque(buffers)) for peer in peers]
        for outgoing in posted:
            link = self._route(outgoing.peer)
            link.outgoing.append(outgoing)
            self._flush(link)
        return posted

    def poll(self, timeout: float) -> None:
        """Wait for the network once, and do what it allows."""
        for key, mask in self._selector.select(max(0.0, min(timeout, 1.0))):
            key.data(mask)
        if self._handshakes:  # after the reads: an answer may have waited here while this rank computed
            self._refuse_slow_handshakes()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # then enough bytes are waiting already
            self._wake_sender.send(b"!", socket.MSG_DONTWAIT)

    def _woken(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_receiver.recv(64):
                pass

    def reachable(self, peer: int) -> bool:
        """Is there, or can there be, a connection?"""
        return peer not in self.lost and bool(
            peer in self.addresses or peer in self._routes or self._links[peer]
        )

    def watch(self, peer: int) -> None:
        """Have a connection with the rank, so that its end is noticed."""
        if peer in self.addresses and not self._links[peer]:
            self._route(peer)

    def adopt(self, peer: int, connected: socket.socket) -> None:
        """Use a connection that was dialled elsewhere."""
        dialogue = handshake.dial(self._secret.encode(), self._rank, peer, self._size)
        self._routes[peer] = self._start(_Link(connected, dialled=peer), dialogue)

    def hint(self) -> str:
        return f"; {self.refused} connections could not prove to be ranks" if self.refused else ""

    def invite(self) -> bytes:
        """Listen for a new group."""
        if self._group_listener is not None:  # of an invitation that led to no group
            self._group_listener.close()
        self._group_listener = listen((self.address[0], 0))
        return json.dumps(self._group_listener.getsockname()[:2]).encode()

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> Mesh:
        """The group's own connections, so that a failure in one group does not concern the other."""
        assert self._group_listener is not None
        listener, self._group_listener = self._group_listener, None
        secret = f"{self._secret}/{invitations[group[0]].decode()}"
        mesh = Mesh(group.index(self._rank), len(group), listener, secret)
        mesh.addresses = {place: tuple(json.loads(invitations[rank])) for place, rank in enumerate(group)}
        return mesh

    def close(self, in_order: bool = True) -> None:
        for end in (self._wake_receiver, self._wake_sender):
            end.close()
        for link in {*self._handshakes, *self._routes.values()}.union(*self._links.values()):
            link.close()
        if self._group_listener is not None:
            self._group_listener.close()
        self._listener.close()
        self._selector.close()

    # -- opening and closing ---------------------------------------------------------------------

    def _route(self, peer: int) -> _Link:
        """The connection on which we send to ``peer``: an open one, or a new one."""
        if peer not in self._routes:
            if self._links[peer]:
                self._routes[peer] = next(iter(self._links[peer]))
            else:
                self.adopt(peer, _dial(self.addresses[peer]))
        return self._routes[peer]

    def _accept(self, _: int) -> None:
        try:
            accepted, _address = self._listener.accept()
        except OSError:
            return  # it was closed again already
        dialogue = handshake.accept(self._secret.encode(), self._rank, self._size)
        self._handshakes.append(self._start(_Link(accepted), dialogue))
        if len(self._handshakes) > MAX_HANDSHAKES:
            self._drop(self._handshakes.popleft(), "too many connections that do not prove anything")

    def _refuse_slow_handshakes(self) -> None:
        """Forget connections that are authenticated or closed, and close those whose time is over."""
        self._handshakes = deque(link for link in self._handshakes if link.open and link.peer is None)
        while self._handshakes and self._handshakes[0].since + HANDSHAKE_S < time.monotonic():
            self._drop(self._handshakes.popleft(), "it proved nothing in time")

    def _start(self, link: _Link, dialogue: handshake.Dialogue) -> _Link:
        link.sock.setblocking(False)
        link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.reader = self._conversation(link, dialogue)
        self._selector.register(link.sock, selectors.EVENT_READ, lambda mask: self._ready(link, mask))
        self._resume(link)
        return link

    def _drop(self, link: _Link, reason: str) -> None:
        if not link.open:
            return
        self._selector.unregister(link.sock)
        link.close()
        peer = link.dialled if link.peer is None else link.peer
        if peer is None:
            return  # it was never authenticated
        self._links[peer].discard(link)
        if not self._links[peer]:
            self.lost.setdefault(peer, reason)
        self._reroute(peer)

    def _reroute(self, peer: int) -> None:
        """If the connection that we dialled was closed but another one is open, send on that one.

        This happens to a rank that computes while its handshake waits for an answer: the other end closes it.
        """
        route = self._routes.get(peer)
        if not self._links[peer] or route is None or route.open or route.peer is not None:
            return
        self.lost.pop(peer, None)
        self._routes[peer] = next(iter(self._links[peer]))
        self._routes[peer].outgoing += route.outgoing
        self._flush(self._routes[peer])

    # -- bytes -----------------------------------------------------------------------------------

    def _conversation(self, link: _Link, dialogue: handshake.Dialogue) -> _Reader:
        """All that is ever read from a connection: the handshake, then messages."""
        peer = yield from _authenticate(link.sock, dialogue)
        link.peer = peer
        self._links[peer].add(link)
        self._reroute(peer)
        self._flush(link)
        while True:
            self._on_message(peer, (yield from frame.read_message()))

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
            self._fill(link)  # the other end may have sent the reason before it closed
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
                    early = " during the handshake: is SPARSEWIRE_SECRET the same on every rank?"
                    self._drop(link, "it closed the connection" + (early if link.peer is None else ""))
                    return
                if count < len(link.wanted):
                    link.wanted = link.wanted[count:]
                    return  # there was no more
                self._resume(link)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(link, f"the connection broke ({error})")

    def _resume(self, link: _Link) -> None:
        try:
            link.wanted = next(link.reader)
        except handshake.AuthenticationError as error:
            self.refused += link.dialled is None
            self._drop(link, str(error))
        except SparsewireError as error:
            # What follows cannot be decoded.  The connection stays open, so that the other end can be told.
            self._on_error(type(error)(f"from rank {link.peer}: {error}"))
            link.reader = _ignored()
            link.wanted = next(link.reader)


class Outgoing:
    """A message, or the part of it that is not sent yet, in the queue of a connection."""

    __slots__ = ("buffers", "peer")

    def __init__(self, peer: int, buffers: deque[Any]) -> None:
        self.peer = peer
        self.buffers = buffers

    @property
    def done(self) -> bool:
        return not self.buffers

    def keep(self) -> None:
        self.buffers = deque(bytes(buffer) for buffer in self.buffers)


class _Link:
    """One connection: what waits to be sent, and the reader that says where received bytes go."""

    def __init__(self, sock: socket.socket, dialled: int | None = None) -> None:
        self.sock = sock
        self.open = True
        self.since = time.monotonic()
        self.peer: int | None = None  # the rank at the other end, once it has proved that
        self.dialled = dialled  # the rank that we dialled; None if the connection was accepted
        self.reader: _Reader
        self.wanted = memoryview(b"")
        self.outgoing: deque[Outgoing] = deque()
        self.watched = False  # does the selector wait until it takes more bytes?

    def send(self) -> bool:
        """Write until all is sent (True) or the connection takes no more (False)."""
        if self.peer is None or not self.open:
            return True
        while self.outgoing:
            waiting = chain.from_iterable(outgoing.buffers for outgoing in self.outgoing)
            try:
                self._consume(self.sock.sendmsg([*islice(waiting, IOV_MAX)]))
            except BlockingIOError:
                return False
        return True

    def _consume(self, count: int) -> None:
        """Remove the first ``count`` bytes from the queue."""
        while self.outgoing:
            buffers = self.outgoing[0].buffers
            while buffers and count >= len(buffers[0]):
                count -= len(buffers.popleft())
            if buffers:
                buffers[0] = memoryview(buffers[0])[count:]
                return
            self.outgoing.popleft()

    def close(self) -> None:
        self.open = False
        self.sock.close()


def _authenticate(sock: socket.socket, dialogue: handshake.Dialogue) -> Generator[memoryview, None, int]:
    """Carry a handshake's dialogue over a connection; returns the peer's rank."""
    try:
        step = next(dialogue)
        while True:
            if isinstance(step, bytes):
                sock.send(step)  # some hundred bytes into an empty buffer: never partial
                step = next(dialogue)
            else:
                buffer = bytearray(step)
                yield memoryview(buffer)
                step = dialogue.send(bytes(buffer))
    except StopIteration as end:
        return int(end.value)
    except OSError as error:
        raise handshake.AuthenticationError(f"the connection broke ({error})") from error


def _ignored() -> _Reader:
    buffer = memoryview(bytearray(1 << 16))
    while True:
        yield buffer


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


def reach(address: Address, deadline: float) -> socket.socket:
    """A connection to rank 0, dialled until it is there."""
    host, port = address
    started = time.monotonic()
    while True:
        try:
            return socket.create_connection(address, timeout=max(0.05, deadline - time.monotonic()))
        except socket.gaierror as error:
            raise InputError(f"MASTER_ADDR={host} cannot be resolved: {error}") from error
        except OSError as error:
            waited = time.monotonic() - started
            if time.monotonic() > deadline:
                raise CollectiveTimeout(
                    f"rank 0 did not arrive within {waited:.1f} s at {host}:{port}: {error}"
                ) from error
            time.sleep(0.02)


def _dial(address: Address) -> socket.socket:
    """A connection that is being made; if it is refused, reading the greeting fails."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    dialled = socket.socket(family, socket.SOCK_STREAM)
    dialled.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        dialled.connect_ex(address)
    return dialled
