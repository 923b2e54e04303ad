"""communicator(): the ranks of a process group, over TCP or MPI, in any group and as often as one likes."""

import os
import signal
import sys
from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist
from ranks import Ranks
from torch.distributed.distributed_c10d import _get_process_group_store

import sparsewire as sw
from sparsewire.torch import transport
from sparsewire.torch.transport import communicator

pytestmark = pytest.mark.torch


@pytest.fixture
def own_ranks():
    """Processes for a test that does them harm."""
    started = Ranks()
    yield started
    started.stop()


def total_of(comm):
    """A sum that names the ranks in its bits."""
    return int(comm.allreduce(np.array([2**comm.rank]))[0])


def meet(group):
    with communicator(group, timeout=30) as comm:
        return comm.rank, comm.size, total_of(comm), comm._driver.kind[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_are_those_of_the_group(ranks, size):
    kind = "tcp" if size > 1 else "local"
    assert ranks.run(meet, size=size) == [(rank, size, 2**size - 1, kind) for rank in range(size)]


def meet_in_default_group(group):
    with communicator() as comm:
        return comm.rank, comm.size, comm.timeout


def test_default_group_is_that_of_all(ranks):
    assert ranks.run(meet_in_default_group) == [(rank, 4, 300.0) for rank in range(4)]


def meet_in_pairs(group):
    """Ranks 3, 1 and 2, 0, in the order in which the groups name them."""
    pairs = [dist.new_group(pair, sort_ranks=False) for pair in ([3, 1], [2, 0])]
    mine = next(pair for pair in pairs if pair is not dist.GroupMember.NON_GROUP_MEMBER)
    with communicator(mine, timeout=30) as comm:
        everybody = comm.allgather(np.array([group.rank()]))
    dist.destroy_process_group(mine)
    return [int(page[0]) for page in everybody]


def test_subgroups_meet_at_the_same_time_in_their_own_order(ranks):
    assert ranks.run(meet_in_pairs) == [[2, 0], [3, 1], [2, 0], [3, 1]]


def meet_twice(group):
    with communicator(group, timeout=30) as one, communicator(group, timeout=30) as other:
        slow = one.iallreduce(np.array([2 ** group.rank()]))
        return total_of(other), int(slow.wait(30)[0]), total_of(one)


def test_two_communicators_of_one_group_are_independent(ranks):
    assert ranks.run(meet_twice, size=3) == [(7, 7, 7)] * 3


def listen_where(group):
    with communicator(group, timeout=30) as comm:
        return comm._driver.transport.address[0]


def keys_of_the_store(group):
    """How many keys the store has after one communicator and after three."""
    counts = []
    for number in (1, 2):
        for _ in range(number):
            communicator(group, timeout=30).close()
        dist.barrier(group)
        counts.append(_get_process_group_store(group).num_keys())
        dist.barrier(group)
    return counts


def test_communicators_leave_no_keys_in_the_store(ranks):
    for once, thrice in ranks.run(keys_of_the_store, size=2):
        assert thrice == once


def test_ranks_of_one_host_listen_on_loopback_alone(ranks):
    assert ranks.run(listen_where, size=3) == ["127.0.0.1"] * 3


def meet_without_rank_1(group):
    if group.rank() == 1:
        return None
    return communicator(group, timeout=0.5)


def test_absent_rank_is_a_time_out(own_ranks):
    for rank, outcome in enumerate(own_ranks.outcomes(meet_without_rank_1, size=3)):
        if rank == 1:
            assert outcome is None
        else:
            assert isinstance(outcome, sw.CollectiveTimeout)
            assert "not all 3 ranks of the process group came within 0.5 s" in str(outcome)


def lose_rank_1(group):
    comm = communicator(group, timeout=30)
    if group.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    total_of(comm)


def test_killed_rank_is_named_by_the_others(own_ranks):
    outcomes = own_ranks.outcomes(lose_rank_1, size=3)
    assert isinstance(outcomes.pop(1), EOFError)
    for outcome in outcomes:
        assert isinstance(outcome, sw.PeerLostError)
        assert "rank 1 is gone" in str(outcome)


# -- TCP or MPI ----------------------------------------------------------------------------------


def meet_where_only_rank_0_has_mpi(group):
    mpi_rank = 0 if group.rank() == 0 else transport.NOT_MPI
    with mock.patch.object(transport, "_mpi_rank", return_value=mpi_rank):
        return meet(group)


def test_ranks_use_mpi_only_if_all_of_them_can(ranks):
    """Where they can, tests/mpi has the test."""
    found = ranks.run(meet_where_only_rank_0_has_mpi, size=2)
    assert found == [(0, 2, 3, "tcp"), (1, 2, 3, "tcp")]


def test_torchrun_that_srun_started_is_no_job_of_mpi(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # importing it would start MPI
    assert transport._mpi_rank() == transport.NOT_MPI


def test_job_of_srun_without_mpi4py_is_no_job_of_mpi(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert transport._mpi_rank() == transport.NOT_MPI


# -- what is refused -----------------------------------------------------------------------------


def test_torch_distributed_has_to_be_initialised():
    with pytest.raises(sw.InputError, match="init_process_group"):
        communicator()


def join_group_of_rank_0(group):
    first = dist.new_group([0])
    if group.rank() > 0:
        communicator(first)


def test_group_without_this_rank_is_refused(ranks):
    outcomes = ranks.outcomes(join_group_of_rank_0)
    assert outcomes.pop(0) is None
    for rank, outcome in enumerate(outcomes, start=1):
        assert isinstance(outcome, sw.InputError)
        assert str(outcome).startswith(f"rank {rank} is no member of the process group")


def join_destroyed_group(group):
    everybody = dist.new_group([*range(group.size())])
    dist.destroy_process_group(everybody)
    communicator(everybody)


def test_destroyed_group_is_refused(ranks):
    for outcome in ranks.outcomes(join_destroyed_group):
        assert isinstance(outcome, sw.InputError)
        assert "was destroyed" in str(outcome)


def join_name_of_backend(group):
    communicator("gloo")


def test_something_that_is_no_group_is_refused(ranks):
    [outcome] = ranks.outcomes(join_name_of_backend, size=1)
    assert isinstance(outcome, sw.InputError)
    assert str(outcome) == "str is no process group of torch.distributed"


# -- where rank 0 listens ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["127.0.1.1", "127.0.0.1", "192.0.2.7", "192.0.2.8"], "on the way to 192.0.2.7"),
        (["192.0.2.1", "127.0.0.1"], "on the way to 192.0.2.1"),
        (["127.0.1.1", "127.0.0.1"], "127.0.1.1"),
        (["::1", "::1"], "::1"),
        (["::1", "2001:db8::7"], "on the way to 2001:db8::7"),
    ],
)
def test_rank_0_listens_where_others_find_it(addresses, expected, monkeypatch):
    """Its own name for itself may be loopback, as where /etc/hosts says 127.0.1.1."""
    monkeypatch.setattr(transport, "_address_towards", lambda host: f"on the way to {host}")
    assert transport._seen_by_others(addresses) == expected
