"""Sums in the background while the ranks compute:  sparsewire run -n 2 examples/nonblocking.py

The same under MPI:  mpiexec -n 2 python examples/nonblocking.py
"""

import numpy as np

import sparsewire as sw

LAYERS = 6


def backward(layer: int, chance: np.random.Generator) -> np.ndarray:
    """The gradient of a layer, which is mostly zero; the matrix products take the place of a real model."""
    activations = chance.standard_normal((200, 200), dtype="float32")
    for _ in range(20):
        activations = np.maximum(activations @ activations.T / 200, 0)
    gradient = np.zeros(500_000, dtype="float32")
    gradient[chance.choice(len(gradient), size=1_000, replace=False)] = layer + 1
    return gradient


with sw.init() as comm:
    chance = np.random.default_rng(comm.rank)
    requests = []
    for layer in range(LAYERS):
        gradient = backward(layer, chance)
        requests.append(comm.iallreduce(gradient, op="avg", name=f"layer {layer}"))
    means = [request.wait() for request in requests]

    if comm.rank == 0:
        count = sum(np.count_nonzero(mean) for mean in means)
        print(f"{comm.size} ranks, {LAYERS} layers, {count:,} non-zeros")
        print(f"the algorithm of the last sum is {requests[-1].last.algorithm}")
