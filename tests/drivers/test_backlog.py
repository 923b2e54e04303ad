"""Ranks that run ahead: what waits for the others is bounded, and they go on together."""

import jobs
import pytest

# Rank 2 is slow.  While the root waits for it, rank 1 runs ahead: it only sends, so nothing else keeps it.
STRAGGLER = """
def peak():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

def main(rank, size):
    comm = sw.init(timeout=60)
    x = np.ones(1_000_000)  # 8 MB
    comm.reduce(x)
    before = peak()
    for _ in range(60):
        if rank == 2:
            time.sleep(0.05)
        total = comm.reduce(x)
    return [peak() - before, rank != 0 or float(total[0])]
"""
MOST_MB = 64 + 100  # the backlog, and messages that are being received or summed


def test_memory_is_bounded_while_one_rank_is_slow():
    outcomes = [outcome["result"] for outcome in jobs.run(STRAGGLER, 3, 100)]
    assert outcomes[0][1] == 3.0
    assert max(grown for grown, _ in outcomes) < MOST_MB, outcomes


RANDOM = """
from sparsewire.drivers import backlog
backlog.LIMIT_BYTES = 2_000

def main(rank, size):
    import random
    rng, own = random.Random(SEED), random.Random(rank)
    comm = sw.init(timeout=40)
    algorithms = ["auto", *sw.ALGORITHMS]
    right = True
    for _ in range(12):
        flight = []
        for _ in range(rng.randint(1, 12)):
            kind, n, root = rng.choice("aaabrg"), rng.choice([1, 500, 30_000]), rng.randrange(size)
            algorithm = rng.choice(algorithms)
            x = np.full(n, 2.0**rank)
            if kind == "a":
                flight.append((comm.iallreduce(x, algorithm=algorithm), 2.0**size - 1))
            elif kind == "b":
                flight.append((comm.ibroadcast(x, root=root), 2.0**root))
            elif kind == "g":
                flight.append((comm.iallgather(x), None))
            else:
                got = comm.reduce(x, root=root)
                right &= rank != root or bool((got == 2.0**size - 1).all())
            if own.random() < 0.2:
                time.sleep(0.01)
        own.shuffle(flight)
        for request, expected in flight:
            got = request.wait(40)
            right &= expected is None or bool((got == expected).all())
    return right
"""


@pytest.mark.parametrize("seed", range(4))
def test_many_in_flight_end_with_hardly_any_room_for_what_comes_early(seed):
    size = 2 + seed
    outcomes = jobs.run(f"SEED = {seed}\n{RANDOM}", size, 60)
    assert [outcome["result"] for outcome in outcomes] == [True] * size


def test_the_death_of_a_rank_that_ran_ahead_is_noticed_when_it_is_needed():
    program = """
    from sparsewire.drivers import backlog
    backlog.LIMIT_BYTES = 100_000
    def main(rank, size):
        comm = sw.init(timeout=30)
        x = np.ones(10_000)
        for _ in range(20):
            if rank == 1:
                time.sleep(0.02)
            comm.reduce(x)
        if rank == 2:
            die()
        comm.allreduce(x, algorithm="dense_ring")
    """
    outcomes = jobs.run(program, 3, 40)
    assert outcomes.pop()["error"] == jobs.DIED
    for outcome in outcomes:
        assert outcome["error"] == "PeerLostError"
        assert "rank 2 is gone" in outcome["message"]


def test_an_error_behind_what_is_not_received_yet_arrives():
    program = """
    from sparsewire.drivers import backlog
    backlog.LIMIT_BYTES = 100_000
    def main(rank, size):
        comm = sw.init(timeout=30)
        x = np.ones(10_000)
        for step in range(10):
            if rank == 1:
                time.sleep(0.02)
            comm.reduce(x)
        return tried(lambda: comm.reduce("text" if rank == 2 else x) if rank else comm.reduce(x))
    """
    failed = [outcome["result"] for outcome in jobs.run(program, 3, 40)]
    assert failed[0]["error"] == failed[2]["error"] == "InputError"


def test_what_came_early_for_a_refused_call_is_dropped():
    """While rank 1 waits for rank 2, it receives what rank 0 sends for the call that rank 1 refuses."""
    program = """
    def main(rank, size):
        comm = sw.init(timeout=30)
        x = np.ones(1000)
        for _ in range(10):
            if rank == 2:
                time.sleep(0.05)
            tried(lambda: comm.reduce(x, root=1))
            tried(lambda: comm.reduce("text" if rank == 1 else x, root=1))
        tried(comm.barrier)
        comm.barrier()
        return len([*comm._driver._backlog])
    """
    assert [outcome["result"] for outcome in jobs.run(program, 3, 40)] == [0, 0, 0]
