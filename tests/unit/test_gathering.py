"""Communicators gather along a tree or by direct messages, and all ranks in the same way."""

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.algorithms.bruck import is_faster
from sparsewire.testing import run_program

SIZE, LENGTH = 8, 2**20


@pytest.mark.parametrize("algorithm", ["allgather_sum", "split_allgather"])
def test_ranks_that_know_how_few_entries_they_have_send_fewer_messages(algorithm):
    def program(comm):
        x = sw.SparseVector(LENGTH, [comm.rank], np.ones(1, np.float32))
        sent = []
        for options in ({}, {"nnz": 1}):
            total = comm.allreduce(x, algorithm=algorithm, **options)
            sent.append(comm.last.messages_sent)
            assert total.indices.tolist() == [*range(SIZE)]
        assert is_faster(comm.network, SIZE, lambda pieces: 120 * pieces)
        assert not is_faster(comm.network, SIZE, lambda pieces: LENGTH // SIZE * 4 * pieces)
        return sent

    direct = 7 if algorithm == "allgather_sum" else 14
    assert run_program(program, SIZE) == [[direct, direct - 4]] * SIZE


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_vectors_of_any_length_are_gathered(size):
    def program(comm):
        return comm.allgather(np.arange(3 * comm.rank))

    for everybody in run_program(program, size):
        assert [part.tolist() for part in everybody] == [[*range(3 * rank)] for rank in range(size)]


@pytest.mark.parametrize("algorithm", ["auto", "split_allgather"])
def test_ranks_that_promise_different_numbers_are_told_so(algorithm):
    """Some of them would gather along the tree, and the others by direct messages."""

    def program(comm):
        x = sw.SparseVector(LENGTH, [comm.rank], np.ones(1, np.float32))
        with pytest.raises(sw.CallMismatchError, match=r"rank 0 called .*nnz=1\b.*nnz=2,000\b"):
            comm.allreduce(x, algorithm=algorithm, nnz=1 if comm.rank == 0 else 2_000)
        return comm.allreduce(x, algorithm=algorithm, nnz=1).nnz

    assert run_program(program, SIZE) == [SIZE] * SIZE
