"""compress(): every step's gradients are what the method says, on every rank, and nothing is lost."""

import itertools

import pytest
import torch
from models import GROUPS, OPTIONS, SHAPES, Given, gradients
from training import assert_same, compressed, named, step_with, train, wrapped

pytestmark = pytest.mark.torch

SIZES = [1, 2, 3, 4]
STEPS = 4
BLOCK = 256  # of block_topk


# -- what must come out, in plain torch ----------------------------------------------------------


def flat(tensors, names):
    return torch.cat([tensors[name].reshape(-1) for name in names])


def largest(values, density):
    """A mask of the largest magnitudes, of equal ones the first, and no zeros."""
    count = max(1, int(len(values) * density))
    order = values.abs().sort(descending=True, stable=True).indices[:count]
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[order] = True
    return mask & (values != 0)


def largest_blocks(values, density):
    norms = torch.stack([block.double().norm() for block in values.split(BLOCK)])
    return largest(norms, density).repeat_interleave(BLOCK)[: len(values)]


class Feedback:
    """Error feedback of one group over all ranks."""

    def __init__(self, size, names, choose, density, momentum=0.0):
        self.names, self.choose, self.density, self.momentum = names, choose, density, momentum
        length = sum(torch.zeros(SHAPES[name]).numel() for name in names)
        self.residuals = [torch.zeros(length) for _ in range(size)]
        self.velocities = [torch.zeros(length) for _ in range(size)]

    def mean(self, everybody):
        total = torch.zeros_like(self.residuals[0])
        for rank, tensors in enumerate(everybody):
            velocity = self.velocities[rank].mul_(self.momentum).add_(flat(tensors, self.names).float())
            residual = self.residuals[rank].add_(velocity)
            chosen = self.choose(residual, self.density)
            total += residual * chosen
            residual[chosen] = velocity[chosen] = 0
        return total / len(everybody)


def expected(size, choose, density=OPTIONS["density"], momentum=0.0, dtype=torch.float32):
    """The means of each step."""
    everything, velocities = [], {}
    groups = [Feedback(size, names, choose, density, momentum) for names in GROUPS]
    for step in range(STEPS):
        everybody = [gradients(rank, step, dtype=dtype) for rank in range(size)]
        means = exact_means(everybody)
        if momentum:  # of what goes densely, and all is overwritten below that does not
            for name, mean in means.items():
                velocities[name] = velocities.get(name, torch.zeros_like(mean)) * momentum + mean
            means = dict(velocities)
        for group in groups:
            pieces = group.mean(everybody).split([everybody[0][name].numel() for name in group.names])
            means |= {
                name: piece.reshape(SHAPES[name]).to(dtype)
                for name, piece in zip(group.names, pieces, strict=True)
            }
        everything.append(means)
    return everything


def exact_means(everybody):
    """In float64, then rounded once."""
    return {
        name: (sum(tensors[name].double() for tensors in everybody) / len(everybody)).to(everybody[0][name])
        for name in everybody[0]
    }


def assert_all_ranks_have(means, runs):
    for run in runs:
        for here, there in zip(run.means, means, strict=True):
            assert_same({name: here[name] for name in there}, there)


# -- the mean of every method --------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_topk_is_the_mean_of_everybodys_largest(ranks, size):
    assert_all_ranks_have(expected(size, largest), ranks.run(train, {}, size=size))


@pytest.mark.parametrize("size", SIZES)
def test_block_topk_is_the_mean_of_everybodys_largest_blocks(ranks, size):
    runs = ranks.run(train, {"method": "block_topk", "density": 0.4}, size=size)
    assert_all_ranks_have(expected(size, largest_blocks, density=0.4), runs)


@pytest.mark.parametrize("method", ["exact", "dense"])
@pytest.mark.parametrize("size", SIZES)
def test_lossless_methods_give_the_mean(ranks, size, method):
    means = [exact_means([gradients(rank, step) for rank in range(size)]) for step in range(STEPS)]
    assert_all_ranks_have(means, ranks.run(train, {"method": method}, size=size))


@pytest.mark.parametrize("size", SIZES)
def test_momentum_goes_before_the_selection(ranks, size):
    runs = ranks.run(train, {"momentum": 0.5}, size=size)
    assert_all_ranks_have(expected(size, largest, momentum=0.5), runs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_topk_of_other_types(ranks, dtype):
    """Half types wait in float32."""
    runs = ranks.run(train, {}, range(STEPS), None, dtype, size=2)
    assert_all_ranks_have(expected(2, largest, dtype=dtype), runs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("method", ["exact", "dense"])
def test_lossless_methods_of_other_types(ranks, method, dtype):
    means = [exact_means([gradients(rank, step, dtype=dtype) for rank in range(2)]) for step in range(2)]
    runs = ranks.run(train, {"method": method}, range(2), None, dtype, size=2)
    for run in runs:
        for here, there in zip(run.means, means, strict=True):
            for name in there:
                torch.testing.assert_close(here[name], there[name])
    assert_ranks_agree(runs)


@pytest.mark.parametrize("method", ["exact", "dense"])
def test_lossless_sum_of_half_types_may_exceed_their_range(ranks, method):
    assert ranks.run(mean_of_large, method) == [40000] * 4


def mean_of_large(group, method):
    ddp = wrapped(group, Given({"table": (32,)}, torch.float16))
    handle = compressed(ddp, {"method": method})
    mean = step_with(ddp, {"table": torch.full((32,), 40000, dtype=torch.float16)})["table"]
    handle.detach()
    return mean.unique().item()


# -- what holds for all of them ------------------------------------------------------------------


def assert_ranks_agree(runs):
    for run in runs[1:]:
        for here, there in zip(run.means, runs[0].means, strict=True):
            assert_same(here, there)


def owed(runs, name):
    return sum(run.state["kept"]["residual"][name].double() for run in runs)


def assert_nothing_is_lost(runs, steps=STEPS, dtype=torch.float32):
    """Over all ranks: the gradients are what the means times the number of ranks were, and what waits."""
    for name in itertools.chain(*GROUPS):
        given = sum(
            gradients(rank, step, dtype=dtype)[name].double()
            for rank in range(len(runs))
            for step in range(steps)
        )
        got = len(runs) * sum(means[name].double() for means in runs[0].means)
        torch.testing.assert_close(got.reshape(-1) + owed(runs, name), given.reshape(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options",
    [
        {"method": "ok_topk"},
        {"method": "gtopk"},
        {"method": "spardl"},
        {"method": "auto"},
        {"precision": "float16"},
        {"precision": "bfloat16"},
        {"precision": "qsgd8"},
        {"precision": "qsgd2", "method": "block_topk", "density": 0.4},
    ],
    ids=named,
)
def test_nothing_is_lost_and_ranks_agree(ranks, size, options):
    runs = ranks.run(train, options, size=size)
    assert_ranks_agree(runs)
    assert_nothing_is_lost(runs)


def test_nothing_is_lost_of_float64_sent_in_half(ranks):
    runs = ranks.run(train, {"precision": "float16"}, range(STEPS), None, torch.float64, size=2)
    assert_ranks_agree(runs)
    assert_nothing_is_lost(runs)


@pytest.mark.parametrize("method", ["ok_topk", "gtopk", "spardl", "auto"])
def test_sums_of_the_largest_entries_have_no_more_than_the_density(ranks, method):
    for run in ranks.run(train, {"method": method}):
        for means in run.means:
            for names in GROUPS:
                whole = flat(means, names)
                assert 0 < whole.count_nonzero() <= 0.05 * len(whole)


# -- which parameters ----------------------------------------------------------------------------


def whole_in(means):
    """Which parameters came whole; a few of their gradients are zero by chance."""
    return {name for name, mean in means.items() if mean.count_nonzero() > 0.8 * mean.numel()}


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ({}, {"first_bias", "last_bias"}),
        ({"min_size": 0}, set()),
        ({"min_size": 7}, set()),
        ({"min_size": 8}, {"first_bias"}),
        ({"min_size": 601}, set(SHAPES)),
        ({"parameters": "first*"}, set(SHAPES) - {"first"}),
        ({"parameters": ["head", "l?st"]}, set(SHAPES) - {"head", "last"}),
        ({"parameters": []}, set(SHAPES)),
    ],
    ids=lambda given: str(sorted(given)) if isinstance(given, set) else str(given),  # alike in every process
)
def test_parameters_that_are_small_or_not_named_go_densely(ranks, options, whole):
    runs = ranks.run(train, options, range(2), size=2)
    for run in runs:
        for step, means in enumerate(run.means):
            assert whole_in(means) == whole
            dense = exact_means([gradients(rank, step) for rank in range(2)])
            assert_same({name: means[name] for name in whole}, {name: dense[name] for name in whole})


# -- the schedule --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["topk", "ok_topk"])
def test_density_follows_the_warm_up(ranks, method):
    for densities in ranks.run(densities_of, {"warmup_steps": 2, "density": 0.01, "method": method}, size=2):
        lengths = [700, 1100]
        for density, now in zip(densities, [0.25, 0.05, 0.01, 0.01], strict=True):
            assert density == sum(int(length * now) for length in lengths) / sum(lengths)


def test_density_may_be_a_function_of_the_step(ranks):
    for densities in ranks.run(densities_of, {"density": halved}, size=2):
        assert densities == [900 / 1800, 450 / 1800, (87 + 137) / 1800, (43 + 68) / 1800]


def halved(step):
    return 0.5 ** (step + 1)


def densities_of(group, options):
    ddp = wrapped(group, Given())
    handle = compressed(ddp, options)
    densities = []
    for step in range(4):
        step_with(ddp, gradients(group.rank(), step))
        densities.append(handle.stats()["density"])
    handle.detach()
    return densities
