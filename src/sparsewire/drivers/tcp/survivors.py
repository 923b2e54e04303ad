"""The agreement of survivors over TCP: who still listens, and what each of them tells.

The ranks take part when their own call has failed, so they come at different times.  A rank whose address
refuses connections is dead: its process has ended, or has closed the communicator.  Any other failure to
connect proves nothing, and is tried again: a rank that has not come yet does not know the agreement's secret.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from typing import TYPE_CHECKING

from sparsewire.coding import frame
from sparsewire.coding.call import Envelope
from sparsewire.coding.frame import Message
from sparsewire.drivers import note
from sparsewire.drivers.membership import Membership, View
from sparsewire.errors import CollectiveTimeout, SparsewireError, WireError

if TYPE_CHECKING:
    from sparsewire.drivers.tcp.elastic import ElasticMesh

__all__ = ["Survivors"]

POLL_S = 0.02  # between two looks at connections that are being made
AGAIN_S = 0.1  # between two attempts to connect
COURTESY_S = 0.2  # a pair needs one connection: the higher rank dials only if the lower one has not done so
ANSWER_S = 2.0  # how long a rank may take to answer at the end, before it counts as silent
QUESTIONS = 4  # how often to ask before giving up; each time somebody is silent, or something has changed
LINGER_S = 1.0  # how long to wait until all others have heard of the decision


class Survivors:
    """One rank's part; ``agree`` gives the group and everybody's invitation to it."""

    def __init__(self, mesh: ElasticMesh, rank: int, size: int) -> None:
        self.membership = Membership(rank, size)
        self._mesh, self._rank = mesh, rank
        self._invitations = {rank: mesh.invite().decode()}
        self._dials: dict[int, socket.socket] = {}  # connections that are being made
        self._dial_at: dict[int, float] = {}  # when to try to make one
        self._known: set[int] = set()  # ranks that can be told something
        self._heard: dict[int, float] = {}  # when a rank told something last
        self._decided: set[int] = set()  # ranks that have told their decision
        self._told: tuple[View, bool] = (View(), False)
        self._answers: set[int] = set()  # ranks that are to be told, whether or not there are news
        mesh.attach(self._on_message, self._on_error)
        mesh.after_poll = self._tell_news

    def agree(self, timeout: float) -> tuple[list[int], dict[int, bytes]]:
        """The ranks that are left, this one among them; or an error that says why there is no group."""
        started = asked_at = time.monotonic()
        ask_at, questions = started + max(timeout - ANSWER_S, timeout / 2), 0
        for peer in self.membership.others:
            self._dial_at[peer] = started + (COURTESY_S if peer < self._rank else 0.0)
        self.membership.on_dead([])  # a rank that is alone decides at once
        try:
            while not self.membership.decided and self.membership.failure is None:
                self._advance()
                if time.monotonic() < ask_at:
                    continue
                if questions:
                    self._give_up(asked_at)
                if questions == QUESTIONS:
                    names = ", ".join(map(str, self.membership.disagreeing()))
                    raise CollectiveTimeout(f"rank {names} did not agree who is left within {timeout:g} s")
                asked_at, questions = time.monotonic(), questions + 1
                ask_at = asked_at + ANSWER_S
                self._tell(self._known, asks=True)
            self._linger()
        finally:
            while self._dials:
                self._dials.popitem()[1].close()
        if self.membership.failure is not None:
            raise self.membership.failure
        group = self.membership.group
        return group, {peer: self._invitations[peer].encode() for peer in group}

    def _give_up(self, asked_at: float) -> None:
        """Whoever has not answered a question is silent."""
        self.membership.on_silent(
            peer for peer in self.membership.others if self._heard.get(peer, 0.0) < asked_at
        )

    def _linger(self) -> None:
        """Let the others hear of the decision; who does not hear it now can ask for it later."""
        end = time.monotonic() + LINGER_S
        self._tell_news()
        while self.membership.decided and time.monotonic() < end:
            if self._decided >= {*self.membership.others}:
                break
            self._advance()

    def _advance(self) -> None:
        for peer in [peer for peer, when in self._dial_at.items() if when <= time.monotonic()]:
            self._dial(peer)
        for peer in [*self._dials]:
            self._complete(peer)
        self._mesh.poll(POLL_S if self._dials or self._dial_at else AGAIN_S)
        for peer in [*self._mesh.lost]:
            del self._mesh.lost[peer]
            self._known.discard(peer)
            self._dial_at[peer] = time.monotonic() + AGAIN_S

    # -- messages --------------------------------------------------------------------------------

    def _tell_news(self) -> None:
        if self._told != (news := (self.membership.view, self.membership.decided)):
            self._told = news
            self._answers |= self._known
        answers, self._answers = self._answers, set()
        self._tell(answers)

    def _tell(self, peers: set[int], asks: bool = False) -> None:
        dead, silent = self.membership.view
        decided = self.membership.decided
        known = self._invitations.items() if decided else [(self._rank, self._invitations[self._rank])]
        told = {
            "dead": sorted(dead),
            "silent": sorted(silent),
            "decided": decided,
            "asks": asks,
            "invitations": sorted(known),
        }
        if peers:
            self._mesh.post(sorted(peers), frame.encode(note.to_vector(told), Envelope()))

    def _on_message(self, source: int, message: Message) -> None:
        told = note.from_vector(source, message.payload)
        try:
            view = View(frozenset(map(int, told["dead"])), frozenset(map(int, told["silent"])))
            invitations = {int(rank): str(invitation) for rank, invitation in told["invitations"]}
            decided, asks = bool(told["decided"]), bool(told["asks"])
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"a view that cannot be read: {error}") from error
        is_new = source not in self._known
        self._known.add(source)
        self._heard[source] = time.monotonic()
        self._dial_at.pop(source, None)
        if decided:
            self._decided.add(source)
        if not self.membership.decided:
            self._invitations.update(invitations)
        self.membership.on_view(source, view, decided)
        if is_new or asks or (self.membership.decided and not decided):
            self._answers.add(source)

    def _on_error(self, error: SparsewireError) -> None:
        """A rank that cannot be understood counts as one that does not answer."""

    # -- connecting ------------------------------------------------------------------------------

    def _dial(self, peer: int) -> None:
        """Begin to connect, unless this rank has heard of the peer already."""
        del self._dial_at[peer]
        address = self._mesh.addresses[peer]
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._dials[peer] = dialled = socket.socket(family, socket.SOCK_STREAM)
        dialled.setblocking(False)
        dialled.connect_ex(address)

    def _complete(self, peer: int) -> None:
        """See whether a connection that is being made is there, or was refused."""
        dialled = self._dials[peer]
        is_decided = select.poll()  # unlike select, it takes any descriptor
        is_decided.register(dialled, select.POLLOUT)
        if not is_decided.poll(0):
            return
        del self._dials[peer]
        failure = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # Where nobody listens at a port that the kernel assigns, a connection can meet itself.
        if failure == errno.ECONNREFUSED or (not failure and dialled.getsockname() == dialled.getpeername()):
            self.membership.on_dead([peer])
        elif failure:
            self._dial_at[peer] = time.monotonic() + AGAIN_S
        elif peer not in self._known:
            self._mesh.adopt(peer, dialled)
            self._known.add(peer)
            self._tell({peer})
            return
        dialled.close()
