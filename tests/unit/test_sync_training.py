"""The number of selected entries while a network learns, and while gradients drift, from a cold start."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import sparsewire as sw
from sparsewire.testing import run_program

STEPS = 500
HIDDEN = 128


class Network:
    """Two layers on scikit-learn's digits, in plain numpy; the parameters are one vector."""

    def __init__(self, rank, size):
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))[rank::size]
        self.images, self.labels = images[order].astype(np.float32) / 16, labels[order]
        chance = np.random.default_rng(1)
        shapes = (64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)
        self.weights = np.concatenate(
            [
                (chance.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32).ravel()
                for shape in shapes
            ]
        )
        ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
        self.layers = [
            part.reshape(shape) for part, shape in zip(np.split(self.weights, ends), shapes, strict=True)
        ]

    def gradient(self, step):
        at = np.arange(32 * step, 32 * (step + 1)) % len(self.labels)
        images, labels = self.images[at], self.labels[at]
        first, first_bias, second, second_bias = self.layers
        hidden = np.maximum(images @ first + first_bias, 0)
        scores = hidden @ second + second_bias
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(at)), labels] -= 1
        back = chances / len(at)
        below = (back @ second.T) * (hidden > 0)
        parts = images.T @ below, below.sum(axis=0), hidden.T @ back, back.sum(axis=0)
        return np.concatenate([part.ravel() for part in parts])

    def accuracy(self):
        first, first_bias, second, second_bias = self.layers
        scores = np.maximum(self.images @ first + first_bias, 0) @ second + second_bias
        return float(np.mean(scores.argmax(axis=1) == self.labels))


def share_near_k(counts, k):
    return np.mean([0.8 * k <= count <= 1.25 * k for count in counts])


@pytest.mark.parametrize("method", ["ok_topk", "gtopk"])
def test_counts_stay_near_k_while_a_network_learns(method):
    def program(comm):
        network = Network(comm.rank, comm.size)
        sync = sw.Sync(comm, method, density=0.01)
        state = sync.init(len(network.weights))
        counts = []
        for step in range(STEPS):
            mean, state = sync.step(network.gradient(step), state)
            network.weights[mean.indices] -= np.float32(0.2) * mean.values
            counts.append(mean.nnz)
        return counts, network.accuracy(), network.weights.tobytes()

    everybody = run_program(program, 4)
    counts, accuracy, weights = everybody[0]
    assert share_near_k(counts, 96) >= 0.95
    assert accuracy > 0.9
    assert all(theirs == weights for _, _, theirs in everybody), "replicas drifted apart"


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
