"""The harness itself: which MPI a rank loads, what it reports, and what the watchdog does."""

import time

import jobs
import pytest
from mpiexec import WITH_ULFM, is_alive


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


@pytest.fixture
def ulfm():
    if not WITH_ULFM.python.exists():
        pytest.skip("no openmpi in this environment; `make test` installs it")
    return WITH_ULFM


ONE_DIES = """
def main(rank, size):
    import atexit
    from mpi4py import MPI
    if rank == 1:
        die()
    {rest}
"""


def test_watchdog_tells_a_rank_that_died_from_one_that_hangs(ulfm):
    with ulfm.job(ONE_DIES.format(rest="time.sleep(600)"), 2) as job:
        wait_until(lambda: len(job.pids()) == 2 and job.has_died(1))
        assert [outcome["error"] for outcome in job.wait(0.1)] == [jobs.HUNG, jobs.DIED]


def test_job_that_does_not_end_is_no_success_although_a_rank_died(ulfm):
    with ulfm.job(ONE_DIES.format(rest="atexit.register(time.sleep, 600)"), 2) as job:
        wait_until(lambda: job.has_died(1) and (job.folder / jobs.OUTCOME.format(rank=0)).exists())
        with pytest.raises(AssertionError, match=r"the program ended on every rank, and the job did not"):
            job.wait(0.1)


def test_rank_that_has_no_result_says_how_it_ended(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            if rank == 1:
                print("I am rank 1 and I leave")
                sys.stdout.flush()
                os._exit(3)
            raise ZeroDivisionError("on purpose")
        """,
        2,
    )
    with pytest.raises(
        AssertionError, match=r"rank 0 has no 'result'; it ended with ZeroDivisionError: on purpose"
    ):
        outcomes[0]["result"]
    with pytest.raises(
        AssertionError, match=r"(?s)exit code 3 of mpiexec.*it printed: I am rank 1 and I leave"
    ):
        outcomes[1]["result"]


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
