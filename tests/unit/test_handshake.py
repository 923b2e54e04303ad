"""The handshake as a dialogue, without sockets."""

import pytest

from sparsewire.drivers.tcp.handshake import AuthenticationError, accept, dial

SECRET = b"the job's secret"


def converse(acceptor, dialler, tap=None):
    """Carry bytes between two dialogues; ``tap`` sees what the dialler says.  Returns both results."""
    results = {}
    wanted = {}
    pending = {"acceptor": b"", "dialler": b""}  # bytes on their way to each
    sides = {"acceptor": acceptor, "dialler": dialler}
    other = {"acceptor": "dialler", "dialler": "acceptor"}

    def advance(side, data=None):
        try:
            step = sides[side].send(data)
            while isinstance(step, bytes):
                if side == "dialler" and tap is not None:
                    tap.append(step)
                pending[other[side]] += step
                step = next(sides[side])
            wanted[side] = step
        except StopIteration as end:
            results[side] = end.value

    advance("acceptor")
    advance("dialler")
    while len(results) < 2:
        for side in sides:
            if side not in results and len(pending[side]) >= wanted[side]:
                data, pending[side] = pending[side][: wanted[side]], pending[side][wanted[side] :]
                advance(side, data)
    return results


@pytest.mark.parametrize(("dialler", "acceptor"), [(0, 1), (1, 0), (3, 2)])
def test_handshake_tells_each_side_who_the_other_is(dialler, acceptor):
    results = converse(accept(SECRET, acceptor, 4), dial(SECRET, dialler, acceptor, 4))
    assert results == {"acceptor": dialler, "dialler": acceptor}


def test_handshake_refuses_a_dialler_with_another_secret():
    with pytest.raises(AuthenticationError, match="could not prove"):
        converse(accept(SECRET, 1, 4), dial(b"guess", 0, 1, 4))


@pytest.mark.parametrize(("size_here", "size_there"), [(4, 5), (5, 4)], ids=["smaller-here", "smaller-there"])
def test_handshake_refuses_a_rank_of_a_job_of_another_size(size_here, size_there):
    with pytest.raises(AuthenticationError):
        converse(accept(SECRET, 1, size_here), dial(SECRET, 0, 1, size_there))


@pytest.mark.parametrize("rank", [4, 99])
def test_handshake_refuses_a_rank_that_does_not_exist(rank):
    with pytest.raises(AuthenticationError):
        converse(accept(SECRET, 1, 4), dial(SECRET, rank, 1, 4))


def test_handshake_refuses_oneself():
    with pytest.raises(AuthenticationError):
        converse(accept(SECRET, 1, 4), dial(SECRET, 1, 1, 4))


def test_handshake_refuses_a_dialler_who_wanted_somebody_else():
    with pytest.raises(AuthenticationError):
        converse(accept(SECRET, 1, 4), dial(SECRET, 0, 2, 4))


def test_handshake_refuses_a_recorded_answer():
    said = []
    converse(accept(SECRET, 1, 4), dial(SECRET, 0, 1, 4), tap=said)
    again = accept(SECRET, 1, 4)
    next(again)  # a new challenge
    next(again)
    with pytest.raises(AuthenticationError):
        again.send(said[0])


def test_handshake_dialler_refuses_its_own_proof_reflected():
    dialler = dial(SECRET, 0, 1, 4)
    next(dialler)
    greeting = next(accept(SECRET, 1, 4))
    answer = dialler.send(greeting)
    assert next(dialler) == 32
    with pytest.raises(AuthenticationError, match="does not know the job's secret"):
        dialler.send(answer[-32:])


def test_handshake_dialler_refuses_another_service():
    dialler = dial(SECRET, 0, 1, 4)
    wanted = next(dialler)
    with pytest.raises(AuthenticationError, match="is not Sparsewire"):
        dialler.send(b"SSH-2.0-OpenSSH_9.2".ljust(wanted, b"\0"))


def test_handshake_challenges_differ_each_time():
    assert next(accept(SECRET, 1, 4)) != next(accept(SECRET, 1, 4))
