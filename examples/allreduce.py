"""Sum a mostly-zero vector over four processes:  sparsewire run -n 4 examples/allreduce.py"""

import numpy as np

import sparsewire as sw

with sw.init() as comm:
    gradient = np.zeros(1_000_000, dtype="float32")
    touched = np.random.default_rng(comm.rank).choice(len(gradient), size=1_000, replace=False)
    gradient[touched] = 1.0

    total = comm.allreduce(gradient)

    if comm.rank == 0:
        last = comm.last
        print(f"{comm.size} ranks, {np.count_nonzero(total):,} non-zeros in the sum of {total.sum():.0f}")
        of_ring = 2 * (comm.size - 1) * gradient.nbytes // comm.size
        print(f"{last.algorithm} sent {last.bytes_sent:,} bytes; a dense ring sends {of_ring:,}")
