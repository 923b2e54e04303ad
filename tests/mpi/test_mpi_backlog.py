"""A rank that runs ahead under MPI: what waits for the others is bounded, in the engine and in MPI itself."""

import pytest

# Rank 2 is slow at first.  While the root waits for it, rank 1 runs ahead: it only sends.
PROGRAM = """
def peak():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

def main(rank, size):
    comm = sw.init(timeout=200)
    x = np.ones(LENGTH)
    for _ in range(3):
        comm.reduce(x)
    before = peak()
    if rank == 2:
        time.sleep(4)
    for _ in range(CALLS):
        total = comm.reduce(x)
    return [peak() - before, rank != 0 or float(total[0])]
"""


@pytest.mark.parametrize(("length", "calls", "most_mb"), [(1_000_000, 60, 64 + 100), (2_000, 6_000, 64 + 16)])
def test_memory_is_bounded_while_one_rank_is_slow(mpi, length, calls, most_mb):
    outcomes = mpi.run(f"LENGTH, CALLS = {length}, {calls}\n{PROGRAM}", 3, 300)
    results = [outcome["result"] for outcome in outcomes]
    assert results[0][1] == 3.0
    assert max(grown for grown, _ in results) < most_mb, results
