"""compress(): whatever DDP does with its buckets, and whatever a model looks like."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from models import GROUPS, SHAPES, Given, gradients
from torch.nn.parallel import DistributedDataParallel
from training import assert_same, compressed, found, named, step_with, train, wrapped

pytestmark = pytest.mark.torch

METHODS = ["topk", "ok_topk", "block_topk"]


def steps_of(group, ddp, options, steps, shapes):
    """The means of some steps of a model of given gradients."""
    handle = compressed(ddp, options)
    means = [step_with(ddp, gradients(group.rank(), step, shapes)) for step in range(steps)]
    handle.detach()
    return means


# -- buckets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_buckets_do_not_matter(ranks, method):
    """DDP makes them anew after the first step, or the second, or never."""
    options = {"method": method, "density": 0.1}
    expected = ranks.run(train, options, size=2)
    for ddp_options in (
        {"bucket_cap_mb": 0.0001},
        {"bucket_cap_mb": 0.002},
        {"bucket_cap_mb": 1000},
        {"find_unused_parameters": True},
        {"static_graph": True, "bucket_cap_mb": 0.002},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
        {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    ):
        runs = ranks.run(train, options, range(4), ddp_options, size=2)
        for run, there in zip(runs, expected, strict=True):
            for here, means in zip(run.means, there.means, strict=True):
                assert_same(here, means)
            assert_same(run.state["kept"]["residual"], there.state["kept"]["residual"])


# -- accumulation --------------------------------------------------------------------------------


def accumulate(group, micro_steps):
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {})
    means = []
    for step in range(3):
        ddp.zero_grad()
        for micro in range(micro_steps):
            given = gradients(group.rank(), step)
            is_last = micro == micro_steps - 1
            with nullcontext() if is_last else ddp.no_sync():
                ddp({name: tensor / micro_steps for name, tensor in given.items()}).backward()
        means.append(found(ddp))
    handle.detach()
    return means


def test_accumulated_gradients_are_one_gradient(ranks):
    for whole, halves in zip(ranks.run(accumulate, 1, size=2), ranks.run(accumulate, 2, size=2), strict=True):
        for one, other in zip(whole, halves, strict=True):
            assert_same(one, other)


# -- models --------------------------------------------------------------------------------------


def train_compiled(group, is_first):
    """A DDP model that is compiled before, or after it is compressed."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    ddp = wrapped(group, model)
    if is_first is None:
        handle, called = compressed(ddp, {}), ddp
    elif is_first:
        called = torch.compile(ddp, backend="eager")
        handle = compressed(called, {})
    else:
        handle = compressed(ddp, {})
        called = torch.compile(ddp, backend="eager")
    means = []
    for step in range(3):
        ddp.zero_grad()
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + group.rank()))
        called(inputs).square().sum().backward()
        means.append(found(ddp))
    handle.detach()
    return means


@pytest.mark.parametrize("is_first", [False, True])
def test_compiled_model_gives_the_same(ranks, is_first):
    expected = ranks.run(train_compiled, None, size=2)
    for here, there in zip(ranks.run(train_compiled, is_first, size=2), expected, strict=True):
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)


def train_channels_last(group, memory_format):
    """All of the gradient is sent, so that its order in memory cannot matter."""
    shapes = {"convolution": (8, 4, 3, 3), "bias": (8,)}
    model = Given(shapes).to(memory_format=memory_format)
    ddp = wrapped(group, model)
    handle = compressed(ddp, {"density": 1.0})
    means = [step_with(ddp, gradients(group.rank(), step, shapes)) for step in range(3)]
    is_kept = model.convolution.grad.is_contiguous(memory_format=memory_format)
    handle.detach()
    return means, is_kept


def test_channels_last_weights_stay_so(ranks):
    plain = ranks.run(train_channels_last, torch.contiguous_format, size=2)
    for (here, is_kept), (there, _) in zip(
        ranks.run(train_channels_last, torch.channels_last, size=2), plain, strict=True
    ):
        assert is_kept
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)


def train_some(group, frozen, ignored):
    model = Given()
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    nested = torch.nn.ModuleDict({"inner": model})
    nested.forward = model.forward
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        nested, [f"inner.{name}" for name in ignored]
    )
    means = steps_of(group, wrapped(group, nested), {"density": 1.0}, 2, SHAPES)
    return [{name.removeprefix("inner."): mean for name, mean in step.items()} for step in means]


def test_frozen_and_ignored_parameters_are_left_alone(ranks):
    for rank, means in enumerate(ranks.run(train_some, ["middle"], ["head", "last_bias"], size=2)):
        for step, found_now in enumerate(means):
            mine = gradients(rank, step)
            total = {name: (gradients(0, step)[name] + gradients(1, step)[name]) / 2 for name in mine}
            expected = total | {name: mine[name] for name in ("head", "last_bias")}
            del expected["middle"]
            assert_same(found_now, {name: expected[name] for name in found_now})
            assert found_now.keys() == expected.keys()


def train_ignoring_what_ddp_does_not_ignore(group):
    """DDP ignores parameters of submodules only: one of the model itself is called ".head" there."""
    model = Given()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["head"])
    return steps_of(group, wrapped(group, model), {"density": 1.0}, 2, SHAPES)


def test_what_ddp_reduces_all_the_same_is_exchanged(ranks):
    one, other = ranks.run(train_ignoring_what_ddp_does_not_ignore, size=2)
    for here, there in zip(one, other, strict=True):
        assert_same(here, there)


class Tied(torch.nn.Module):
    """A weight that is used by two layers."""

    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(24, 24, bias=False)
        self.out = torch.nn.Linear(24, 24, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x):
        return self.out(self.into(x)).sum()


def train_tied(group):
    torch.manual_seed(1)
    model = Tied()
    ddp = wrapped(group, model)
    handle = compressed(ddp, {"density": 1.0})
    inputs = [torch.randn(2, 24, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    for _ in range(3):
        ddp.zero_grad()
        ddp(inputs[group.rank()]).backward()
    expected = [torch.autograd.grad(model(x), model.into.weight)[0] for x in inputs]
    names = list(handle.state_dict()["kept"]["residual"])
    handle.detach()
    return model.into.weight.grad, (expected[0] + expected[1]) / 2, names


def test_tied_weights_are_exchanged_once(ranks):
    for mean, expected, names in ranks.run(train_tied, size=2):
        assert torch.equal(mean, expected)
        assert names == ["into.weight"]


# -- parameters without a gradient ---------------------------------------------------------------


def train_without(group, options, absent):
    """Step by step, ``absent(rank, step)`` has no gradient; what waits after each."""
    ddp = wrapped(group, Given(), find_unused_parameters=True)
    handle = compressed(ddp, options)
    history = []
    for step in range(4):
        given = gradients(group.rank(), step)
        for name in absent(group.rank(), step):
            del given[name]
        means = step_with(ddp, given)
        kept = handle.state_dict()["kept"]
        history.append((given, means, kept))
    handle.detach()
    return history


def on_rank_1(rank, step):
    return ["last", "first"] if rank == 1 and step in (1, 2) else []


def everywhere(rank, step):
    return ["last", "middle"] if step in (1, 2) else []


def few_blocks_then_most(step):
    return 0.7 if step else 0.4


UNUSED = [
    {"method": "topk"},
    {"method": "ok_topk"},
    {"method": "block_topk", "density": 0.4},
    {"method": "topk", "precision": "bfloat16"},
    {"method": "block_topk", "density": few_blocks_then_most, "precision": "float16"},
]


@pytest.mark.parametrize("absent", [on_rank_1, everywhere])
@pytest.mark.parametrize("options", UNUSED, ids=named)
def test_nothing_is_lost_of_parameters_without_gradient(ranks, options, absent):
    everybody = ranks.run(train_without, options, absent, size=2)
    for name in [name for names in GROUPS for name in names]:
        given = sum(step[0][name].double() for rank in everybody for step in rank if name in step[0])
        got = 2 * sum(step[1][name].double() for step in everybody[0] if name in step[1])
        owed = sum(rank[-1][2]["residual"][name].double() for rank in everybody)
        torch.testing.assert_close(got.reshape(-1) + owed, given.reshape(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [*UNUSED, {"momentum": 0.5}], ids=named)
def test_what_waits_for_a_parameter_that_nobody_used_stays(ranks, options):
    for history in ranks.run(train_without, options, everywhere, size=2):
        (_, _, before), (_, means, _), (_, _, after), _ = history
        assert any(before["residual"][name].any() for name in everywhere(0, 1))
        for name in everywhere(0, 1):
            assert name not in means
            for kind in ("residual", "velocity")[: len(before)]:
                assert torch.equal(after[kind][name], before[kind][name]), kind


# -- several models ------------------------------------------------------------------------------


def train_two(group):
    """A backward through both, and one after the other."""
    models = [wrapped(group, Given(), bucket_cap_mb=0.002) for _ in range(2)]
    handles = [compressed(models[0], {}), compressed(models[1], {"method": "ok_topk"})]
    means = [[], []]
    for step in range(4):
        given = gradients(group.rank(), step)
        losses = [ddp(given) for ddp in models]
        for ddp in models:
            ddp.zero_grad()
        if step % 2:
            sum(losses).backward()
        else:
            for loss in reversed(losses):
                loss.backward()
        for mine, ddp in zip(means, models, strict=True):
            mine.append(found(ddp))
    for handle in handles:
        handle.detach()
    return means


def test_two_models_do_not_disturb_each_other(ranks):
    alone = [ranks.run(train, {}, size=2), ranks.run(train, {"method": "ok_topk"}, size=2)]
    for rank, both in enumerate(ranks.run(train_two, size=2)):
        for means, runs in zip(both, alone, strict=True):
            for here, there in zip(means, runs[rank].means, strict=True):
                assert_same(here, there)


def train_over_a_group_of_its_own(group):
    """DDP on one group, the exchange on another of the same ranks."""
    other = dist.new_group([*range(group.size())])
    run = train(group, {"process_group": other})
    dist.destroy_process_group(other)
    return run


def test_process_group_of_its_own_gives_the_same(ranks):
    expected = ranks.run(train, {})
    for run, there in zip(ranks.run(train_over_a_group_of_its_own), expected, strict=True):
        for here, means in zip(run.means, there.means, strict=True):
            assert_same(here, means)


# -- clipping ------------------------------------------------------------------------------------


def norm_after_backward(group):
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {})
    step_with(ddp, gradients(group.rank(), 0))
    norm = torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    after = torch.nn.utils.get_total_norm(list(found(ddp).values()))
    handle.detach()
    return norm.item(), after.item()


def test_gradients_can_be_clipped_alike_on_all_ranks(ranks):
    norms = ranks.run(norm_after_backward, size=3)
    assert len(set(norms)) == 1
    assert norms[0][0] > 1
    assert norms[0][1] == pytest.approx(1.0, abs=1e-4)
