"""The meshes that follow a mesh: of some of its ranks, of those who are left, or with newcomers.

Every mesh of a job has the options of the first one.  The address of an earlier mesh may still be known to
others: to ranks that come late to the agreement of survivors, and to newcomers.  So it is kept as a *door* of
the mesh that follows: a listener that is answered whenever the mesh is polled.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from sparsewire.coding import frame
from sparsewire.coding.call import Envelope
from sparsewire.drivers import note
from sparsewire.drivers.tcp import handshake
from sparsewire.drivers.tcp.link import Outgoing
from sparsewire.drivers.tcp.mesh import Mesh
from sparsewire.drivers.tcp.sockets import Address, listen
from sparsewire.drivers.tcp.survivors import Survivors
from sparsewire.errors import InputError

__all__ = ["ElasticMesh"]

GREETING_S = 0.5  # how long growing waits for connections that prove nothing yet


class ElasticMesh(Mesh):
    """A mesh that others can follow: what ``Transport`` asks for beyond moving messages."""

    def invite(self) -> bytes:
        """Listen for a new group."""
        if self._group_listener is not None:  # of an invitation that led to no group
            self._group_listener.close()
        self._group_listener = listen((self.address[0], 0))
        return json.dumps(self._group_listener.getsockname()[:2]).encode()

    def split(self, group: Sequence[int], invitations: Sequence[bytes]) -> ElasticMesh:
        """The group's own connections, so that a failure in one group does not concern the other."""
        assert self._group_listener is not None
        listener, self._group_listener = self._group_listener, None
        everybody = [invitations[rank].decode() for rank in group]
        return self._made(group.index(self._rank), everybody, listener, f"{self._secret}/{everybody[0]}")

    def _made(
        self, rank: int, invitations: Sequence[str], listener: socket.socket, secret: str
    ) -> ElasticMesh:
        """The mesh of a group whose ranks have given these invitations."""
        mesh = self._alike(rank, len(invitations), listener, secret)
        mesh.addresses = {place: tuple(json.loads(page)) for place, page in enumerate(invitations)}
        mesh.rendezvous = mesh.addresses[0]
        return mesh

    def _alike(self, rank: int, size: int, listener: socket.socket, secret: str) -> ElasticMesh:
        """A mesh of the same job, with the same options."""
        settings = (self._timeout, self._protection, self._serves, self._encryption)
        mesh = ElasticMesh(rank, size, listener, secret, *settings)
        mesh._job_secret = self._job_secret
        return mesh

    def shrink(self, timeout: float) -> tuple[ElasticMesh, list[int]]:
        """The mesh of the ranks that are left, and which they are; this one is closed.

        The listener serves the agreement, and is kept after it: ranks that come too late are answered there,
        and do not take this rank for dead.
        """
        agreement = self._alike(self._rank, self._size, self._listener.dup(), f"{self._secret}/shrink")
        agreement.addresses, agreement._doors, self._doors = self.addresses, self._doors, []
        self.close()
        try:
            group, invitations = Survivors(agreement, self._rank, self._size).agree(timeout)
        except BaseException:
            agreement.close()
            raise
        mesh = agreement.split(group, [invitations.get(rank, b"") for rank in range(self._size)])
        mesh._keep(agreement)
        mesh._take_over(self.rendezvous, rank_0_is_left=group[0] == 0)
        return mesh, group

    def _keep(self, door: ElasticMesh) -> None:
        """Answer at the addresses of an earlier mesh, in ``poll``, as long as this one is open."""
        for earlier in [*door._doors, door]:
            selector: Any = earlier._selector  # which can be selected itself
            self._selector.register(selector, selectors.EVENT_READ, lambda _, door=earlier: door.poll(0.0))
            self._doors.append(earlier)
        door._doors = []
        for link in door._all_links():
            if link.events:
                door._selector.unregister(link.sock)
            door._unproven.discard(link)
            link.close()
        for known in (door._routes, door._links, door._redials, door._newcomers):
            known.clear()

    def _take_over(self, rendezvous: Address, rank_0_is_left: bool) -> None:
        """Be found where the group was found before, if the new rank 0 is at the same host."""
        if rank_0_is_left or rendezvous[0] == self.addresses[0][0]:
            self.rendezvous = rendezvous
        if self._rank == 0 and not rank_0_is_left and self.rendezvous == rendezvous:
            with contextlib.suppress(InputError):  # if the old rank 0 is only silent, it still listens
                self._keep(self._alike(0, self._size, listen(rendezvous), f"{self._secret}/rendezvous"))

    def newcomers(self, at_least: int, timeout: float) -> list[str]:
        """The invitations of those who wait at rank 0; it waits for ``at_least`` so many, for a while."""
        end = time.monotonic() + timeout
        soon = time.monotonic() + min(GREETING_S, timeout)  # until then, handshakes may end
        while self._rank == 0:
            self.poll(0.01)
            busy = time.monotonic() < soon and any([*mesh._unproven] for mesh in [self, *self._doors])
            waiting = [page for mesh in [self, *self._doors] for page in mesh._newcomers.values() if page]
            if time.monotonic() > end or (len(waiting) >= at_least and not busy):
                return waiting
        return []

    def grow(self, invitations: Sequence[bytes], newcomers: Sequence[str]) -> ElasticMesh:
        """The mesh of this group and those who are taken in; this one stays open as one of its doors."""
        assert self._group_listener is not None
        listener, self._group_listener = self._group_listener, None
        everybody = [*(invitation.decode() for invitation in invitations), *newcomers]
        for door in [self, *self._doors]:
            for link, page in [*door._newcomers.items()]:
                if page in newcomers:
                    welcome = [everybody.index(page), len(invitations), everybody, self.rendezvous]
                    buffers = frame.encode(note.to_vector(welcome), Envelope())
                    link.outgoing.append(Outgoing(handshake.NEWCOMER, deque(buffers)))
                    door._flush(link)
        for door in self._doors:
            selector: Any = door._selector
            self._selector.unregister(selector)
        mesh = self._grown(self._rank, everybody, listener, self._job_secret)
        mesh.rendezvous = self.rendezvous
        mesh._keep(self)
        return mesh

    def join(self, rank: int, everybody: Sequence[str], rendezvous: Address, job_secret: str) -> ElasticMesh:
        """What becomes of a newcomer's mesh when it is taken in."""
        assert self._group_listener is not None
        listener, self._group_listener = self._group_listener, None
        self._job_secret = job_secret
        mesh = self._grown(rank, everybody, listener, job_secret)
        mesh.rendezvous = rendezvous
        return mesh

    def _grown(
        self, rank: int, everybody: Sequence[str], listener: socket.socket, job_secret: str
    ) -> ElasticMesh:
        """The secret follows from what newcomers know, too."""
        return self._made(rank, everybody, listener, f"{job_secret}/grow/{everybody[0]}")
