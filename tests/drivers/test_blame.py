"""Who is named: the rank at fault, by all others, and nobody else."""

import itertools
import random

import jobs
import pytest

from sparsewire.drivers.blame import Answer, culprits


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_of_ranks_that_wait_for_each_other_only_the_silent_are_named(size):
    """Every rank waits for some others in one of two collectives; those that are stopped do not answer."""
    rng = random.Random(size)
    for _ in range(2000):
        stopped = set(rng.sample(range(1, size), rng.randint(1, size - 1)))
        answers = {}
        for rank in set(range(size)) - stopped:
            others = [peer for peer in range(size) if peer != rank]
            awaited = set(rng.sample(others, rng.randint(1, len(others))))
            answers[rank] = {rng.choice([6, 7]): Answer(awaited, rng.uniform(0.0, 9.0))}
        [(number, mine)] = answers[0].items()
        named, answer = culprits(0, number, mine, answers)
        assert named
        assert (
            set(named) <= stopped
            or (answer and 0 not in named)
            or all(has_just_come(late, answers) for late in named)
        )


def has_just_come(rank, answers):
    """Has another rank waited for this one for more than twice as long as this one has waited?"""
    [mine] = answers[rank].values()
    return any(
        rank in other.awaited and other.waited > 2 * mine.waited
        for said in answers.values()
        for other in said.values()
    )


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(range(1, 4), 2)])
def test_of_a_broken_connection_its_two_ends_are_named(one, other):
    answers = {rank: {7: Answer({one if rank != one else other}, 9.0)} for rank in range(4)}
    assert culprits(0, 7, answers[0][7], answers) == ([one, other], True)


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_of_a_broken_connection_in_a_ring_its_two_ends_are_named(size):
    """Each rank waits for the one before it, and comes one round further than that one."""
    for stuck, observer in itertools.product(range(size), repeat=2):
        answers = {
            (stuck + further) % size: {7: Answer({(stuck + further - 1) % size}, 9.0, 2 + further)}
            for further in range(size)
        }
        ends = {stuck, (stuck - 1) % size} - {observer}
        assert culprits(observer, 7, answers[observer][7], answers) == (sorted(ends), True)


def test_a_collective_in_flight_that_is_not_overdue_accuses_nobody():
    """Rank 1 is waiting in a later collective for rank 3, which computes and has done nothing wrong."""
    answers = {1: {7: Answer({2}, 9.0), 8: Answer({3}, 1.0)}}
    assert culprits(0, 7, Answer({1}, 9.0), answers) == ([2], False)


@pytest.mark.parametrize("late", [1, 2, 3])
def test_if_all_answer_the_one_that_has_just_come_is_named(late):
    others = {rank: {7: Answer({*range(4)} - {rank}, 9.0)} for rank in range(1, 4)}
    answers = others | {late: {7: Answer({0}, 0.2)}}
    assert culprits(0, 7, Answer({1, 2, 3}, 9.0), answers) == ([late], False)


def test_a_rank_that_was_stopped_itself_names_itself():
    answers = {rank: {7: Answer({*range(4)} - {rank}, 9.0)} for rank in range(1, 4)}
    assert culprits(0, 7, Answer({1, 2, 3}, 0.2), answers) == ([0], False)


# -- real processes ------------------------------------------------------------------------------

STOPPED = """
def main(rank, size):
    comm = sw.init(timeout=30)
    comm.allreduce(np.ones(10), algorithm="dense_ring")
    comm.allreduce(np.ones(10), algorithm="recursive_doubling")
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    outcome = tried(lambda: CALLS(comm, rank))
    return outcome
"""
CALLS = {
    "different time-outs": (
        "CALLS = lambda comm, rank: comm.allreduce(np.ones(10), algorithm='dense_ring', timeout=1 + rank)"
    ),
    "one collective behind": """
def CALLS(comm, rank):
    comm.reduce(np.ones(10), root=1, timeout=2)  # leaves send, and are in the next one at once
    comm.allreduce(np.ones(10), algorithm="recursive_doubling", timeout=1 + 0.5 * rank)
""",
    "in flight": """
def CALLS(comm, rank):
    requests = [comm.iallreduce(np.ones(10), algorithm="dense_ring", timeout=1 + rank % 2) for _ in range(4)]
    for request in requests:
        request.wait(20)
""",
}


@pytest.mark.parametrize("victim", [0, 2, 3])
@pytest.mark.parametrize("calls", CALLS)
def test_a_stopped_rank_is_named_by_all_others(calls, victim):
    size = 4
    with jobs.job(size) as job:
        for rank in range(size):
            job.start(rank, f"VICTIM = {victim}\n{CALLS[calls]}\n{STOPPED}")
        others = [process for rank, process in job.processes.items() if rank != victim]
        assert all(process.has_ended(within_s=20) for process in others)
        outcomes = job.wait(0)
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            failed = outcome["result"]
            assert failed["error"] == "CollectiveTimeout", outcomes
            assert failed["message"].startswith(f"rank {victim} did not arrive"), outcomes


# Rank 3 dies.  The others raise and leave at once; rank 2 comes later, and waits for those that have left.
LEAVE = """
def main(rank, size):
    comm = sw.init(timeout=20)
    for algorithm in ("dense_ring", "recursive_doubling", "allgather_sum"):
        comm.allreduce(np.ones(10), algorithm=algorithm)
    if rank == 3:
        die()
    if rank == 2:
        wait_for("outcome-0.json", "outcome-1.json")
        time.sleep(0.2)
    comm.allreduce(np.ones(10), algorithm=ALGORITHM)
"""


@pytest.mark.parametrize("algorithm", ["dense_ring", "recursive_doubling", "allgather_sum"])
def test_ranks_that_leave_because_of_a_lost_one_are_not_named(algorithm):
    outcomes = jobs.run(f"ALGORITHM = {algorithm!r}\n{LEAVE}", 4, 40)
    assert outcomes.pop()["error"] == jobs.DIED
    for outcome in outcomes:
        assert outcome["error"] == "PeerLostError", outcomes
        assert "rank 3 is gone" in outcome["message"], outcomes


@pytest.mark.parametrize("size", [3, 5])
def test_ranks_that_leave_because_of_bad_input_are_not_named(size):
    program = """
    def main(rank, size):
        comm = sw.init(timeout=20)
        comm.allreduce(np.ones(10), algorithm="allgather_sum")
        if rank == 2:
            wait_for("outcome-0.json", "outcome-1.json")
            time.sleep(0.2)
        comm.allreduce("text" if rank == 0 else np.ones(10), algorithm="allgather_sum")
    """
    for outcome in jobs.run(program, size, 40):
        assert outcome["error"] == "InputError"
        assert "rank 0: str cannot be summed" in outcome["message"]
