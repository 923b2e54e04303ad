"""Linear regression on several ranks, which send gradients of few bits, with and without error feedback.

sparsewire run -n 4 examples/few_bits.py
"""

import numpy as np

import sparsewire as sw

FEATURES, SAMPLES, STEPS, RATE = 500, 1000, 20, 0.3


def train(comm, samples, labels, precision=None, feedback=None):
    """The weights after some steps of gradient descent, and the bytes that this rank sent."""
    weights, sent = np.zeros(FEATURES, "float32"), 0
    for _ in range(STEPS):
        gradient = samples.T @ (samples @ weights - labels) / SAMPLES
        mean = comm.allreduce(gradient, op="avg", name="gradient", precision=precision, feedback=feedback)
        weights -= RATE * mean
        sent += comm.last.bytes_sent
    return weights, sent


with sw.init() as comm:
    truth = np.random.default_rng(0).standard_normal(FEATURES).astype("float32")
    chance = np.random.default_rng(comm.rank + 1)
    samples = chance.standard_normal((SAMPLES, FEATURES), "float32")
    labels = samples @ truth

    for title, precision, feedback in [
        ("float32", None, None),
        ("float16", "float16", None),
        ("4 bits", "qsgd4", None),
        ("2 bits", "qsgd2", None),
        ("2 bits, with feedback", "qsgd2", sw.Feedback()),
    ]:
        weights, sent = train(comm, samples, labels, precision, feedback)
        error = np.linalg.norm(weights - truth) / np.linalg.norm(truth)
        if comm.rank == 0:
            print(f"{title:<24} {sent / 1e6:6.2f} MB sent by a rank, error of the weights {error:.1e}")
