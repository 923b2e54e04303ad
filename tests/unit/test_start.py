"""init(): what the environment says, and what is said where it says nonsense."""

import socket

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.launch.local import free_port

JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SPARSEWIRE_SECRET")
PROTECTION = ("SPARSEWIRE_TLS", "SPARSEWIRE_AUTHENTICATE_FRAMES")
SECRET = "a secret for tests"


@pytest.fixture
def environment(monkeypatch):
    """Set the variables of a job; those not named are unset."""

    def describe(**variables):
        for name in (*JOB, "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE", *PROTECTION):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return describe


def test_init_without_a_job_is_a_group_of_one(environment):
    environment()
    with sw.init() as comm:
        assert (comm.rank, comm.size) == (0, 1)


def test_init_of_a_job_of_one_needs_no_address_and_no_secret(environment):
    environment(RANK="0", WORLD_SIZE="1")
    with sw.init() as comm:
        assert (comm.rank, comm.size) == (0, 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' is not an integer"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT is not set"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            "SPARSEWIRE_SECRET is not set",
        ),
        (
            {
                "RANK": "0",
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "1",
                "SPARSEWIRE_SECRET": "15 bytes, short",
            },
            "the job's secret has 15 bytes, and needs 16 or more: make one with python -c",
        ),
        ({"SPARSEWIRE_TLS": "yes"}, "SPARSEWIRE_TLS='yes' must be 1 or 0"),
    ],
)
def test_init_says_what_is_wrong_with_the_environment(environment, variables, message):
    environment(**variables)
    with pytest.raises(sw.InputError, match=message):
        sw.init(timeout=1)


@pytest.mark.parametrize("tls", ["certificate.pem", 3])
def test_init_says_what_tls_can_be(environment, tls):
    environment()
    with pytest.raises(sw.InputError, match=r"must be True, False or a sparsewire\.TLS"):
        sw.init(tls=tls)


def test_close_may_be_called_twice_even_with_a_thread(environment):
    environment()
    comm = sw.init()
    comm.iallreduce(np.ones(3)).wait()
    comm.close()
    comm.close()


def test_init_says_if_the_port_is_taken(environment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment(
            RANK="0",
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(taken.getsockname()[1]),
            SPARSEWIRE_SECRET=SECRET,
        )
        with pytest.raises(sw.InputError, match=r"cannot listen at 127\.0\.0\.1"):
            sw.init(timeout=1)


def test_init_names_rank_0_if_nobody_listens(environment):
    port = str(free_port())
    environment(RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, SPARSEWIRE_SECRET=SECRET)
    with pytest.raises(sw.CollectiveTimeout, match="rank 0 did not arrive"):
        sw.init(timeout=0.3)


def test_init_says_if_the_master_cannot_be_resolved(environment):
    environment(
        RANK="1",
        WORLD_SIZE="2",
        MASTER_ADDR="no-such-host.invalid",
        MASTER_PORT="1",
        SPARSEWIRE_SECRET=SECRET,
    )
    with pytest.raises(sw.InputError, match=r"no-such-host\.invalid"):
        sw.init(timeout=1)
