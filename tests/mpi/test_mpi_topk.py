"""The largest entries of a sum, and whole training steps, under MPI."""


def test_ranks_agree_and_nothing_is_lost(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            comm, told = sw.init(timeout=30), []
            for method in sw.METHODS:
                sync = sw.Sync(comm, method, 0.02)
                state, sent = sync.init(5000, "float64"), 0.0
                for step in range(3):
                    gradient = np.random.default_rng([rank, step]).standard_normal(5000)
                    mean, state = sync.step(gradient, state)
                    sent = sent + mean.to_dense()
                given = sum(np.random.default_rng([rank, step]).standard_normal(5000) for step in range(3))
                missing = comm.allreduce(given - state.compressor.residual, algorithm="dense_ring")
                told.append([method, digest(mean), float(np.abs(missing - size * sent).max()) < 1e-10])
            return told
        """,
        3,
    )
    results = [outcome["result"] for outcome in outcomes]
    assert results[0] == results[1] == results[2]
    assert all(is_conserved for _, _, is_conserved in results[0])
