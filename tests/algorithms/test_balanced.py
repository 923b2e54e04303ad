"""The ranges of `balanced`: they cover the vector, and on skewed supports all owners have the same load."""

import itertools

import numpy as np
import pytest
from hypothesis import given

from sparsewire.algorithms import ALGORITHMS
from sparsewire.algorithms.balanced import balanced_ranges, report
from sparsewire.bench.harness.problem import Case, make_input
from sparsewire.cost import CostFigures
from sparsewire.drivers import simulator
from sparsewire.vector import SparseVector
from strategies import EDGE_SHAPES, SIZES, in_one_test, rank_vectors

ORDINARY = CostFigures(latency=50e-6, bandwidth=125e6, seconds_per_entry=6e-9, seconds_per_value=0.4e-9)


def ranges_of(inputs):
    cuts, owners = balanced_ranges([report(vector) for vector in inputs], inputs[0].length)
    return list(itertools.pairwise(cuts)), owners


def assert_partition(inputs):
    ranges, owners = ranges_of(inputs)
    assert len(ranges) == len(owners)
    assert (ranges[0][0], ranges[-1][1]) == (0, inputs[0].length)
    assert all(start <= stop for start, stop in ranges)
    assert set(owners) == set(range(len(inputs)))


@pytest.mark.parametrize("size", SIZES)
@in_one_test(shape=EDGE_SHAPES)
def test_ranges_cover_the_vector_and_everybody_owns_one(size, shape):
    assert_partition(EDGE_SHAPES[shape](size, "float32"))


@given(rank_vectors("int64"))
def test_ranges_of_anything_cover_the_vector(inputs):
    assert_partition(inputs)


def test_ranges_of_the_longest_vectors_cover_them():
    ends = [0, 2**62, 2**63 - 2]
    assert_partition([SparseVector(2**63 - 1, ends[r:], np.ones(3 - r)) for r in range(3)])


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("size", SIZES)
def test_entries_that_lie_evenly_give_even_ranges_in_rank_order(size, every):
    length = 4096 * size
    vector = SparseVector(length, range(0, length, every), np.ones(length // every)).smaller()
    assert vector.is_dense == (every == 1)
    ranges, owners = ranges_of([vector] * size)
    assert owners == list(range(size))
    assert [stop - start for start, stop in ranges] == pytest.approx([4096] * size, rel=0.02)


def times_the_mean(loads):
    return max(loads) / np.mean(loads)


def zipf_inputs(length, density, size):
    case = Case(size, length, density, distribution="zipf")
    return [SparseVector(length, *make_input(case, rank)) for rank in range(size)]


ZIPF = [(2**20, density, size) for density in (1e-4, 1e-3, 1e-2) for size in (2, 3, 4, 6, 8, 11, 16)]
ZIPF += [(2**24, density, size) for density in (1e-4, 1e-3) for size in (3, 16)]


@pytest.mark.parametrize(("length", "density", "size"), ZIPF)
def test_the_busiest_rank_has_1_3_times_the_mean_at_most_on_zipf_supports(length, density, size):
    inputs = zipf_inputs(length, density, size)
    ranks_at = np.zeros(length, np.int64)
    for vector in inputs:
        ranks_at[vector.indices] += 1
    added_up, owned = np.zeros(size), np.zeros(size)
    for (start, stop), owner in zip(*ranges_of(inputs), strict=True):
        added_up[owner] += ranks_at[start:stop].sum()
        owned[owner] += np.count_nonzero(ranks_at[start:stop])
    run = ALGORITHMS["balanced"].run
    simulation = simulator.run([run(rank, size, vector) for rank, vector in enumerate(inputs)], ORDINARY)
    assert times_the_mean(added_up) <= 1.3
    assert times_the_mean(owned) <= 1.3
    # Owners have as many entries; coded ones need fewer bytes than those of a range that was stored densely.
    assert times_the_mean([rank.bytes_sent for rank in simulation.traffic]) <= 1.4
    assert times_the_mean([rank.bytes_sent + rank.bytes_received for rank in simulation.traffic]) <= 1.3
    assert times_the_mean(simulation.finished_at) <= 1.3


@pytest.mark.parametrize("size", [4, 16])
def test_balanced_is_much_faster_than_even_ranges_on_zipf_supports(size):
    inputs = zipf_inputs(2**20, 1e-2, size)
    balanced, even = (
        simulator.run([ALGORITHMS[name].run(r, size, v) for r, v in enumerate(inputs)], ORDINARY).seconds
        for name in ("balanced", "split_allgather")
    )
    assert 2 * balanced < even
