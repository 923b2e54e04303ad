"""Words that a rank moves in a step of Ok-Topk, counted by the simulator, from a cold start with error feedback.

    python benchmarks/words.py benchmarks/words.json

A word is four bytes: an entry of float32 has two, and indices are not coded.  What ranks tell each other about
regions and classes is counted, headers of messages are not.  Gradients are normal, all alike or of a scale that
grows four hundred times along the vector.
"""

import json
import math
import sys

import numpy as np

from sparsewire.algorithms import TOPK_ALGORITHMS
from sparsewire.compress import ErrorFeedback, TopK
from sparsewire.drivers import simulator
from sparsewire.cost import HEADER_BYTES, CostFigures

LENGTH, DENSITY = 1 << 22, 0.01
STEPS = 30
NETWORK = CostFigures(seconds_per_index=math.inf)


def gradient(kind, rank, step):
    chance = np.random.default_rng([rank, step])
    scale = np.exp(np.linspace(0, 6, LENGTH, dtype=np.float32)) if kind == "skewed" else np.float32(1)
    return scale * chance.standard_normal(LENGTH, np.float32)


def run(kind, size):
    """Words received and sent by each rank in each step, and how many entries each result has."""
    feedback = ErrorFeedback(TopK(DENSITY))
    states = [feedback.init(LENGTH) for _ in range(size)]
    k, regions = int(LENGTH * DENSITY), None
    received, sent, counts = [], [], []
    for step in range(STEPS):
        scripts = []
        for rank in range(size):
            vector, states[rank] = feedback.step(gradient(kind, rank, step), states[rank])
            scripts.append(TOPK_ALGORITHMS["ok_topk"].run(rank, size, vector, k, regions))
        done = simulator.run(scripts, NETWORK)
        regions = done.results[0].regions
        for rank, result in enumerate(done.results):
            states[rank] = feedback.give_back(result.left, states[rank])
        received.append([_words(t.bytes_received, t.messages_received) for t in done.traffic])
        sent.append([_words(t.bytes_sent, t.messages_sent) for t in done.traffic])
        counts.append(done.results[0].total.nnz)
    return {
        "gradients": kind,
        "ranks": size,
        "length": LENGTH,
        "k": k,
        "steps": STEPS,
        "received_mean_over_k": float(np.mean(received)) / k,
        "received_max_over_k": float(np.max(received)) / k,
        "received_max_over_k_first_step": float(np.max(received[0])) / k,
        "sent_max_over_k": float(np.max(sent)) / k,
        "promised_over_k": 6 * (size - 1) / size,
        "entries": counts,
    }


def _words(nbytes, messages):
    return (nbytes - HEADER_BYTES * messages) / 4


if __name__ == "__main__":
    rows = []
    for kind in ("i.i.d.", "skewed"):
        for size in (2, 4, 8, 16, 32, 64):
            rows.append(run(kind, size))
            print({name: value for name, value in rows[-1].items() if name != "entries"}, file=sys.stderr)
    with open(sys.argv[1], "w") as file:
        json.dump({"command": ["python", "benchmarks/words.py", sys.argv[1]], "rows": rows}, file, indent=1)
        file.write("\n")
