"""Communicator of one rank: arguments, results and what it says about them.  Several ranks: tests/drivers."""

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.communicator import Communicator
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.local import Alone


@pytest.fixture
def comm():
    with Communicator(Engine(0, 1, Alone())) as communicator:
        yield communicator


@pytest.fixture
def vector():
    return sw.SparseVector(100, [3, 50], np.array([2.0, -1.0], dtype="float32"))


@pytest.mark.parametrize("algorithm", ["auto", *sw.ALGORITHMS])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_allreduce_of_one_rank_is_the_vector(comm, vector, algorithm, op):
    total = comm.allreduce(vector, algorithm=algorithm, op=op)
    assert (total.to_dense() == vector.to_dense()).all()


def test_every_collective_works_alone(comm, vector):
    dense = vector.to_dense()
    assert [v.nnz for v in comm.allgather(vector)] == [2]
    assert (comm.reduce_scatter(dense) == dense).all()
    assert (comm.broadcast(dense) == dense).all()
    assert (comm.reduce(dense) == dense).all()
    comm.barrier()


def test_last_tells_what_happened(comm, vector):
    assert comm.last is None
    comm.allreduce(vector, algorithm="split_allgather")
    last = comm.last
    assert (last.operation, last.algorithm) == ("allreduce", "split_allgather")
    assert (last.nnz_in, last.nnz_out) == (2, 2)
    assert (last.density_in, last.density_out) == (0.02, 0.02)
    assert (last.messages_sent, last.bytes_sent, last.bytes_received) == (0, 0, 0)
    assert last.seconds >= 0


def test_last_tells_what_auto_chose(comm, vector):
    comm.allreduce(vector)
    assert comm.last.algorithm in sw.ALGORITHMS


def test_a_mostly_zero_array_is_sent_as_entries(comm):
    comm.allreduce(np.eye(10, dtype="float32"), algorithm="split_allgather")
    assert comm.last.nnz_in == 10


def test_unknown_algorithm_is_refused_with_the_known_ones(comm, vector):
    with pytest.raises(sw.InputError) as caught:
        comm.allreduce(vector, algorithm="fastest")
    assert all(name in str(caught.value) for name in ("'fastest'", "auto", *sw.ALGORITHMS))


def test_unknown_op_is_refused_with_the_known_ones(comm, vector):
    with pytest.raises(sw.InputError, match="unknown op 'product'; known are sum, max, min, avg"):
        comm.allreduce(vector, op="product")


def test_mean_of_integers_is_refused(comm):
    with pytest.raises(sw.InputError, match="use a float dtype"):
        comm.allreduce(np.arange(3), op="avg")


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeout_must_be_positive(comm, vector, timeout):
    with pytest.raises(sw.InputError, match="positive number of seconds"):
        comm.allreduce(vector, timeout=timeout)


@pytest.mark.parametrize("root", [-1, 1])
def test_root_must_be_a_rank(comm, vector, root):
    with pytest.raises(sw.InputError, match=f"root is {root}"):
        comm.broadcast(vector, root=root)
    with pytest.raises(sw.InputError, match=f"root is {root}"):
        comm.reduce(vector, root=root)


def test_root_of_a_broadcast_must_give_something(comm):
    with pytest.raises(sw.InputError, match="gave None"):
        comm.broadcast(None)


def test_input_is_not_written_to(comm):
    x = np.arange(10, dtype="float32")
    x.flags.writeable = False
    for algorithm in ("auto", *sw.ALGORITHMS):
        comm.allreduce(x, algorithm=algorithm)[:] = 0
    assert (x == np.arange(10)).all()


def test_a_closed_communicator_says_so(comm, vector):
    comm.close()
    comm.close()
    with pytest.raises(sw.TransportError, match="closed"):
        comm.allreduce(vector)


def test_repr_names_rank_and_size(comm):
    assert repr(comm) == "Communicator(rank=0, size=1)"
