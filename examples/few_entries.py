"""Linear regression on several ranks, which send only the largest entries of their gradients.

sparsewire run -n 4 examples/few_entries.py
"""

import numpy as np

import sparsewire as sw

FEATURES, SAMPLES, STEPS, RATE = 500, 1000, 300, 0.1


def train(comm, samples, labels, method):
    """The weights after some steps of gradient descent, and the bytes that this rank sent."""
    weights, sent = np.zeros(FEATURES, "float32"), 0
    sync = sw.Sync(comm, method, density=0.05) if method else None
    state = sync.init(FEATURES) if sync else None
    for _ in range(STEPS):
        gradient = samples.T @ (samples @ weights - labels) / SAMPLES
        if sync:
            mean, state = sync.step(gradient, state)
            weights[mean.indices] -= RATE * mean.values
        else:
            weights -= RATE * comm.allreduce(gradient, op="avg", name="gradient")
        sent += comm.last.bytes_sent
    return weights, sent


with sw.init() as comm:
    truth = np.random.default_rng(0).standard_normal(FEATURES).astype("float32")
    chance = np.random.default_rng(comm.rank + 1)
    samples = chance.standard_normal((SAMPLES, FEATURES), "float32")
    labels = samples @ truth + chance.standard_normal(SAMPLES, "float32")

    for method in (None, "topk_allgather", "gtopk", "ok_topk"):
        weights, sent = train(comm, samples, labels, method)
        error = np.linalg.norm(weights - truth) / np.linalg.norm(truth)
        if comm.rank == 0:
            name = method or "everything"
            print(f"{name:<16} {sent / 1e6:6.2f} MB sent by a rank, error of the weights {error:.3f}")
