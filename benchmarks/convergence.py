"""Does training end where it would have without compression?  A small network on scikit-learn's digits.

    python benchmarks/convergence.py --json benchmarks/convergence.json --plot benchmarks/convergence.png

Four ranks.  Every method has the same data, batches, first parameters and learning rates; what differs is the
mean gradient: all of it, or 1% of its entries with error feedback.  The loss, that of all training data,
has a penalty on large parameters and so settles well above zero, where two per cent of it mean something.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import sparsewire as sw
from sparsewire.bench.harness.json_file import write_json
from sparsewire.launch.job import run_job

RANKS = 4
METHODS = ("dense", "topk_allgather", "ok_topk", "gtopk")
SEEDS = (0, 1, 2)
DENSITY = 0.01
WIDTHS = (64, 128, 10)  # of the layers: 9,610 parameters
PENALTY = 4e-3
BATCH = 32  # of each rank
STEPS = 2000
RATE = 0.5
EVERY = 50  # steps between two points of a curve
WITHIN = 1.02  # of dense, at the end
AS_RANK = "--as-rank"
COLOURS = {"dense": "black", "topk_allgather": "#e07b39", "ok_topk": "#2a6fbb", "gtopk": "#2a9d6f"}


def main():
    """Train on real ranks; exit code 1 if a method ends too far from dense."""
    if sys.argv[1:] == [AS_RANK]:
        with sw.init() as comm:
            report_runs(comm)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rows = with_ratios(collect_runs())
    if options.json:
        write_json(options.json, ["python", "benchmarks/convergence.py"], rows, setup=setup())
    if options.plot:
        plot(rows, options.plot)
    sys.exit(any(row["ratio_to_dense"] > WITHIN for row in rows))


def setup():
    """What all runs have in common."""
    return {
        "ranks": RANKS,
        "density": DENSITY,
        "parameters": len(first_parameters(0)),
        "batch_per_rank": BATCH,
        "steps": STEPS,
        "steps_between_losses": EVERY,
        "learning_rate": RATE,
        "penalty": PENALTY,
    }


def collect_runs():
    """What rank 0 reports, a line of JSON for each run."""
    runs = []

    def hear(rank, stream, line):
        if stream == "stdout":
            runs.append(json.loads(line))
            print("{method:<15} seed {seed}: {final_loss:.5f}".format(**runs[-1]), flush=True)
        else:
            print(f"rank {rank}: {line.decode(errors='replace')}", file=sys.stderr)

    outcome = run_job([__file__, AS_RANK], RANKS, on_line=hear)
    if outcome.code != 0:
        sys.exit(str(outcome))
    return runs


def report_runs(comm):
    """One rank's part of every run; rank 0 prints."""
    for seed in SEEDS:
        for method in METHODS:
            curve = train(comm, method, seed)
            if comm.rank == 0:
                print(json.dumps({"method": method, "seed": seed, "final_loss": curve[-1], "losses": curve}))


def with_ratios(runs):
    """Each run with its final loss in units of what dense has with the same seed."""
    dense = {run["seed"]: run["final_loss"] for run in runs if run["method"] == "dense"}
    return [{**run, "ratio_to_dense": run["final_loss"] / dense[run["seed"]]} for run in runs]


def train(comm, method, seed, steps=STEPS):
    """The loss on all data before the first step, after every ``EVERY`` steps and after the last."""
    images, digits = data()
    mine = np.random.default_rng(seed).permutation(len(digits))[comm.rank :: comm.size]
    batches = np.random.default_rng([seed, comm.rank])
    parameters = first_parameters(seed)
    mean_of = dense_mean(comm) if method == "dense" else sparse_mean(comm, method, len(parameters))
    curve = [loss_and_gradient(parameters, images, digits)[0]]
    for step in range(steps):
        batch = batches.choice(mine, BATCH, replace=False)
        _, gradient = loss_and_gradient(parameters, images[batch], digits[batch])
        parameters -= learning_rate(step, steps) * mean_of(gradient)
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            curve.append(loss_and_gradient(parameters, images, digits)[0])
    return curve


def dense_mean(comm):
    return lambda gradient: comm.allreduce(gradient, algorithm="dense_halving_doubling", op="avg")


def sparse_mean(comm, method, length):
    sync = sw.Sync(comm, method, density=DENSITY)
    state = sync.init(length, "float32")

    def mean_of(gradient):
        nonlocal state
        mean, state = sync.step(gradient, state)
        return mean.to_dense()

    return mean_of


def data():
    """1,797 images of 8 x 8 pixels, each from 0 to 1, and what they show."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), digits


def learning_rate(step, steps):
    """Constant for the first half, then down to zero along half a cosine."""
    decay = max(0.0, 2 * step / steps - 1)
    return np.float32(RATE * (1 + np.cos(np.pi * decay)) / 2)


def first_parameters(seed):
    """Weights with a variance of one over the inputs, and no biases."""
    chance = np.random.default_rng(seed)
    inputs, hidden, outputs = WIDTHS
    parameters = np.zeros((inputs + 1) * hidden + (hidden + 1) * outputs, np.float32)
    for weights, _ in layers(parameters):
        weights[:] = chance.standard_normal(weights.shape) / np.sqrt(len(weights))
    return parameters


def layers(parameters):
    """Weights and biases of both layers, as views of the flat vector."""
    inputs, hidden, outputs = WIDTHS
    pieces = np.split(parameters, np.cumsum([inputs * hidden, hidden, hidden * outputs]))
    return (pieces[0].reshape(inputs, hidden), pieces[1]), (pieces[2].reshape(hidden, outputs), pieces[3])


def loss_and_gradient(parameters, images, digits):
    """Mean cross entropy of the network's answers, and the penalty."""
    (weights1, biases1), (weights2, biases2) = layers(parameters)
    hidden = np.tanh(images @ weights1 + biases1)
    scores = hidden @ weights2 + biases2
    scores -= scores.max(axis=1, keepdims=True)
    log_chances = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    right = np.arange(len(digits)), digits
    loss = PENALTY / 2 * float(parameters @ parameters) - float(log_chances[right].mean())

    gradient = parameters * np.float32(PENALTY)
    (to_weights1, to_biases1), (to_weights2, to_biases2) = layers(gradient)
    to_scores = np.exp(log_chances)
    to_scores[right] -= 1
    to_scores /= np.float32(len(digits))
    to_hidden = (to_scores @ weights2.T) * (1 - hidden**2)
    to_weights2 += hidden.T @ to_scores
    to_biases2 += to_scores.sum(axis=0)
    to_weights1 += images.T @ to_hidden
    to_biases1 += to_hidden.sum(axis=0)
    return loss, gradient


def plot(rows, path):
    """The curves, each the mean over seeds, and how far above dense they are."""
    from matplotlib.figure import Figure

    curves = {
        name: np.mean([row["losses"] for row in rows if row["method"] == name], axis=0) for name in METHODS
    }
    steps = np.minimum(np.arange(len(curves["dense"])) * EVERY, STEPS)
    figure = Figure((11.0, 4.2), layout="constrained")
    losses, ratios = figure.subplots(1, 2)
    for name, curve in curves.items():
        losses.plot(steps, curve, color=COLOURS[name], linewidth=1.2, label=name)
        ratios.plot(steps, curve / curves["dense"], color=COLOURS[name], linewidth=1.2, label=name)
    losses.set_yscale("log")
    losses.set_yticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    losses.minorticks_off()
    losses.set_ylabel("training loss")
    ratios.axhline(WITHIN, color="#888888", linestyle=":", linewidth=1.0)
    ratios.set_ylim(0.95, 1.25)
    ratios.set_ylabel("training loss / that of dense")
    for panel in (losses, ratios):
        panel.set_xlabel("step")
        panel.spines[["top", "right"]].set_visible(False)
    losses.legend(frameon=False)
    figure.suptitle(f"Digits on {RANKS} ranks, {DENSITY:.0%} of the gradient, mean of {len(SEEDS)} seeds")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
