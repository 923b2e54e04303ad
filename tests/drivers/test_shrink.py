"""Survivors go on in a group of their own: real processes, which die, stop and come late."""

import os
import signal
import time

import jobs
import pytest

# Sums until it breaks, then goes on with those who are left; says what the new group is and sums.
GO_ON = """
def sum_until_it_breaks(comm):
    x = np.ones(200_000, "float32")
    while True:
        comm.allreduce(x)

def go_on(comm, timeout=20):
    error = tried(lambda: sum_until_it_breaks(comm))
    assert "TransportError" in error["kinds"], error
    return comm.shrink(timeout=timeout)

def facts(comm):
    total = comm.allreduce(np.full(3, 1.0 + comm.rank))
    return [comm.rank, comm.size, list(comm.survivors), total.tolist()]
"""


def assert_group(outcomes, survivors):
    """The survivors, and nobody else, have the group of all of them."""
    total = float(sum(range(1, len(survivors) + 1)))
    for place, rank in enumerate(survivors):
        assert outcomes[rank]["result"] == [place, len(survivors), list(survivors), [total] * 3], outcomes


@pytest.mark.parametrize(
    ("size", "dead"), [(4, [2]), (4, [0]), (5, [0, 3]), (4, [1, 2, 3]), (2, [0]), (2, [1])]
)
def test_ranks_that_are_left_sum_again(size, dead):
    outcomes = jobs.run(
        f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=60)
    comm.barrier()
    if rank in {dead}:
        after(0.3, die)
    return facts(go_on(comm))
""",
        size,
    )
    assert_group(outcomes, [rank for rank in range(size) if rank not in dead])


def test_a_group_whose_call_timed_out_goes_on_with_the_late_rank():
    outcomes = jobs.run(
        f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=30)
    comm.timeout = 1
    if rank == 1:
        time.sleep(3)
    error = tried(comm.barrier)
    assert "TransportError" in error["kinds"], error
    return facts(comm.shrink(timeout=20))
""",
        3,
    )
    assert_group(outcomes, [0, 1, 2])


def test_a_rank_dies_while_the_others_agree():
    outcomes = jobs.run(
        f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=60)
    comm.barrier()
    if rank == 1:
        after(0.3, die)
    error = tried(lambda: sum_until_it_breaks(comm))
    if rank == 3:
        die()
    if rank == 2:
        time.sleep(0.5)
    return facts(comm.shrink(timeout=20))
""",
        5,
    )
    assert_group(outcomes, [0, 2, 4])


def test_a_rank_dies_while_the_new_group_is_formed():
    outcomes = jobs.run(
        f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=60)
    comm.barrier()
    if rank == 1:
        after(0.3, die)
    if rank == 3:  # it has agreed, and does not come to the first collective of the new group
        sw.Communicator.of = lambda *_: die()
    return facts(go_on(comm))
""",
        5,
    )
    assert_group(outcomes, [0, 2, 4])


def test_views_that_differ_are_united():
    """Every rank is told of another death; nobody knows of all of them at first."""
    outcomes = jobs.run(
        f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=60)
    comm.barrier()
    if rank in (1, 4):
        after(0.2 + 0.02 * rank, die)
    error = tried(lambda: sum_until_it_breaks(comm))
    time.sleep(0.3 * (rank % 3))
    if rank == 2:
        die()
    return facts(comm.shrink(timeout=20))
""",
        7,
    )
    survivors = [0, 3, 5, 6]
    assert_group(outcomes, survivors)


def test_a_stopped_rank_is_left_out_and_told_when_it_continues():
    program = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=30)
    comm.timeout = 3
    comm.barrier()
    new = go_on(comm, timeout=4)
    said = facts(new)
    open(in_folder(f"on-{{rank}}"), "w").close()
    while new.allreduce(np.array([os.path.exists(in_folder("told"))], "int32")) < 2:
        pass  # the latecomer is answered in these calls
    return said
"""
    late = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=30)
    comm.timeout = 3
    comm.barrier()
    after(0.2, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    error = tried(lambda: sum_until_it_breaks(comm))
    try:
        comm.shrink(timeout=20)
    finally:
        open(in_folder("told"), "w").close()
"""
    with jobs.job(3) as job:
        for rank in (0, 2):
            job.start(rank, program)
        job.start(1, late)
        end = time.monotonic() + 60
        while not all((job.folder / f"on-{rank}").exists() for rank in (0, 2)):
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(job.processes[1]._pid, signal.SIGCONT)
        outcomes = job.wait()
    assert outcomes[1]["error"] == "PeerLostError", outcomes
    assert "the others went on without rank 1" in outcomes[1]["message"]
    assert_group(outcomes, [0, 2])


def test_a_stopped_rank_that_continues_in_time_is_not_left_out():
    program = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=60)
    comm.barrier()
    if rank == 1:
        after(0.3, die)
    error = tried(lambda: sum_until_it_breaks(comm))
    if rank == 2:
        open(in_folder("stopped"), "w").close()
        os.kill(os.getpid(), signal.SIGSTOP)
    return facts(comm.shrink(timeout=30))
"""
    with jobs.job(4) as job:
        for rank in range(4):
            job.start(rank, program)
        end = time.monotonic() + 60
        while not (job.folder / "stopped").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(1.0)
        os.kill(job.processes[2]._pid, signal.SIGCONT)
        outcomes = job.wait()
    assert_group(outcomes, [0, 2, 3])


def test_fewer_than_half_do_not_go_on_without_silent_ranks():
    outcomes = jobs.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=30)
            comm.timeout = 2
            comm.barrier()
            if rank < 2:
                time.sleep(8)
                return "computed"
            error = tried(comm.barrier)
            comm.shrink(timeout=2)
        """,
        4,
    )
    for rank in (2, 3):
        assert outcomes[rank]["error"] == "TransportError", outcomes
        assert "2 of 4 ranks are left, and rank 0, 1 is silent" in outcomes[rank]["message"]


def test_a_group_that_was_split_shrinks():
    outcomes = jobs.run(
        f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=60)
    half = comm.split(rank % 2)
    half.barrier()
    if rank == 2:
        after(0.3, die)
    if rank % 2:
        return half.allreduce(np.ones(1)).tolist()
    return facts(go_on(half))
""",
        6,
    )
    assert [outcomes[rank]["result"] for rank in (1, 3, 5)] == [[3.0]] * 3
    assert [outcomes[rank]["result"] for rank in (0, 4)] == [
        [0, 2, [0, 2], [3.0] * 3],
        [1, 2, [0, 2], [3.0] * 3],
    ]


def test_it_shrinks_again_and_again():
    outcomes = jobs.run(
        f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=60)
    me = rank
    for victim in (0, 3, 1, 4):
        comm.barrier()
        if me == victim:
            after(0.2, die)
        comm = go_on(comm)
    return facts(comm)
""",
        6,
    )
    assert [outcomes[rank]["result"][:2] for rank in (2, 5)] == [[0, 2], [1, 2]]
    assert outcomes[5]["result"][3] == [3.0] * 3


def test_what_is_in_flight_fails_and_the_old_communicator_is_closed():
    outcomes = jobs.run(
        f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=60)
    comm.barrier()
    time.sleep(0.5)  # until all have left the barrier
    if rank == 1:
        die()
    requests = [comm.iallreduce(np.ones(10)) for _ in range(3)]
    new = comm.shrink(timeout=20)
    errors = [tried(request.wait)["kinds"] for request in requests]
    closed = tried(comm.barrier)["error"]
    again = tried(comm.shrink)["error"]
    comm.close()
    return [all("TransportError" in kinds for kinds in errors), closed, again, *facts(new)]
""",
        3,
    )
    for place, rank in enumerate((0, 2)):
        said = [True, "TransportError", "TransportError", place, 2, [0, 2], [3.0] * 3]
        assert outcomes[rank]["result"] == said


def test_aggregators_keep_their_role():
    program = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(aggregators=2, timeout=60)
    if comm.is_aggregator:
        if rank == 4:
            after(0.3, die)
        assert "TransportError" in tried(comm.serve)["kinds"]
        new = comm.shrink(timeout=20)
        new.serve()
        return [new.rank, new.size, new.aggregators]
    comm.barrier()
    if rank == 1:
        after(0.3, die)
    error = tried(lambda: [comm.allreduce(np.ones(1000), algorithm="omnireduce") for _ in range(10**6)])
    new = comm.shrink(timeout=20)
    total = new.allreduce(np.ones(1000), algorithm="omnireduce")
    return [new.rank, new.size, new.aggregators, float(total.sum())]
"""
    outcomes = jobs.run(program, 5)
    assert [outcomes[rank]["result"] for rank in (0, 2)] == [[0, 2, 1, 2000.0], [1, 2, 1, 2000.0]]
    assert outcomes[3]["result"] == [2, 2, 1]
