"""The largest entries of a sum in real processes: blocking, in flight, and as whole steps."""

import jobs
import pytest

PROGRAM = """
def mine(rank, step, length=20_000):
    return np.random.default_rng([rank, step]).standard_normal(length).astype("float32")

def main(rank, size):
    comm = sw.init(timeout=30)
    told = {}
    for algorithm in [*sw.TOPK_ALGORITHMS, "auto"]:
        options = {"algorithm": algorithm}
        blocking = comm.allreduce_topk(mine(rank, 0), 200, **options)
        requests = [comm.iallreduce_topk(mine(rank, step), 200, **options) for step in range(3)]
        waited = [request.wait(20) for request in requests]
        given = sum(mine(peer, 0).astype("float64") for peer in range(size))
        left = comm.allreduce(blocking.left, algorithm="split_allgather").to_dense()
        told[algorithm] = [
            digest(blocking.total) == digest(waited[0].total),
            [digest(one.total) for one in waited],
            blocking.total.nnz,
            float(np.abs(blocking.total.to_dense() + left - given).max()),
        ]
    for method in sw.METHODS:
        sync = sw.Sync(comm, method, 0.01)
        state = sync.init(20_000)
        for step in range(3):
            mean, state = sync.step(mine(rank, step), state)
        told[method + " steps"] = digest(mean)
    return told
"""


def check(outcomes):
    results = [outcome["result"] for outcome in outcomes]
    assert all(result == results[0] for result in results[1:]), "ranks differ"
    for name in ("ok_topk", "gtopk", "spardl", "auto"):
        same, _, count, error = results[0][name]
        assert same
        assert 150 < count <= 200 if name in ("spardl", "auto") else count == 200
        assert error < 1e-5


@pytest.mark.parametrize("size", [1, 3])
def test_the_largest_entries_of_a_sum_over_tcp(size):
    check(jobs.run(PROGRAM, size))
