"""Who is named: the rank at fault, by all others, and nobody else."""

import itertools
import random
from collections import deque

import jobs
import numpy as np
import pytest

from sparsewire import SparseVector
from sparsewire.algorithms import ALGORITHMS, PLAIN, TOPK_ALGORITHMS, Context
from sparsewire.cost import CostFigures
from sparsewire.drivers.blame import Answer, culprits
from sparsewire.drivers.execution import Execution

NOTHING = (0,) * 8  # messages to, or from, each rank


def answer(awaited, waited=9.0, sent=NOTHING, received=NOTHING):
    return Answer(awaited, waited, sent, received)


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
            answers[rank] = {rng.choice([6, 7]): answer(awaited, rng.uniform(0.0, 9.0))}
        [(number, mine)] = answers[0].items()
        named, answered = culprits(0, number, mine, answers)
        assert named
        assert (
            set(named) <= stopped
            or (answered and 0 not in named)
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


# Messages are so dear that these gather along a tree.
TREE = Context(figures=CostFigures(overhead=1.0))
ALONG_A_TREE = {
    f"{name} along a tree": name for name in ("allgather_sum", "split_allgather", "balanced", "ok_topk")
}


def script(name, rank, size):
    x = SparseVector.from_dense(np.arange(40.0) % 7 * (np.arange(40) % (rank + 2) == 0))
    context = TREE if name in ALONG_A_TREE else PLAIN
    name = ALONG_A_TREE.get(name, name)
    if name in TOPK_ALGORITHMS:
        return TOPK_ALGORITHMS[name].run(rank, size, x, 5, context=context)
    return ALGORITHMS[name].run(rank, size, x.as_dense() if "dense" in name else x, context)


def stuck(names, size, lossy):
    """What every rank says when collectives 7, 8, ... are in flight at once and messages get lost.

    ``lossy`` has the number of messages that still arrive on each connection that is about to break.  A rank
    that has ended all of its collectives waits for all others in the next one.
    """
    sent = [[0] * size for _ in range(size)]
    received = [[0] * size for _ in range(size)]
    running = {
        (rank, place): Execution(script(name, rank, size))
        for rank in range(size)
        for place, name in enumerate(names, start=7)
    }
    queue = deque()

    def advance(rank, place):
        while sends := running[rank, place].advance():
            for send in sends:
                sent[rank][send.peer] += 1
                queue.append((rank, send.peer, place, send.payload))

    for rank, place in running:
        advance(rank, place)
    while queue:
        source, target, place, payload = queue.popleft()
        if (source, target) in lossy and received[target][source] >= lossy[source, target]:
            continue
        received[target][source] += 1
        running[target, place].deliver(source, payload)
        advance(target, place)

    def said(rank):
        everybody = {*range(size)} - {rank}
        waits = {
            place: one.waiting_for or everybody
            for (owner, place), one in running.items()
            if owner == rank and not one.done
        }
        waits = waits or {7 + len(names): everybody}
        return {
            place: Answer(awaited, 9.0, tuple(sent[rank]), tuple(received[rank]))
            for place, awaited in waits.items()
        }

    return {rank: said(rank) for rank in range(size)}


@pytest.mark.parametrize("size", [3, 4, 5, 6])
@pytest.mark.parametrize("name", [*ALGORITHMS, *TOPK_ALGORITHMS, *ALONG_A_TREE])
def test_of_a_broken_connection_its_two_ends_are_named_by_all_whatever_the_algorithm(name, size):
    rng = random.Random(f"{name} {size}")
    waited = 0
    for one, other in itertools.permutations(range(size), 2):
        for both_ways, others in itertools.product([False, True], [[], [rng.choice([*ALGORITHMS])]]):
            arrive = rng.choice([0, 0, 1, 2])
            lossy = {(one, other): arrive} | ({(other, one): arrive} if both_ways else {})
            answers = stuck([name, *others], size, lossy)
            if all(7 + len(others) < min(said) for said in answers.values()):
                continue  # nobody needed what was lost
            for observer, said in answers.items():
                hears = {
                    rank: answers[rank]
                    for rank in answers
                    if rank != observer and {rank, observer} != {one, other}
                }
                for number, mine in said.items():
                    named, _ = culprits(observer, number, mine, hears)
                    assert named
                    assert {*named} <= {one, other}, (observer, number, answers)
                    waited += 1
    assert waited


def test_a_collective_in_flight_that_is_not_overdue_accuses_nobody():
    """Rank 1 is waiting in a later collective for rank 3, which computes and has done nothing wrong."""
    answers = {1: {7: answer({2}), 8: answer({3}, 1.0)}}
    assert culprits(0, 7, answer({1}), answers) == ([2], False)


@pytest.mark.parametrize("late", [1, 2, 3])
def test_if_all_answer_the_one_that_has_just_come_is_named(late):
    others = {rank: {7: answer({*range(4)} - {rank})} for rank in range(1, 4)}
    answers = others | {late: {7: answer({0}, 0.2)}}
    assert culprits(0, 7, answer({1, 2, 3}), answers) == ([late], False)


def test_a_rank_that_was_stopped_itself_names_itself():
    answers = {rank: {7: answer({*range(4)} - {rank})} for rank in range(1, 4)}
    assert culprits(0, 7, answer({1, 2, 3}, 0.2), answers) == ([0], False)


def test_a_rank_that_has_ended_the_collective_and_begun_another_is_not_late():
    """Rank 0 takes messages from anybody; rank 1 has given all of its own, and rank 2 has not come."""
    answers = {1: {8: answer({0}, 0.1, sent=(4, 0, 0))}}
    mine = answer({1, 2}, received=(0, 4, 0))
    assert culprits(0, 7, mine, answers) == ([2], False)


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
