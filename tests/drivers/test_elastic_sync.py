"""A training step goes on over a group that has lost a rank, or has grown."""

import jobs
import pytest
from test_shrink import GO_ON


@pytest.mark.parametrize("method", ["ok_topk", "randomk", "topk_allgather"])
def test_sync_keeps_the_survivors_residuals_and_newcomers_begin_at_the_same_step(method):
    program = f"""
{GO_ON}
def law(sync, state, gradient):
    'Residuals before + gradients = residuals after + mean * ranks, over all ranks.'
    before = sync.comm.allreduce(state.compressor.residual + gradient)
    mean, state = sync.step(gradient, state)
    after = sync.comm.allreduce(state.compressor.residual)
    return bool(np.allclose(before, after + mean.to_dense() * sync.comm.size)), state

def main(rank, size):
    gradient = np.random.default_rng(rank).normal(size=100)
    if rank == size:
        wait_for("ready")
        comm = sw.join(timeout=30)
        sync = sw.Sync(comm, {method!r}, density=0.1)
        state = sync.go_on(comm, sync.init(100, "float64"))
    else:
        comm = sw.init(timeout=30)
        sync = sw.Sync(comm, {method!r}, density=0.1)
        state = sync.init(100, "float64")
        for _ in range(3):
            mean, state = sync.step(gradient, state)
        comm.barrier()
        if rank == 1:
            after(0.3, die)
        comm = go_on(comm)
        mine = state.compressor.residual.copy()
        state = sync.go_on(comm, state)
        assert np.array_equal(state.compressor.residual, mine)
        holds, state = law(sync, state, gradient)
        assert holds and comm.size == 2
        open(in_folder("ready"), "w").close()
        comm = comm.grow(at_least=1, timeout=30)
        state = sync.go_on(comm, state)
    holds, state = law(sync, state, gradient)
    return [holds, state.step, comm.size]
"""
    with jobs.job(3) as job:
        for rank in range(4):
            job.start(rank, program)
        outcomes = job.wait()
    outcomes.pop(1)
    assert [outcome["result"] for outcome in outcomes] == [[True, 5, 3]] * 3
