"""Allgather, reduce-scatter, broadcast, reduce and barrier: every number of ranks, dtype, shape and root."""

from functools import partial

import numpy as np
import pytest

from sparsewire.algorithms import Context
from sparsewire.algorithms.patterns import allgather
from sparsewire.algorithms.split_allgather import split_reduce
from sparsewire.algorithms.tree import barrier, broadcast, reduce
from sparsewire.cost import CostFigures
from sparsewire.drivers import local, simulator
from sparsewire.expected import Expected
from sparsewire.reduction import MAX, MIN, concat
from sparsewire.steps import Recv, Send
from sparsewire.testing import ORACLES, dense, run_local, same_bits
from sparsewire.vector import VALUE_DTYPES, SparseVector
from strategies import EDGE_SHAPES, SIZES, in_one_test, read_only

dense_sum = ORACLES["allgather_sum"]


def inputs_of(shape, size, dtype):
    return [read_only(vector) for vector in EDGE_SHAPES[shape](size, dtype)]


@pytest.mark.parametrize("size", SIZES)
@in_one_test(shape=EDGE_SHAPES)
def test_allgather_gives_everybody_all_vectors_in_rank_order(size, shape):
    inputs = inputs_of(shape, size, "float32")
    whole = [Expected(dtype=inputs[0].dtype)] * size
    for gathered in run_local(partial(allgather, expected=whole), inputs)[0]:
        assert len(gathered) == size
        assert all(map(same_bits, gathered, inputs))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@in_one_test(dtype=VALUE_DTYPES, shape=EDGE_SHAPES)
def test_reduce_scatter_gives_each_rank_its_range_of_the_sum(size, dtype, shape):
    inputs = inputs_of(shape, size, dtype)
    pieces, _ = run_local(split_reduce, inputs)
    bounds = [0, *np.cumsum([len(part) for part in np.array_split(np.empty(inputs[0].length), size)])]
    for rank, piece in enumerate(pieces):
        assert (piece.start, piece.stop) == (bounds[rank], bounds[rank + 1])
        assert np.array_equal(dense(piece), dense_sum(inputs)[piece.start : piece.stop])
        assert np.array_equal(dense(piece.detached()), dense(piece))
    assert np.array_equal(dense(concat(pieces)), dense_sum(inputs))


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_gives_everybody_the_vector_of_any_root(size):
    for root in range(size):
        vector = SparseVector(50, [root], np.array([1.5]))
        scripts = [broadcast(rank, size, vector if rank == root else None, root) for rank in range(size)]
        results, traffic = local.run(scripts, seed=root)
        assert all(same_bits(result, vector) for result in results)
        assert sum(rank.messages_sent for rank in traffic) == size - 1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@in_one_test(shape=EDGE_SHAPES)
def test_reduce_gives_the_sum_to_any_root_and_nothing_to_others(size, shape):
    inputs = inputs_of(shape, size, "int64")
    for root in range(size):
        scripts = [reduce(rank, size, vector, root) for rank, vector in enumerate(inputs)]
        results, traffic = local.run(scripts, seed=root)
        total = results.pop(root)
        assert np.array_equal(dense(total), dense_sum(inputs))
        assert results == [None] * (size - 1)
        assert sum(rank.messages_sent for rank in traffic) == size - 1


@pytest.mark.parametrize("op", [MAX, MIN], ids=["max", "min"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_reduce_and_reduce_scatter_take_an_operation(size, op):
    values = [-2, 3, -5, 7]
    inputs = [
        SparseVector(40, range(r, 40, 9), np.full(len(range(r, 40, 9)), values[r % 4])) for r in range(size)
    ]
    expected = dense_sum(inputs, op.name)
    scripts = [reduce(rank, size, vector, 0, op) for rank, vector in enumerate(inputs)]
    assert np.array_equal(dense(local.run(scripts)[0][0]), expected)
    pieces, _ = run_local(partial(split_reduce, context=Context(op)), inputs)
    assert np.array_equal(dense(concat(pieces)), expected)


@pytest.mark.parametrize("late", [0, 1, -1])
@pytest.mark.parametrize("size", SIZES[1:])
def test_barrier_lets_nobody_go_before_all_have_come(size, late):
    late %= size
    helper = (late + 1) % size
    slow = SparseVector.from_dense(np.zeros(1000))

    def script(rank):
        if rank == helper:
            yield [Send(late, slow)]
        if rank == late:  # comes when this has arrived, after 8104 s and more
            yield [Recv(helper)]
        yield from barrier(rank, size)

    network = CostFigures(latency=0.0, bandwidth=1.0)
    finished = simulator.run([script(rank) for rank in range(size)], network).finished_at
    assert min(finished) > 8104


@pytest.mark.parametrize("seed", range(10))
def test_barrier_lets_nobody_go_early_in_any_delivery_order(seed):
    come, gone = set(), []

    def script(rank):
        come.add(rank)
        yield from barrier(rank, 7)
        gone.append(len(come))

    local.run([script(rank) for rank in range(7)], seed)
    assert gone == [7] * 7
