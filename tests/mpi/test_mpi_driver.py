"""The MPI driver under both MPIs: the conformance suite, every algorithm with exact data, large messages."""

import textwrap
from pathlib import Path

import pytest

RANKS = 5
# One job has groups of every size: starting a job takes longer than most of what is tested in it.
OF_EVERY_SIZE = """
def of_every_size(check):
    "What check(group, size) returns to this rank in the groups that it is in, by the size of the group."
    from mpi4py import MPI
    world, seen = MPI.COMM_WORLD, {}
    for size in range(world.size, world.rank, -1):
        seen[size] = check(world.Create_group(world.group.Incl(range(size))), size)
    if world.rank == 0:
        open(in_folder("ended"), "w").close()
    wait_for("ended")  # asleep: MPI would keep a core busy
    return seen
"""


def by_size(outcomes):
    """The results of the ranks of each group, in rank order."""
    return {
        size: [outcome["result"][str(size)] for outcome in outcomes[:size]] for size in range(1, RANKS + 1)
    }


def test_driver_keeps_the_contract(mpi):
    program = """
        def main(rank, size):
            from sparsewire.testing import check_driver, mpi_ranks
            return of_every_size(lambda group, size: check_driver(mpi_ranks(group), [size]))
        """
    outcomes = mpi.run(OF_EVERY_SIZE + textwrap.dedent(program), RANKS)
    assert by_size(outcomes) == {size: [None] * size for size in range(1, RANKS + 1)}


def test_ranks_of_a_failed_check_all_raise_the_same(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            from mpi4py import MPI
            from sparsewire.testing import mpi_ranks
            def script(rank, size):
                yield []
                if rank == 1:
                    raise ZeroDivisionError("on purpose")
                return rank
            run_ranks = mpi_ranks(MPI.COMM_WORLD)
            return [tried(lambda: run_ranks(script, count)) for count in (1, 2, 4)]
        """,
        3,
    )
    for outcome in outcomes:
        alone, failed, too_many = outcome["result"]
        assert alone == {"result": [0]}
        assert failed["error"] == "RankErrors"
        assert failed["message"] == "rank 1: ZeroDivisionError: on purpose"
        assert too_many["error"] == "InputError"


# Rank r has size * 2**r, with changing signs: every sum, mean and extreme is a small integer.
EVERY_ALGORITHM = """
from sparsewire.testing import dense
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype

SUPPORTS = {
    "empty": lambda rank, size: range(0),
    "full": lambda rank, size: range(41),
    "identical": lambda rank, size: range(3, 41, 5),
    "disjoint": lambda rank, size: range(rank, 41, size),
    "mixed": lambda rank, size: range(rank, 41, 2 + 3 * rank),
}
ORACLES = {
    "sum": lambda rows: rows.sum(axis=0),
    "avg": lambda rows: rows.sum(axis=0) // len(rows),
    "max": lambda rows: rows.max(axis=0),
    "min": lambda rows: rows.min(axis=0),
}

def row(rank, size, support):
    array = np.zeros(41, np.int64)
    where = np.array(SUPPORTS[support](rank, size), np.int64)
    array[where] = size * 2**rank * (-1) ** (where + rank)
    return array, where

def cases():
    "Every algorithm x op x dtype, and every algorithm meets every support."
    for i, dtype in enumerate(VALUE_DTYPES):
        for j, op in enumerate(ORACLES):
            for k, algorithm in enumerate(["auto", *sw.ALGORITHMS]):
                if not (op == "avg" and "int" in dtype):
                    yield algorithm, op, dtype, [*SUPPORTS][(i + j + k) % len(SUPPORTS)]

def check(group, size):
    import hashlib
    comm = sw.init(comm=group, timeout=60)
    rank, seen, wrong = comm.rank, hashlib.sha256(), []
    for algorithm, op, dtype, support in cases():
        rows = np.array([row(r, size, support)[0] for r in range(size)])
        mine, where = row(rank, size, support)
        vector = SparseVector(41, where, mine[where].astype(value_dtype(dtype)))
        total = comm.allreduce(vector, algorithm=algorithm, op=op)
        seen.update(digest(total).encode())
        if not np.array_equal(dense(total), ORACLES[op](rows)):
            wrong.append([algorithm, op, dtype, support])
    return [seen.hexdigest(), wrong]

def main(rank, size):
    return of_every_size(check)
"""


def test_every_algorithm_op_and_dtype_gives_the_exact_result_and_the_same_bits_everywhere(mpi):
    for size, results in by_size(mpi.run(OF_EVERY_SIZE + EVERY_ALGORITHM, RANKS)).items():
        bits, wrong = zip(*results, strict=True)
        assert wrong == ([],) * size, size
        assert len(set(bits)) == 1, size


def test_new_communicator_hears_nothing_of_one_that_failed_and_was_closed(mpi):
    """MPI may give the new one the old one's identity, while messages for the old one wait."""
    outcomes = mpi.run(
        """
        def main(rank, size):
            seen = []
            for turn in range(20):
                with sw.init(timeout=30) as comm:
                    comm.allreduce(np.ones(9))
                    length = 9 if rank == turn % size else 10
                    failed = tried(lambda: comm.allreduce(np.ones(length), algorithm="allgather_sum"))
                    seen.append(failed.get("error"))
            return seen
        """,
        3,
    )
    assert outcomes == [{"result": ["CallMismatchError"] * 20}] * 3


def available_gib():
    lines = Path("/proc/meminfo").read_text().splitlines()
    [kib] = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib / 2**20


@pytest.mark.slow
@pytest.mark.skipif(
    available_gib() < 14, reason="two ranks with 2 GiB, and copies of it, need 14 GiB of memory"
)
def test_messages_above_two_gib_arrive(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=100)
            mine = None
            if rank == 1:
                values = np.full(2**28 + 3, 5, np.int64)
                values[[0, 2**28 - 1, -1]] = 1, 2, 3
                mine = sw.SparseVector.from_dense(values)
            got = comm.broadcast(mine, root=1).values
            ends = [int(got[0]), int(got[2**28 - 1]), int(got[-1])]
            return [len(got), ends, int(got.sum())]
        """,
        2,
        seconds=120,
    )
    length = 2**28 + 3
    assert outcomes == [{"result": [length, [1, 2, 3], 5 * (length - 3) + 6]}] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_rounded_sums_have_the_same_bits_on_every_rank(mpi, size):
    outcomes = mpi.run(
        """
        from dataclasses import replace

        def main(rank, size):
            comm = sw.init()
            chance = np.random.default_rng(rank)
            indices = np.flatnonzero(chance.random(40_000) < 0.05)
            x = sw.SparseVector(40_000, indices, chance.standard_normal(len(indices)))
            told = []
            for price in (0.0, 1.0):  # coded indices, plain ones
                comm.network = replace(comm.network, seconds_per_index=price)
                for precision in (None, "float16", "bfloat16", "qsgd2", "qsgd4", "qsgd8"):
                    for algorithm in ("allgather_sum", "split_allgather", "balanced"):
                        total = comm.allreduce(x, algorithm=algorithm, precision=precision)
                        told.append(digest(total))
            return told
        """,
        size,
    )
    first, *others = (outcome["result"] for outcome in outcomes)
    assert all(other == first for other in others)
    coded, plain = first[:18], first[18:]
    assert coded[:3] == plain[:3]  # what is exact does not depend on how it travels
