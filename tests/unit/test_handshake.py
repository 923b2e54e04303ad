"""The handshake as a dialogue, without sockets."""

import pytest

import sparsewire as sw
from sparsewire.coding import frame
from sparsewire.drivers.tcp.handshake import (
    GREETING,
    HELLO_BYTES,
    REFUSED,
    AuthenticationError,
    Proven,
    StartTLS,
    Terms,
    accept,
    dial,
)

SECRET = b"the job's secret"


def converse(acceptor, dialler, tap=None, bindings=(b"certificate", b"certificate")):
    """Carry bytes between two dialogues; ``tap`` sees what the dialler says.  Returns both results.

    ``bindings`` are the certificate as the acceptor and as the dialler see it, once both start TLS.
    """
    results = {}
    certificates = dict(zip(("acceptor", "dialler"), bindings, strict=True))
    wanted = {}
    pending = {"acceptor": b"", "dialler": b""}  # bytes on their way to each
    sides = {"acceptor": acceptor, "dialler": dialler}
    other = {"acceptor": "dialler", "dialler": "acceptor"}

    def advance(side, data=None):
        try:
            step = sides[side].send(data)
            while not isinstance(step, int):
                if isinstance(step, StartTLS):
                    step = sides[side].send(certificates[side])
                    continue
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
    assert {side: proven.peer for side, proven in results.items()} == {
        "acceptor": dialler,
        "dialler": acceptor,
    }


def test_handshake_gives_keys_that_both_know_and_no_other_connection_has():
    keys = set()
    for _ in range(2):
        results = converse(accept(SECRET, 1, 4), dial(SECRET, 0, 1, 4))
        here, there = results["acceptor"], results["dialler"]
        assert there == Proven(1, send_key=here.receive_key, receive_key=here.send_key)
        keys |= {here.send_key, here.receive_key}
    assert len(keys) == 4


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
    assert again.send(said[0]) == REFUSED
    with pytest.raises(AuthenticationError):
        next(again)


def test_handshake_dialler_refuses_its_own_proof_reflected():
    dialler = dial(SECRET, 0, 1, 4)
    next(dialler)
    hello = next(accept(SECRET, 1, 4))
    dialler.send(hello[: len(GREETING)])
    answer = dialler.send(hello[len(GREETING) :])
    assert next(dialler) == 32
    with pytest.raises(AuthenticationError, match="does not know the job's secret"):
        dialler.send(answer[-32:])


def test_handshake_dialler_refuses_another_service():
    dialler = dial(SECRET, 0, 1, 4)
    wanted = next(dialler)
    with pytest.raises(AuthenticationError, match="is not Sparsewire"):
        dialler.send(b"SSH-2.0-OpenSSH_9.2".ljust(wanted, b"\0"))


def test_handshake_dialler_is_told_that_its_proof_was_refused_and_what_to_compare():
    dialler = dial(SECRET, 0, 1, 4)
    next(dialler)
    hello = next(accept(SECRET, 1, 4))
    dialler.send(hello[: len(GREETING)])
    dialler.send(hello[len(GREETING) :])
    next(dialler)
    with pytest.raises(AuthenticationError, match=r"rank 1 refused the proof of rank 0.*SPARSEWIRE_SECRET"):
        dialler.send(REFUSED)


def test_handshake_of_another_version_is_named():
    dialler = dial(SECRET, 0, 1, 4)
    next(dialler)
    with pytest.raises(AuthenticationError, match="rank 1 has version 1 of the handshake"):
        dialler.send(GREETING[:-1] + b"1")


# -- terms ---------------------------------------------------------------------------------------


def both_raise(kind, acceptor, dialler):
    """Both sides raise this kind of error; returns what each of them says."""
    said = []
    for first, second in (("acceptor", "dialler"), ("dialler", "acceptor")):
        sides = {"acceptor": acceptor(), "dialler": dialler()}
        try:
            converse(**{first: _until_it_fails(sides[first], kind, said), second: _kept(sides[second], kind)})
        except kind:
            pass
    return said


def _until_it_fails(dialogue, kind, said):
    """Write down the error of one side."""
    try:
        return (yield from dialogue)
    except kind as error:
        said.append(str(error))
        raise


def _kept(dialogue, kind):
    """Do not let the error of this side end the conversation before the other side has its own."""
    try:
        return (yield from dialogue)
    except kind:
        return None


@pytest.mark.parametrize("different", [{"format": frame.VERSION + 1, "library": "9.9.9"}], ids=["format"])
def test_handshake_of_another_wire_format_names_both_versions_on_both_sides(different):
    other = Terms.here()._replace(**different)
    said = both_raise(
        sw.CallMismatchError, lambda: accept(SECRET, 1, 4), lambda: dial(SECRET, 0, 1, 4, other)
    )
    ours, theirs = f"{frame.VERSION} of the wire format (sparsewire {sw.__version__})", frame.VERSION + 1
    for message in said:
        assert f"rank 0 has version {theirs} of the wire format (sparsewire 9.9.9), and rank 1 " in message
        assert f"rank 1 has version {ours}: install the same version on every rank" in message
    assert len(said) == 2


def test_handshake_of_another_library_with_the_same_format_is_fine():
    converse(accept(SECRET, 1, 4), dial(SECRET, 0, 1, 4, Terms.here()._replace(library="0.0.1")))


@pytest.mark.parametrize("name", ["tls", "authenticate_frames"])
@pytest.mark.parametrize("who", ["acceptor", "dialler"])
def test_protection_that_only_one_side_wants_is_an_error_on_both(name, who):
    wants, wants_not = Terms.here(**{name: True}), Terms.here()
    terms = (wants, wants_not) if who == "acceptor" else (wants_not, wants)
    said = both_raise(
        sw.CallMismatchError,
        # The dialler starts no TLS if only one side wants it, and the acceptor sees that by the first byte.
        lambda: _without_tls(accept(SECRET, 1, 4, terms[0])),
        lambda: dial(SECRET, 0, 1, 4, terms[1]),
    )
    assert len(set(said)) == 1
    assert len(said) == 2
    assert f"rank 0 has {name}={who == 'dialler'}, and rank 1 has {name}={who == 'acceptor'}" in said[0]


def _without_tls(dialogue):
    answer = None
    while True:
        try:
            step = dialogue.send(answer)
        except StopIteration as end:
            return end.value
        answer = b"" if isinstance(step, StartTLS) else (yield step)


def test_handshake_says_that_a_rank_came_twice():
    processes = {0: b"process1"}

    def again():
        return accept(SECRET, 1, 4, processes=processes)

    converse(again(), dial(SECRET, 0, 1, 4, process=b"process1"))
    said = both_raise(sw.InputError, again, lambda: dial(SECRET, 0, 1, 4, process=b"process2"))
    assert said == ["rank 0 came twice: two processes of this job have RANK=0"] * 2


# -- the certificate -----------------------------------------------------------------------------

ENCRYPTED = Terms.here(tls=True)


def test_handshake_is_bound_to_the_certificate():
    converse(accept(SECRET, 1, 4, ENCRYPTED), dial(SECRET, 0, 1, 4, ENCRYPTED))
    with pytest.raises(AuthenticationError):  # somebody in between shows another one
        converse(
            accept(SECRET, 1, 4, ENCRYPTED),
            dial(SECRET, 0, 1, 4, ENCRYPTED),
            bindings=(b"certificate", b"another one"),
        )


def test_handshake_without_tls_cannot_be_forced_by_changing_the_hello():
    plain = Terms.here()
    acceptor, dialler = accept(SECRET, 1, 4, ENCRYPTED), dial(SECRET, 0, 1, 4, plain)
    sent = bytearray(next(acceptor))
    sent[len(GREETING) + 2] ^= 1  # as if the acceptor wanted no TLS
    next(dialler)
    dialler.send(bytes(sent[: len(GREETING)]))
    answer = dialler.send(bytes(sent[len(GREETING) :]))
    assert isinstance(next(acceptor), StartTLS)
    assert acceptor.send(b"") == len(answer) > HELLO_BYTES
    assert acceptor.send(answer) == REFUSED


def test_handshake_challenges_differ_each_time():
    assert next(accept(SECRET, 1, 4)) != next(accept(SECRET, 1, 4))
