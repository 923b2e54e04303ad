"""The number of selected entries while a network learns, and while gradients drift, from a cold start."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.testing import run_program

STEPS = 200
# A network on scikit-learn's digits.
digits = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/convergence.py"))


def share_near_k(counts, k):
    return np.mean([0.8 * k <= count <= 1.25 * k for count in counts])


def test_counts_stay_near_k_while_a_network_learns():
    images, labels = digits["data"]()

    def program(comm):
        batches = np.random.default_rng(comm.rank)
        parameters = digits["first_parameters"](0)
        sync = sw.Sync(comm, "ok_topk", density=0.01)
        state = sync.init(len(parameters))
        counts = []
        for _ in range(STEPS):
            batch = batches.choice(len(labels), 32, replace=False)
            _, gradient = digits["loss_and_gradient"](parameters, images[batch], labels[batch])
            mean, state = sync.step(gradient, state)
            parameters[mean.indices] -= np.float32(0.5) * mean.values
            counts.append(mean.nnz)
        return counts, parameters, sync.k(len(parameters), state)

    everybody = run_program(program, 4)
    counts, parameters, k = everybody[0]
    assert share_near_k(counts, k) >= 0.95
    losses = [
        digits["loss_and_gradient"](p, images, labels)[0] for p in (digits["first_parameters"](0), parameters)
    ]
    assert losses[1] < losses[0] / 4
    assert all(np.array_equal(theirs, parameters) for _, theirs, _ in everybody), "replicas drifted apart"


def drifting(kind, rank, step, length):
    noise = np.random.default_rng([rank, step]).standard_normal(length).astype(np.float32)
    scale = {"growing": 1.01**step, "shrinking": 0.99**step, "jumping": 100.0 ** (step // 50 % 2)}[kind]
    heavy = noise**3 if kind == "jumping" else noise
    return np.float32(scale) * heavy


@pytest.mark.parametrize("kind", ["growing", "shrinking", "jumping"])
def test_counts_stay_near_k_while_gradients_drift(kind):
    def program(comm):
        sync = sw.Sync(comm, "ok_topk", density=0.01)
        state = sync.init(20_000)
        counts = []
        for step in range(STEPS):
            mean, state = sync.step(drifting(kind, comm.rank, step, 20_000), state)
            counts.append(mean.nnz)
        return counts

    for counts in run_program(program, 3):
        assert share_near_k(counts, 200) >= 0.95
