"""What users get holds their numbers, and nothing of the messages that the numbers came in."""

import numpy as np
import pytest

from sparsewire import ALGORITHMS, QSGD
from sparsewire.algorithms import TOPK_ALGORITHMS
from sparsewire.testing import run_program
from sparsewire.vector import SparseVector

LENGTH = 20_000


def mine(rank):
    chance = np.random.default_rng(rank)
    indices = np.sort(chance.choice(LENGTH, 4000, replace=False))
    return SparseVector(LENGTH, indices, chance.normal(size=4000).astype("float32"))


CALLS = {
    **{name: lambda comm, x, name=name: [comm.allreduce(x, algorithm=name)] for name in ALGORITHMS},
    **{
        name: lambda comm, x, name=name: list(comm.allreduce_topk(x, 1000, algorithm=name)[:2])
        for name in TOPK_ALGORITHMS
    },
    "precision": lambda comm, x: [comm.allreduce(x, algorithm="split_allgather", precision=QSGD(4))],
    "precision, gathered": lambda comm, x: [comm.allreduce(x, algorithm="allgather_sum", precision=QSGD(4))],
    "allgather": lambda comm, x: comm.allgather(x),
    "broadcast": lambda comm, x: [comm.broadcast(x if comm.rank == 0 else None, root=0)],
    "reduce": lambda comm, x: [comm.reduce(x, root=0) or x],
    "reduce_scatter": lambda comm, x: [comm.reduce_scatter(x)],
}


def memory_behind(vector):
    """Bytes of the arrays that the vector keeps in memory, each counted once."""
    wholes = {}
    for array in filter(lambda a: a is not None, (vector.indices, vector.values)):
        whole = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        wholes[whole.__array_interface__["data"][0]] = whole.nbytes
    return sum(wholes.values())


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", CALLS)
def test_no_frames_and_no_large_buffers_reach_users(name, size):
    for results in run_program(lambda comm: CALLS[name](comm, mine(comm.rank)), size):
        for result in results:
            assert result.coded is None
            assert result.packed is None
            assert memory_behind(result) <= 4 * result.nbytes + 4096


def test_a_part_of_a_large_message_is_copied():
    buffer = np.zeros(1 << 20, "float32")
    part = SparseVector.piece(100, 0, 100, None, buffer[:100])
    assert memory_behind(part) == buffer.nbytes
    assert memory_behind(part.own()) == 400
    whole = SparseVector.from_dense(buffer)
    assert whole.own() is whole
