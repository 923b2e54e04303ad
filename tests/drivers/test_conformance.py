"""Every driver passes the public conformance suite."""

import pytest

from sparsewire.cost import CostFigures
from sparsewire.drivers import local, simulator
from sparsewire.steps import Recv, Send
from sparsewire.testing import DRIVER_CHECKS, RankErrors, check_driver, tcp_ranks
from sparsewire.vector import SparseVector


def local_ranks(make_script, size):
    results, _ = local.run([make_script(rank, size) for rank in range(size)], seed=size)
    return results


def simulated_ranks(make_script, size):
    return simulator.run([make_script(rank, size) for rank in range(size)], CostFigures()).results


DRIVERS = {"local": local_ranks, "simulator": simulated_ranks, "tcp": tcp_ranks}


@pytest.mark.parametrize("check", DRIVER_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("driver", DRIVERS)
def test_driver_keeps_the_contract(driver, check):
    check(DRIVERS[driver])


@pytest.mark.parametrize("seed", range(20))
def test_local_driver_keeps_the_contract_in_any_delivery_order(seed):
    def run_ranks(make_script, size):
        results, _ = local.run([make_script(rank, size) for rank in range(size)], seed)
        return results

    for check in DRIVER_CHECKS:
        if check.__name__ != "check_large_payloads_cross":
            check(run_ranks)


def test_check_driver_refuses_a_driver_that_reorders_messages():
    def reordering(make_script, size):
        return local_ranks(lambda rank, size: _reversed_receives(make_script(rank, size)), size)

    with pytest.raises(AssertionError):
        check_driver(reordering)


def _reversed_receives(script):
    received = None
    try:
        while True:
            steps = script.send(received)
            received = (yield steps)[::-1]
    except StopIteration as end:
        return end.value


def test_check_driver_refuses_a_driver_that_swallows_errors():
    def swallowing(make_script, size):
        try:
            return local_ranks(make_script, size)
        except ZeroDivisionError:
            return [None] * size

    with pytest.raises(AssertionError, match="did not raise"):
        check_driver(swallowing)


def test_tcp_failure_in_one_script_is_raised_by_every_rank():
    def script(rank, size):
        yield [Send((rank + 1) % size, SparseVector.empty(0)), Recv((rank - 1) % size)]
        if rank == 1:
            raise ZeroDivisionError("on purpose")
        yield [Recv(1)]

    with pytest.raises(RankErrors) as caught:
        tcp_ranks(script, 5)
    errors = caught.value.errors
    assert sorted(errors) == [0, 1, 2, 3, 4]
    assert isinstance(errors.pop(1), ZeroDivisionError)
    assert all("rank 1 failed with ZeroDivisionError: on purpose" in str(error) for error in errors.values())


@pytest.mark.parametrize("run_ranks", [local_ranks, simulated_ranks])
def test_deadlock_is_an_error_that_names_who_waits_for_whom(run_ranks):
    def script(rank, size):
        yield [Recv((rank + 1) % size)]

    with pytest.raises(Exception, match=r"nobody sends.*0: \{1\}, 1: \{0\}"):
        run_ranks(script, 2)


@pytest.mark.parametrize("run_ranks", [local_ranks, simulated_ranks])
def test_unread_message_is_an_error_that_names_the_sender(run_ranks):
    def script(rank, size):
        if rank == 1:
            yield [Send(0, SparseVector.empty(0))]

    with pytest.raises(Exception, match=r"unread.*0: \[1\]"):
        run_ranks(script, 2)


def test_local_driver_gives_receivers_read_only_arrays():
    def script(rank, size):
        if rank == 0:
            yield [Send(1, SparseVector.empty(0).as_dense())]
            return True
        [piece] = yield [Recv(0)]
        return piece.values.flags.writeable

    assert local_ranks(script, 2) == [True, False]
