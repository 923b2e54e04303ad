"""Algorithms that send in segments: small segments reach, with small vectors, what large vectors do."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire.algorithms.allgather_sum import allgather_sum
from sparsewire.algorithms.dense_ring import dense_ring
from sparsewire.testing import ORACLES, dense, run_local, same_bits
from sparsewire.vector import SparseVector
from strategies import EDGE_SHAPES, in_one_test, rank_vectors

SEGMENTED = {"allgather_sum": allgather_sum, "dense_ring": dense_ring}


def assert_right_everywhere(name, inputs, segment_bytes, seed=0):
    run = partial(SEGMENTED[name], segment_bytes=segment_bytes)
    results, traffic = run_local(run, inputs, seed)
    assert all(same_bits(results[0], other) for other in results)
    assert np.array_equal(dense(results[0]), ORACLES[name](inputs))
    return traffic


@pytest.mark.parametrize("name", SEGMENTED)
@in_one_test(segment_bytes=[1, 50], size=[1, 2, 3, 5], shape=EDGE_SHAPES)
def test_segments_of_any_size_give_the_same_sum(name, segment_bytes, size, shape):
    assert_right_everywhere(name, EDGE_SHAPES[shape](size, "float64"), segment_bytes)


@pytest.mark.parametrize("name", SEGMENTED)
@given(data=st.data())
def test_senders_may_cut_differently_and_messages_come_in_any_order(name, data):
    inputs = data.draw(rank_vectors("int64"))
    assert_right_everywhere(name, inputs, data.draw(st.integers(1, 100)), data.draw(st.integers(0, 2**32)))


def test_allgather_sum_cuts_as_often_as_its_own_entries_need():
    many, few = (
        SparseVector(37, range(37), np.ones(37, "float32")),
        SparseVector(37, [5], np.ones(1, "float32")),
    )
    traffic = assert_right_everywhere("allgather_sum", [many, few], segment_bytes=74)
    assert [t.messages_sent for t in traffic] == [37 * 8 // 74, 1]
