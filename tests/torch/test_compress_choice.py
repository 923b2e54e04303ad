"""compress(): the algorithm of lowest predicted time is taken, and the bits do not depend on which it is."""

import sys

import pytest
import torch
from models import Given, gradients
from training import assert_same, compressed, step_with, wrapped

from sparsewire.cost import CostFigures

pytestmark = pytest.mark.torch

SHAPES = {"table": (16, 256)}
# Merging an entry takes long and adding up blocks takes no time.
FIGURES_FOR_BLOCKS = CostFigures(latency=1e-9, bandwidth=1e6, seconds_per_entry=1e-6)
FIGURES = {
    "omnireduce": FIGURES_FOR_BLOCKS,
    "allgather_sum": CostFigures(latency=1.0),  # which has the fewest rounds
}


def zero_outside_blocks(given):
    """Gradients of few rows, each of which is a block."""
    is_touched = torch.arange(16) % 5 == 0
    return {name: tensor * is_touched[:, None] for name, tensor in given.items()}


def train_with_figures(group, options, figures, steps=range(4), state=None):
    """The algorithms that ran, the means of all steps, and the state after them."""
    module = sys.modules["sparsewire.torch.compress"]
    communicator, comms, algorithms = module.communicator, [], []

    def with_figures(*args):
        comm = communicator(*args)
        comm.network = figures
        comms.append(comm)
        return comm

    module.communicator = with_figures
    ddp = wrapped(group, Given(SHAPES))
    try:
        handle = compressed(ddp, options)
    finally:
        module.communicator = communicator
    if state is not None:
        handle.load_state_dict(state)
    iallreduce = comms[0].iallreduce

    def recorded(*args, **kwargs):
        request = iallreduce(*args, **kwargs)
        request.add_done_callback(lambda ended: algorithms.append(ended.last.algorithm))
        return request

    comms[0].iallreduce = recorded
    given = (zero_outside_blocks(gradients(group.rank(), step, SHAPES)) for step in steps)
    means = [step_with(ddp, tensors) for tensors in given]
    state = handle.state_dict()
    handle.detach()
    return set(algorithms), means, state


@pytest.mark.parametrize("method", ["block_topk", "exact"])
def test_algorithms_that_are_predicted_to_be_the_fastest_run_and_give_the_same_bits(ranks, method):
    options, expected = {"method": method, "density": 0.25}, None
    for algorithm, figures in FIGURES.items():
        runs = ranks.run(train_with_figures, options, figures, size=3)
        for used, means, _ in runs:
            assert algorithm in used if method == "exact" else used == {algorithm}  # "exact" learns
            expected = expected or means
            for here, there in zip(means, expected, strict=True):
                assert_same(here, there)


def test_training_that_continues_from_a_checkpoint_may_take_another_algorithm(ranks):
    options, figures = {"method": "block_topk", "density": 0.25}, FIGURES_FOR_BLOCKS
    whole = ranks.run(train_with_figures, options, figures, range(6), size=3)
    before = ranks.run(train_with_figures, options, FIGURES["allgather_sum"], range(3), size=3)
    states = [state for *_, state in before]
    after = ranks.run(train_with_figures, options, figures, range(3, 6), states, size=3)
    for (_, means, state), (_, first, _), (_, second, resumed) in zip(whole, before, after, strict=True):
        for here, there in zip(first + second, means, strict=True):
            assert_same(here, there)
        assert_same(state["kept"]["residual"], resumed["kept"]["residual"])


def test_predicted_cost_is_that_of_the_precision(ranks):
    figures = CostFigures(latency=1e-6, bandwidth=1e8, seconds_per_entry=5e-9)
    runs = {
        precision: ranks.run(train_with_figures, {"density": 0.2, "precision": precision}, figures, size=3)
        for precision in (None, "qsgd4")
    }
    assert [used for used, *_ in runs[None]] == [{"allgather_sum"}] * 3
    assert [used for used, *_ in runs["qsgd4"]] == [{"split_allgather"}] * 3
