"""A rank that ends outside a call: those that wait for it learn at once why, and nobody else is disturbed."""

import re

import jobs
import pytest

ENDS = {
    "raise ValueError('no data')": "rank 2 is gone: it ended with ValueError: no data",
    "sys.exit(3)": "rank 2 is gone: it exited",
}

# Rank 2 runs outside ``main``, so that its error ends the program.
PROGRAM = """
comm = sw.init(timeout=60)
for algorithm in ("dense_ring", "recursive_doubling"):
    comm.allreduce(np.ones(10), algorithm=algorithm)
if rank == 2:
    END

def main(rank, size):
    since = time.time()
    outcome = tried(lambda: CALL)
    return [outcome, time.time() - since]
"""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("call", ["comm.allreduce(np.ones(10))", "comm.iallreduce(np.ones(10)).wait(30)"])
def test_why_a_rank_ended_is_raised_by_all_that_wait_for_it(end, call):
    program = PROGRAM.replace("END", end).replace("CALL", call)
    outcomes = jobs.run(program, 4, 40)
    assert outcomes.pop(2)["error"] == jobs.DIED
    for outcome in outcomes:
        failed, seconds = outcome["result"]
        assert failed["error"] == "PeerLostError"
        assert ENDS[end] in failed["message"]
        assert seconds < 10


def test_a_rank_that_joins_says_within_seconds_whom_it_waits_for():
    program = """
    from sparsewire.drivers import waiting
    waiting.FIRST_S = 0.2
    def main(rank, size):
        sw.init(timeout=2)
    """
    with jobs.job(4) as job:
        for rank in (0, 2):
            job.start(rank, program)
        outcomes = job.wait()
        first, second = [(job.folder / f"outcome-{rank}.json.output").read_text() for rank in (0, 2)]
    assert {outcome["error"] for outcome in outcomes} == {"CollectiveTimeout"}
    assert re.search(r"rank 0 has waited \d s for rank 1, 3 to join", first)
    assert re.search(r"rank 2 has waited \d+ s for other ranks to join; rank 0 says which", second)


def test_a_rank_that_joins_says_that_rank_0_does_not_listen():
    program = """
    from sparsewire.drivers import waiting
    waiting.FIRST_S = 0.2
    def main(rank, size):
        sw.init(timeout=1)
    """
    with jobs.job(2) as job:
        job.start(1, program)
        job.wait()
        said = (job.folder / "outcome-1.json.output").read_text()
    assert re.search(rf"rank 1 has waited \d+ s for rank 0 to listen at 127.0.0.1:{job.port}", said)


def test_ranks_that_are_done_leave_in_any_order():
    program = """
    def main(rank, size):
        comm = sw.init(timeout=20)
        sums = [comm.allreduce(np.ones(10), algorithm=name)[0] for name in ("dense_ring", "allgather_sum")]
        pair = comm.split(rank // 2)
        time.sleep(0.2 * (rank // 2))  # while others are at work, the first ones leave
        total = [float(pair.allreduce(np.ones(10))[0]) for _ in range(200)]
        if rank % 2:
            comm.close()
        return set(total) == {2.0}
    """
    assert [outcome["result"] for outcome in jobs.run(program, 4, 40)] == [True] * 4


def test_a_fork_that_exits_says_nothing_for_its_parent():
    program = """
    def main(rank, size):
        comm = sw.init(timeout=20)
        comm.allreduce(np.ones(10))
        if rank == 1:
            pid = os.fork()
            if pid == 0:
                sys.exit()
            os.waitpid(pid, 0)
        return float(comm.allreduce(np.ones(10))[0])
    """
    assert jobs.run(program, 2, 40)[0] == {"result": 2.0}
