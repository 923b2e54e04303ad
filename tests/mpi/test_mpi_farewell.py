"""A rank that ends outside a call under MPI: the others learn at once why, and MPI_Finalize does not hang."""

import time

import jobs
import pytest

ENDS = {
    "raise ValueError('no data')": "rank 2 is gone: it ended with ValueError: no data",
    "sys.exit(3)": "rank 2 is gone: it exited",
    "comm.close()": "rank 2 is gone: it closed the communicator",
}
PROGRAM = """
comm = sw.init(timeout=60)
comm.barrier()
if rank == 2:
    END

def main(rank, size):
    return tried(lambda: comm.allreduce(np.ones(10))) if rank != 2 else None
"""


@pytest.mark.parametrize("end", ENDS)
def test_why_a_rank_ended_is_raised_by_all_that_wait_for_it(mpi, end):
    since = time.monotonic()
    outcomes = mpi.run(PROGRAM.replace("END", end), 3, seconds=40)
    assert time.monotonic() - since < 30
    assert outcomes.pop().get("error", jobs.DIED) == jobs.DIED
    for outcome in outcomes:
        failed = outcome["result"]
        assert failed["error"] == "PeerLostError"
        assert ENDS[end] in failed["message"]


def test_ranks_that_are_done_leave_in_any_order(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=30)
            pair = comm.split(rank // 2)
            if rank >= 2:
                comm.close()
                return pair.allreduce(np.ones(10)).tolist()[0]
            time.sleep(0.5)
            return [pair.allreduce(np.ones(10)).tolist()[0] for _ in range(100)][-1]
        """,
        4,
        seconds=40,
    )
    assert [outcome["result"] for outcome in outcomes] == [2.0] * 4
