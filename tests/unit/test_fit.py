"""Fitting finds the network that made the times, and is not led astray."""

from dataclasses import astuple, replace

import numpy as np
import pytest

from sparsewire.algorithms import ALGORITHMS
from sparsewire.choosing.fit import Sample, fit, predicted_over_measured
from sparsewire.choosing.tune import STARTS
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers import simulator
from sparsewire.vector import SparseVector

LIKE_A_CLUSTER = CostFigures(2.0**-14, 2.0**27, 2.0**-15, 2.0**-27, 2.0**-29, 1.0, 2.0**-13)
LIKE_SHARED_MEMORY = CostFigures(2.0**-17, 2.0**31, 2.0**-16, 2.0**-28, 2.0**-31, 0.25, 2.0**-15)
SHAPES = [
    Shape(4, 2**size, 2 ** (size - sparsity)) for size in (12, 16, 20, 22) for sparsity in (1, 3, 6, 10)
]


def fitted(network):
    """All figures but what coding an index costs, which no sample tells."""
    return astuple(replace(network, seconds_per_index=0.0))


def predicted_samples(network, shapes=SHAPES):
    return [
        Sample(name, shape, network.startup + algorithm.cost(network, shape).seconds)
        for shape in shapes
        for name, algorithm in ALGORITHMS.items()
    ]


def evenly(size, nnz, stride, disjoint):
    """Inputs for which the model is exact, and their shape."""
    length = nnz * stride
    vectors = [
        SparseVector(length, np.arange(nnz) * stride + (rank if disjoint else 0), np.ones(nnz, np.float32))
        for rank in range(size)
    ]
    return vectors, Shape(size, length, nnz, overlap="disjoint" if disjoint else "identical")


def simulated_samples(network, size):
    samples = []
    for nnz, stride, disjoint in [(64, 64, True), (2**12, 16, True), (2**15, 32, False), (2**17, 16, True)]:
        inputs, shape = evenly(size, nnz, stride, disjoint)
        for name, algorithm in ALGORITHMS.items():
            if name == "balanced":
                continue  # its borders are estimates, and so is its cost
            scripts = [algorithm.run(rank, size, vector) for rank, vector in enumerate(inputs)]
            seconds = network.startup + simulator.run(scripts, network).seconds
            samples.append(Sample(name, shape, seconds))
    return samples


@pytest.mark.parametrize("network", [LIKE_A_CLUSTER, LIKE_SHARED_MEMORY], ids=["cluster", "shared memory"])
def test_figures_are_recovered_from_predictions(network):
    found = fit(predicted_samples(network), STARTS)
    assert fitted(found) == pytest.approx(fitted(network), rel=0.01)


@pytest.mark.parametrize("size", [4, 8])
def test_figures_are_recovered_from_simulated_times(size):
    found = fit(simulated_samples(LIKE_A_CLUSTER, size), STARTS)
    assert fitted(found) == pytest.approx(fitted(LIKE_A_CLUSTER), rel=0.05)


def test_two_ranks_show_latency_and_overhead_together():  # nearly every round has one message
    samples = simulated_samples(LIKE_A_CLUSTER, 2)
    found = fit(samples, STARTS)
    assert found.latency + found.overhead == pytest.approx(2.0**-14 + 2.0**-15, rel=0.05)
    assert predicted_over_measured(found, samples) == pytest.approx([1] * len(samples), rel=0.02)


def test_a_few_wild_times_hardly_matter():
    samples = predicted_samples(LIKE_A_CLUSTER)
    wild = [s._replace(seconds=50 * s.seconds) if i % 8 == 3 else s for i, s in enumerate(samples)]
    assert fitted(fit(wild, STARTS)) == pytest.approx(fitted(LIKE_A_CLUSTER), rel=0.1)


def test_what_loses_by_far_does_not_disturb_the_rest():
    def wrong_about_losers(shape):
        seconds = {s.algorithm: s for s in predicted_samples(LIKE_A_CLUSTER, [shape])}
        best = min(s.seconds for s in seconds.values())
        return [s._replace(seconds=2 * s.seconds) if s.seconds > 4 * best else s for s in seconds.values()]

    found = fit([sample for shape in SHAPES for sample in wrong_about_losers(shape)], STARTS)
    assert fitted(found) == pytest.approx(fitted(LIKE_A_CLUSTER), rel=0.1)


def test_a_machine_that_is_busy_during_some_problems_does_not_change_the_choice():
    chance = np.random.default_rng(5)
    slower = {shape: 4 ** chance.random() for shape in SHAPES}
    samples = [s._replace(seconds=slower[s.shape] * s.seconds) for s in predicted_samples(LIKE_A_CLUSTER)]
    found = fit(samples, STARTS)
    for shape in SHAPES:
        true = {name: algorithm.cost(LIKE_A_CLUSTER, shape).seconds for name, algorithm in ALGORITHMS.items()}
        chosen = min(ALGORITHMS, key=lambda name: ALGORITHMS[name].cost(found, shape).seconds)
        assert true[chosen] <= 1.05 * min(true.values())


def test_times_that_say_nothing_about_a_figure_leave_it_possible():
    tiny = predicted_samples(replace(LIKE_A_CLUSTER, bandwidth=1e12), [Shape(2, 2**6, 1)])
    found = fit(tiny, STARTS)
    assert all(np.isfinite(astuple(found)))
    assert found.bandwidth > 0
    assert 0 <= found.overlap <= 1
    assert predicted_over_measured(found, tiny) == pytest.approx([1] * len(tiny), rel=0.05)


def test_the_same_times_give_the_same_figures():
    samples = predicted_samples(LIKE_SHARED_MEMORY, SHAPES[::3])
    assert fit(samples, STARTS) == fit(samples, STARTS)


@pytest.mark.parametrize("order", [1, -1])
def test_a_start_that_leads_nowhere_does_not_matter(order):
    nowhere = replace(STARTS[0], startup=0.0)  # its logarithm is so low that no step shows a difference
    samples = predicted_samples(LIKE_SHARED_MEMORY)
    found = fit(samples, [nowhere, STARTS[1]][::order])
    assert fitted(found) == pytest.approx(fitted(LIKE_SHARED_MEMORY), rel=0.01)
