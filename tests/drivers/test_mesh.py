"""Connections, without processes: two ends in one thread, so that a test decides the order of events."""

import contextlib
import threading
import time

import numpy as np
import pytest

from sparsewire.coding import frame as wire
from sparsewire.coding.call import Envelope
from sparsewire.drivers.tcp.mesh import Mesh
from sparsewire.drivers.tcp.sockets import listen
from sparsewire.drivers.tcp.unproven import Unproven
from sparsewire.vector import SparseVector


class End:
    """One rank's connections, and what came in."""

    def __init__(self, rank, secret="secret", **settings):
        self.messages, self.errors = [], []
        self.mesh = Mesh(rank, 2, listen(("127.0.0.1", 0)), secret, **settings)
        self.mesh.attach(self._took, self.errors.append)
        self.mesh.addresses = {}

    def _took(self, source, message):
        self.messages.append((source, int(message.payload.values[0])))

    def post(self, peer, number):
        piece = SparseVector.from_dense(np.array([number]))
        [outgoing] = self.mesh.post([peer], wire.encode(piece, Envelope()))
        return outgoing


@pytest.fixture
def ends():
    pair = End(0), End(1)
    for one, other in (pair, pair[::-1]):
        one.mesh.addresses = {pair.index(other): other.mesh.address}
    with contextlib.closing(pair[0].mesh), contextlib.closing(pair[1].mesh):
        yield pair


def settle(*ends):
    for _ in range(15):
        for end in ends:
            end.mesh.poll(0.003)


def test_both_dial_at_once_and_messages_keep_their_order(ends):
    a, b = ends
    posted = []
    for number in range(5):
        posted += [a.post(1, number), b.post(0, 10 + number)]
    assert not any(outgoing.done for outgoing in posted)
    settle(a, b)
    assert b.messages == [(0, number) for number in range(5)]
    assert a.messages == [(1, 10 + number) for number in range(5)]
    assert all(outgoing.done for outgoing in posted)


def test_nothing_is_connected_before_it_is_needed(ends):
    a, b = ends
    settle(a, b)
    assert not a.mesh._links[1]
    a.post(1, 7)
    settle(a, b)
    b.post(0, 8)  # on the connection that is there
    settle(a, b)
    assert (len(a.mesh._links[1]), len(b.mesh._links[0])) == (1, 1)
    assert a.messages == [(1, 8)]


def test_rank_that_closes_is_lost(ends):
    a, b = ends
    a.post(1, 7)
    settle(a, b)
    b.mesh.close()
    settle(a)
    assert list(a.mesh.lost) == [1]


def test_rank_whose_handshake_was_refused_while_it_computed_is_found_again(ends):
    """b closes a's connection, whose handshake waits for a; then b needs a, and a has a message to send."""
    a, b = ends
    b.mesh._unproven = Unproven(limit=10, seconds=0.05)
    a.mesh.watch(1)
    outgoing = a.post(1, 7)
    b.mesh.poll(0.1)  # accepts and greets; a does not answer
    time.sleep(0.1)
    b.mesh.poll(0.01)  # gives up
    b.post(0, 8)
    settle(a, b)
    assert a.messages == [(1, 8)]
    assert b.messages == [(0, 7)]
    assert not a.mesh.lost
    assert not b.mesh.lost
    assert outgoing.done


def test_rank_whose_handshake_was_refused_dials_again(ends):
    a, b = ends
    b.mesh._unproven = Unproven(limit=10, seconds=0.05)
    outgoing = a.post(1, 7)
    b.mesh.poll(0.1)  # accepts and greets; a does not answer
    time.sleep(0.1)
    b.mesh.poll(0.01)  # gives up
    settle(a, b)
    assert b.messages == [(0, 7)]
    assert outgoing.done
    assert not a.mesh.lost


def test_rank_that_always_refuses_is_lost_after_the_time_out_and_the_secret_is_not_blamed():
    a, b = End(0, timeout=0.4), End(1)
    with contextlib.closing(a.mesh), contextlib.closing(b.mesh):
        a.mesh.addresses = {1: b.mesh.address}
        a.post(1, 7)
        started = time.monotonic()
        while not a.mesh.lost:
            assert time.monotonic() < started + 20
            b.mesh.poll(0.01)
            for link in [*b.mesh._unproven]:
                b.mesh._drop(link, "a test")
            a.mesh.poll(0.01)
        assert "before the handshake had ended" in a.mesh.lost[1]
        assert "times in" in a.mesh.lost[1]
        assert "SECRET" not in a.mesh.lost[1]


def test_rank_that_is_not_there_is_lost_at_once(ends):
    a, b = ends
    b.mesh.close()
    a.post(1, 7)
    settle(a)
    assert "refused" in a.mesh.lost[1]


def test_rank_that_had_dialled_and_is_gone_is_lost_although_its_address_is_unknown(ends):
    a, b = ends
    a.mesh.addresses = {}
    b.post(0, 7)
    settle(a, b)
    b.mesh.close()
    settle(a)
    assert not a.post(1, 8).done
    assert "closed" in a.mesh.lost[1]


def test_mesh_may_be_closed_twice_and_woken_afterwards(ends):
    for end in ends:
        end.mesh.close()
        end.mesh.close()
        end.mesh.wake()


def test_unsent_bytes_are_kept_when_their_owner_writes_to_them(ends):
    a, b = ends
    numbers = np.full(4_000_000, 5, np.int32)
    [outgoing] = a.mesh.post([1], wire.encode(SparseVector.from_dense(numbers), Envelope()))
    assert not outgoing.done
    outgoing.keep()
    numbers[:] = 6
    while not (b.messages or b.errors):
        a.mesh.poll(0.001)
        b.mesh.poll(0.001)
    assert (b.messages, b.errors) == ([(0, 5)], [])


def test_end_with_another_secret_is_refused_and_counted():
    a, b = End(0), End(1, "another secret")
    with contextlib.closing(a.mesh), contextlib.closing(b.mesh):
        b.mesh.addresses = {0: a.mesh.address}
        b.post(0, 1)
        settle(a, b)
        assert (a.mesh.refused, a.messages) == (1, [])
        assert "SPARSEWIRE_SECRET" in b.mesh.lost[0]


def test_connection_stays_after_bytes_that_are_no_frame_so_that_the_other_end_can_be_told(ends):
    a, b = ends
    a.post(1, 1)
    settle(a, b)
    a.mesh.post([1], [b"garbage" * 100])
    settle(a, b)
    assert "starts with" in str(b.errors[0])
    assert len(b.errors) == 1
    b.post(0, 9)
    settle(a, b)
    assert a.messages == [(1, 9)]


def test_a_poll_can_be_ended_by_another_thread(ends):
    a, _ = ends
    threading.Timer(0.05, a.mesh.wake).start()
    a.mesh.wake()
    a.mesh.wake()
    a.mesh.poll(60.0)  # ends at once
    a.mesh.poll(60.0)  # ends when it is woken up; it would not sleep longer than a second anyway
