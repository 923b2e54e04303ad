"""The test bed itself: which MPI a rank loads, what comes back, and what the watchdog does."""

import time
from pathlib import Path

import jobs


def test_ranks_load_the_mpi_that_they_are_started_by(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            from mpi4py import MPI
            return [MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, MPI.Get_library_version().split()[0]]
        """,
        3,
    )
    library = {"mpich": "MPICH", "openmpi": "Open"}[mpi.name]
    assert outcomes == [{"result": [rank, 3, library]} for rank in range(3)]


def test_watchdog_ends_ranks_that_hang(mpi):
    with mpi.job("def main(rank, size):\n    from mpi4py import MPI\n    time.sleep(600)\n", 2) as job:
        wait_until(lambda: len(job.pids()) == 2)
        pids = job.pids()
        outcomes = job.wait(0.1)
        assert [outcome["error"] for outcome in outcomes] == [jobs.HUNG] * 2
        wait_until(lambda: not any(map(is_alive, pids)))


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
