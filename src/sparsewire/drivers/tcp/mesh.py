"""TCP connections between ranks: who is connected to whom, and bytes in both directions.

Two ranks are connected when they first need each other.  The rank that needs the other dials.  If both dial
at once there are two connections: each rank keeps sending on the one that it dialled, and reads from both.
So the messages of a pair keep their order, and the ranks need not agree on a connection.  A connection that
ends before its handshake does is dialled again, for as long as the job's time-out.

Sending is a gather write of the arrays themselves; receiving fills the arrays of the result.  Nothing is
read or written outside ``poll`` and ``post``.  A ``Mesh`` is the ``Transport`` of a group.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from sparsewire.coding import frame
from sparsewire.coding.frame import Message
from sparsewire.drivers import note
from sparsewire.drivers.tcp import handshake
from sparsewire.drivers.tcp.link import Link, Outgoing, Reader, converse, ignored
from sparsewire.drivers.tcp.protection import Protection, encryption_of
from sparsewire.drivers.tcp.sockets import (
    Address,
    allow_descriptors,
    descriptors_used_up,
    dial,
    keep_alive,
    naming_descriptors,
    out_of_descriptors,
)
from sparsewire.drivers.tcp.tags import Tags, read_tagged
from sparsewire.drivers.tcp.unproven import Unproven, handshake_limit, handshake_seconds
from sparsewire.errors import SparsewireError, TransportError

if TYPE_CHECKING:
    from sparsewire.drivers.tcp.tls import Encryption

__all__ = ["Mesh"]

ACCEPTS = 64  # connections that are accepted before others get their turn
REDIAL_S = 0.05  # before the second attempt; each further one waits twice as long as the one before
LONGEST_REDIAL_S = 1.0
NEWCOMERS = 256  # how many may wait
REST_S = 0.1  # how long nothing is accepted after descriptors ran out; otherwise polls would not wait
STARVED_S = 1.0  # how long that may last before it is an error
MISFIT_S = 1.0  # for how long others may still come, to be told of a rank that cannot take part
FORKED = "its connections belong to the process that this one was forked from"

_meshes: weakref.WeakSet[Mesh] = weakref.WeakSet()


class Mesh:
    """One rank's connections.

    Within ``timeout`` seconds, a handshake has to end, and a silent network is noticed.  A rank that
    ``serves`` has no other time-outs.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        listener: socket.socket,
        secret: str,
        timeout: float = 300.0,
        protection: Protection | None = None,
        serves: bool = False,
        encryption: Encryption | None = None,
    ) -> None:
        allow_descriptors(size)
        self.address: Address = listener.getsockname()[:2]
        self.kind = ("tcp", self.address[0])
        self.addresses: dict[int, Address] = {}  # where each rank listens, once known
        self.lost: dict[int, str] = {}  # ranks that are gone, and how we know
        self.met: set[int] = set()  # ranks with which there is or was a connection
        self.refused = 0  # connections that could not prove to be ranks
        self._rank, self._size, self._secret = rank, size, secret
        self._timeout, self._serves = timeout, serves
        self._protection = protection or Protection()
        self._encryption = encryption or encryption_of(self._protection)
        self._terms = handshake.Terms.here(bool(self._protection.tls), self._protection.authenticate_frames)
        self._process = secrets.token_bytes(8)
        self._processes: dict[int, bytes] = {}  # rank -> the process that has come as this rank
        self._on_message: Callable[[int, Message], None]
        self._on_error: Callable[[SparsewireError], None] = lambda error: None
        self.after_poll: Callable[[], None] = lambda: None  # for answers, which a reader must not send itself
        self._listener = listener
        self._routes: dict[int, Link] = {}  # rank -> the one connection on which we send to it
        self._links: dict[int, set[Link]] = defaultdict(set)  # rank -> all open connections with it
        self._unproven = Unproven(handshake_limit(size), handshake_seconds(timeout))
        self._redials: dict[int, float] = {}  # rank -> when it is dialled again
        self._resumed: set[Link] = set()  # connections that are read again
        self._starved_since: float | None = None  # accepting fails because there are no descriptors
        self._rests_until: float | None = None
        self._misfit: SparsewireError | None = None  # a rank has come that cannot take part
        self._misfit_until: float | None = None
        with naming_descriptors():
            self._selector = selectors.DefaultSelector()
            self._wake_receiver, self._wake_sender = socket.socketpair()  # a byte sent here ends another poll
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._woken)
        self._group_listener: socket.socket | None = None  # for the ranks of a group that is being made
        self.rendezvous = self.address  # where those who want to join find rank 0
        self._job_secret = secret  # that of the first mesh, which newcomers know
        self._newcomers: dict[Link, str] = {}  # who waits to be taken in -> its invitation
        self._doors: list[Any] = []  # earlier meshes, whose addresses others may still know
        _meshes.add(self)

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
        has_plans = bool(self._resumed or self._redials or self._rests_until or self._misfit_until)
        longest = min(1.0, timeout, self._next_plan()) if has_plans else min(1.0, timeout)
        for key, mask in self._selector.select(max(0.0, longest)):
            key.data(mask)
        if self._unproven:  # after the reads: an answer may have waited here while this rank computed
            for link in self._unproven.overdue(time.monotonic()):
                self._drop(link, "it proved nothing in time")
        if has_plans:
            self._carry_out_plans()
        self.after_poll()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # enough bytes are waiting already, or the mesh was closed
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

    def pause(self, peer: int) -> None:
        """Leave what the rank sends in the buffers of its connections, which are then full for it."""
        self._set_paused(peer, True)

    def resume(self, peer: int) -> None:
        self._set_paused(peer, False)

    def _set_paused(self, peer: int, paused: bool) -> None:
        for link in self._links[peer]:
            link.paused = paused
            self._select(link)
            if not paused:
                self._resumed.add(link)

    def adopt(self, peer: int, connected: socket.socket) -> None:
        """Use a connection that was dialled elsewhere."""
        self._converse(Link(connected, dialled=peer))

    def hint(self) -> str:
        return f"; {self.refused} connections could not prove to be ranks" if self.refused else ""

    def close(self, in_order: bool = True) -> None:
        for end in (self._wake_receiver, self._wake_sender):
            end.close()
        for link in self._all_links():
            link.close()
        for door in self._doors:
            door.close()
        if self._group_listener is not None:
            self._group_listener.close()
        self._listener.close()
        self._selector.close()

    def _all_links(self) -> list[Link]:
        known = {*self._unproven, *self._routes.values(), *self._newcomers}.union(*self._links.values())
        return [link for link in known if link.open]

    # -- opening and closing ---------------------------------------------------------------------

    def _route(self, peer: int) -> Link:
        """The connection on which we send to ``peer``: an open one, or a new one."""
        if peer not in self._routes:
            if self._links[peer]:
                self._routes[peer] = next(iter(self._links[peer]))
            elif peer in self.addresses:
                self._dial(peer)
            else:  # it had dialled us, and is gone
                self._routes[peer] = Link(None, dialled=peer)
        return self._routes[peer]

    def _dial(self, peer: int, before: Link | None = None) -> None:
        """Dial a rank, in place of a connection that has ended before its handshake did, if there is one."""
        try:
            link = Link(dial(self.addresses[peer]), dialled=peer)
        except OSError as error:
            if out_of_descriptors(error):  # there may be some later
                cannot = f"rank {self._rank} cannot make one more connection"
                raise TransportError(f"{cannot}: {descriptors_used_up()}") from error
            link = Link(None, dialled=peer)
            self.lost[peer] = f"rank {self._rank} cannot connect to rank {peer}: {error}"
            self._on_error(TransportError(self.lost[peer]))
        if before is not None:
            link.since, link.attempts, link.outgoing = before.since, before.attempts + 1, before.outgoing
        self._routes[peer] = link
        if link.open:
            self._converse(link)

    def _accept(self, _: int) -> None:
        for turn in range(ACCEPTS):
            try:
                accepted, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if out_of_descriptors(error) and not turn:  # later, maybe nobody else wants to come in
                    self._starve()
                return  # or it was closed again already
            self._starved_since = None
            link = Link(accepted, host=address[0])
            self._unproven.add(link)
            self._converse(link)
            if (surplus := self._unproven.surplus()) is not None:
                self._drop(surplus, "too many connections that do not prove anything")

    def _starve(self) -> None:
        """There is no descriptor for a new connection: use a stranger's, or else wait for one."""
        if (stranger := self._unproven.oldest_of_most()) is not None:
            self._drop(stranger, "too few descriptors")
            return
        now = time.monotonic()
        self._starved_since = self._starved_since or now
        if now - self._starved_since > STARVED_S:
            self._on_error(
                TransportError(f"rank {self._rank} cannot accept connections: {descriptors_used_up()}")
            )
        self._selector.unregister(self._listener)
        self._rests_until = now + REST_S

    def _next_plan(self) -> float:
        """Seconds until something is to be done that no byte brings about."""
        if self._resumed:
            return 0.0
        plans = filter(None, (*self._redials.values(), self._rests_until, self._misfit_until))
        return min(plans) - time.monotonic()

    def _carry_out_plans(self) -> None:
        now = time.monotonic()
        while self._resumed:  # what TLS has decrypted before the pause is nothing that the selector sees
            self._fill(self._resumed.pop())
        if self._misfit_until and (self._misfit_until <= now or len(self._processes) == self._size - 1):
            assert self._misfit is not None
            self._misfit_until = None
            self._on_error(self._misfit)
        if self._rests_until is not None and self._rests_until <= now:
            self._rests_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for peer in [peer for peer, when in self._redials.items() if when <= now]:
            del self._redials[peer]
            if not self._links[peer]:  # it has not dialled us meanwhile
                try:
                    self._dial(peer, before=self._routes[peer])
                except TransportError as error:
                    self._on_error(error)

    def _converse(self, link: Link) -> None:
        """Start to speak with the other end of a new connection."""
        link.sock.setblocking(False)
        with contextlib.suppress(OSError):  # it has ended already, and reading says so
            link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(link.sock, self._timeout, self._serves)
        secret, who = self._secret.encode(), (self._rank, self._size)
        if link.dialled is None:
            joining = f"{self._job_secret}/join".encode() if self._rank == 0 else None
            processes = self._process, self._processes
            dialogue = handshake.accept(secret, *who, self._terms, *processes, joining)
        else:
            self._routes[link.dialled] = link
            dialogue = handshake.dial(
                secret, self._rank, link.dialled, self._size, self._terms, self._process
            )
        link.reader = self._conversation(link, dialogue)
        self._select(link)
        self._resume(link)

    def _select(self, link: Link) -> None:
        """Have the selector wait for what the connection is to do."""
        events = (0 if link.paused else selectors.EVENT_READ) | (selectors.EVENT_WRITE if link.watched else 0)
        if link.open and events != link.events:
            if link.events:
                self._selector.unregister(link.descriptor)
            if events:
                self._selector.register(link.descriptor, events, lambda mask: self._ready(link, mask))
            link.events = events

    def _drop(self, link: Link, reason: str, is_final: bool = True) -> None:
        """Close a connection.  A rank that was dialled is dialled again, if the end is not final."""
        if not link.open:
            return
        if link.events:
            self._selector.unregister(link.descriptor)
        link.close()
        self._unproven.discard(link)
        peer = link.dialled if link.peer is None else link.peer
        if peer is None or self._newcomers.pop(link, None) is not None:
            return  # it was never authenticated, or not taken in yet
        self._links[peer].discard(link)
        if self._links[peer]:
            self._reroute(peer)
        elif is_final or not self._will_redial(link, peer):
            self.lost.setdefault(peer, reason)

    def _will_redial(self, link: Link, peer: int) -> bool:
        """Decide when to dial again, unless it was tried long enough."""
        now = time.monotonic()
        when = now + min(REDIAL_S * 2 ** min(link.attempts - 1, 10), LONGEST_REDIAL_S)
        if peer not in self.addresses or when > link.since + self._timeout:
            return False
        self._redials[peer] = when
        return True

    def _reroute(self, peer: int) -> None:
        """If the connection that we dialled was closed but another one is open, send on that one.

        This happens to a rank that computes while its handshake waits for an answer: the other end closes it.
        """
        route = self._routes.get(peer)
        if not self._links[peer] or route is None or route.open or route.peer is not None:
            return
        self.lost.pop(peer, None)
        self._redials.pop(peer, None)
        self._routes[peer] = next(iter(self._links[peer]))
        self._routes[peer].outgoing += route.outgoing
        self._flush(self._routes[peer])

    # -- bytes -----------------------------------------------------------------------------------

    def _conversation(self, link: Link, dialogue: handshake.Dialogue) -> Reader:
        """All that is ever read from a connection: the handshake, then messages."""
        proven = yield from converse(link, dialogue, self._encryption)
        link.peer = peer = proven.peer
        self._unproven.discard(link)
        received = None
        if self._protection.has_tags:
            link.tags, received = Tags(proven.send_key), Tags(proven.receive_key)
        if peer == handshake.NEWCOMER:
            yield from self._receive_newcomer(link, received)
        self._links[peer].add(link)
        self.met.add(peer)
        self._reroute(peer)
        self._flush(link)
        while True:
            self._on_message(peer, (yield from _read(received)))

    def _receive_newcomer(self, link: Link, received: Tags | None) -> Reader:
        """Let a newcomer wait until the group grows; whatever else it sends is ignored."""
        if len(self._newcomers) >= NEWCOMERS:
            raise handshake.AuthenticationError(f"{NEWCOMERS} newcomers wait already")
        self._newcomers[link] = ""
        message = yield from _read(received)
        self._newcomers[link] = str(note.from_vector(handshake.NEWCOMER, message.payload))
        yield from ignored()

    def _ready(self, link: Link, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(link)
        if mask & selectors.EVENT_READ:
            self._fill(link)

    def _flush(self, link: Link) -> None:
        """Send what the connection takes."""
        try:
            done = link.send()
        except OSError as error:
            self._fill(link)  # the other end may have sent the reason before it closed
            self._drop(link, f"sending to it failed ({error})")
            return
        if link.open and done == link.watched:
            link.watched = not done
            self._select(link)

    def _fill(self, link: Link) -> None:
        """Receive what is there, into the buffers that the reader wants filled."""
        try:
            while link.open and not link.paused:
                count = link.sock.recv_into(link.wanted) if link.wanted else 0
                if link.wanted and not count:
                    self._ended(link, "it closed the connection")
                    return
                if count < len(link.wanted):
                    link.wanted = link.wanted[count:]
                    return  # there was no more
                self._resume(link)
                if not link.wanted:
                    return  # the reader has read what there was
        except BlockingIOError:
            return
        except OSError as error:
            self._ended(link, f"the connection broke ({error})", error)
        except SparsewireError as error:  # of TLS
            if link.peer is None:  # whatever a stranger sends concerns nobody else
                self._reject(link, handshake.AuthenticationError(str(error)))
            else:
                self._reject(link, error)
                self._forget(link)

    def _resume(self, link: Link) -> None:
        """Give the reader what it wanted, and ask what it wants next."""
        try:
            link.wanted = next(link.reader)
        except SparsewireError as error:
            self._reject(link, error)
        except OSError as error:
            self._ended(link, f"the connection broke ({error})", error)
        except Exception as error:
            if link.peer is None:
                raise  # nobody has proved anything, so it is not the fault of a rank
            self._undecodable(link, error)

    def _ended(self, link: Link, how: str, error: OSError | None = None) -> None:
        """The other end, or the network, has ended a connection."""
        if link.peer is not None or isinstance(error, ConnectionRefusedError):
            self._drop(link, how)  # where nobody listens any more, there is no rank
            return
        tried = (
            f" {link.attempts} times in {time.monotonic() - link.since:.1f} s" if link.attempts > 1 else ""
        )
        self._drop(link, f"{how} before the handshake had ended{tried}", is_final=False)

    def _reject(self, link: Link, error: SparsewireError) -> None:
        """What the other end says cannot be right."""
        if isinstance(error, handshake.AuthenticationError):
            self.refused += link.dialled is None
            self._drop(link, str(error))
        elif link.peer is None:  # it is a rank of this job, which cannot go on with it
            self._drop(link, str(error))
            if link.dialled is not None:
                self._on_error(error)
            elif self._misfit is None and not self.addresses:  # a group that is complete goes on without it
                self._misfit, self._misfit_until = error, time.monotonic() + MISFIT_S
        else:
            self._undecodable(link, error)

    def _undecodable(self, link: Link, error: Exception) -> None:
        """What follows cannot be decoded.  The connection stays open, so that the other end can be told."""
        self._on_error(frame.blame(link.peer, error))
        link.reader = ignored()
        link.wanted = next(link.reader)

    def _forget(self, link: Link) -> None:
        """Close a connection on which nothing can be said any more; what is left to say goes on a new one."""
        assert link.peer is not None
        self._drop(link, "the connection broke")
        self._routes.pop(link.peer, None)
        self.lost.pop(link.peer, None)


def _read(tags: Tags | None) -> Generator[memoryview, None, Message]:
    return frame.read_message() if tags is None else read_tagged(tags)


def _leave_to_parent() -> None:
    """Close what a forked process has inherited: otherwise nobody would notice the end of its parent.

    Closing takes nothing away from the parent.  To unregister would, because both have the same selector.
    """
    for mesh in [*_meshes]:
        mesh.close()
        mesh.lost.update(dict.fromkeys(range(mesh._size), FORKED))  # nobody is told anything from here
        mesh._on_error(TransportError(FORKED))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
