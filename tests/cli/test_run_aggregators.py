"""``sparsewire run --aggregators``: more ranks, which the script does not see."""

import signal

import pytest

from sparsewire.errors import InputError
from sparsewire.launch.local import launch

ADD = """
import os, sparsewire as sw, numpy as np
comm = sw.init(timeout=60)
total = comm.allreduce(np.array([0.0, 2.0**comm.rank]), algorithm="omnireduce")
print(comm, os.environ["WORLD_SIZE"], total.tolist())
"""
DIE = """
if comm.rank == 1:
    os.kill(os.getpid(), 9)
comm.allreduce(np.ones(3), algorithm="omnireduce")
"""
KILL_THE_AGGREGATOR = """
launcher = os.getppid()
for child in open(f"/proc/{launcher}/task/{launcher}/children").read().split():
    if open(f"/proc/{child}/cmdline").read().endswith("serve\\0"):
        os.kill(int(child), 9)
comm.allreduce(np.ones(3), algorithm="omnireduce")
"""


def test_the_script_sees_its_workers_and_aggregators_end_with_them(cli, script):
    done = cli("run", "-n", 2, "--aggregators", 2, script(ADD))
    assert done.returncode == 0, done.stderr
    said = "Communicator(rank={0}, size=2, aggregators=2) 2 [0.0, 3.0]"
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] " + said.format(rank) for rank in range(2)]
    assert done.stderr == ""


def test_a_worker_that_dies_ends_the_aggregators_and_gives_the_exit_code(cli, script):
    done = cli("run", "-n", 2, "--aggregators", 1, script(ADD + DIE))
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 was killed by SIGKILL; the other ranks were stopped" in done.stderr


def test_an_aggregator_that_dies_ends_the_job_and_gives_the_exit_code(cli, script):
    done = cli("run", "-n", 1, "--aggregators", 1, script(ADD + KILL_THE_AGGREGATOR))
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 was killed by SIGKILL; the other ranks were stopped" in done.stderr


def test_a_script_without_a_communicator_ends_without_its_aggregators():
    heard = []
    outcome = launch(["true"], 2, aggregators=1, on_line=lambda *said: heard.append(said), grace_s=0.1)
    assert (outcome.code, outcome.rank, heard) == (0, None, [])


def test_a_job_with_less_than_no_aggregators_or_too_few_namespaces_for_them_is_refused():
    with pytest.raises(InputError, match="got 2 and -1 that only aggregate"):
        launch(["true"], 2, aggregators=-1)
    with pytest.raises(InputError, match="3 ranks need 3 namespaces, got 2"):
        launch(["true"], 2, aggregators=1, namespaces=["a", "b"])
