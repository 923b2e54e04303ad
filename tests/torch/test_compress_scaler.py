"""compress(): gradients that are not finite, and losses whose scale changes."""

import math

import pytest
import torch
from models import GROUPS, Given, Scale, gradients
from training import assert_same, compressed, found, named, step_with, train, wrapped

pytestmark = pytest.mark.torch

METHODS = [
    {"method": "topk"},
    {"method": "ok_topk"},
    {"method": "block_topk", "density": 0.4},
    {"momentum": 0.5},
    {"precision": "bfloat16"},
    {"on_device": True},
]


def spoil(given, name, value):
    given[name].view(-1)[3] = value
    return given


def train_with_one_spoiled(group, options, scaler, name, value, is_spoiled=True):
    """Four steps; in the third, rank 1 has a value that is not finite.  What waits before and after it."""
    ddp = wrapped(group, Given(), bucket_cap_mb=0.002)
    handle = compressed(ddp, {"scaler": scaler, **options})
    means, kept = [], []
    for step in [0, 1, None, 2, 3] if is_spoiled else [0, 1, 2, 3]:
        given = gradients(group.rank(), 9 if step is None else step)
        if step is None and group.rank() == 1:
            spoil(given, name, value)
        means.append(step_with(ddp, given))
        kept.append(handle.state_dict()["kept"])
    handle.detach()
    return means, kept


def are_finite(tensors):
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


@pytest.mark.parametrize("name", ["first", "last_bias"])
@pytest.mark.parametrize("options", METHODS, ids=named)
def test_step_that_a_scaler_skips_is_undone_on_all_ranks(ranks, options, name):
    """In all groups, and whether it was compressed or not."""
    runs = ranks.run(train_with_one_spoiled, options, Scale(), name, math.inf, size=2)
    undisturbed = ranks.run(train_with_one_spoiled, options, Scale(), name, math.inf, False, size=2)
    for (means, kept), (others, _) in zip(runs, undisturbed, strict=True):
        assert not means[2][name].isfinite().all()
        for kind in kept[1]:
            assert_same(kept[2][kind], kept[1][kind])
        for here, there in zip(means[:2] + means[3:], others, strict=True):
            assert_same(here, there)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("options", [*METHODS, {"method": "exact"}, {"method": "dense"}], ids=named)
def test_what_is_not_finite_reaches_all_ranks_and_no_residual(ranks, options, value):
    for means, kept in ranks.run(train_with_one_spoiled, options, None, "first", value, size=3):
        assert not means[2]["first"].isfinite().all()
        assert are_finite({name: means[2][name] for name in means[2] if name not in GROUPS[1]})
        assert are_finite(means[3])
        assert are_finite(means[4])
        for tensors in kept[-1].values():
            assert are_finite(tensors)


def test_ranks_keep_what_they_could_not_send(ranks):
    """Without a scaler nobody says that the step is skipped: gradients that were finite wait."""
    runs = ranks.run(train_with_one_spoiled, {}, None, "first", math.nan, size=2)
    for rank, (_, kept) in enumerate(runs):
        for name in GROUPS[1]:
            given = gradients(rank, 9)[name].reshape(-1)
            expected = kept[1]["residual"][name] + given
            if (rank, name) == (1, "first"):
                expected[3] = 0  # where it was not
            assert torch.equal(kept[2]["residual"][name], expected)


def overflow(group):
    """Gradients that are finite, whose sum is not."""
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {})
    given = gradients(group.rank(), 0)
    given["head"][:] = 3e38
    means = step_with(ddp, given)
    kept = handle.state_dict()["kept"]["residual"]
    handle.detach()
    return means, kept


def test_sum_that_overflows_reaches_all_ranks_and_no_residual(ranks):
    for means, kept in ranks.run(overflow, size=2):
        assert means["head"].isinf().any()
        assert are_finite(kept)


# -- the scale -----------------------------------------------------------------------------------


def train_scaled(group, scales, options):
    scaler = Scale()
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {"scaler": scaler, **options})
    means = []
    for step, scaler.scale in enumerate(scales):
        given = gradients(group.rank(), step)
        scaled = step_with(ddp, {name: tensor * scaler.scale for name, tensor in given.items()})
        means.append({name: tensor / scaler.scale for name, tensor in scaled.items()})
    handle.detach()
    return means


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}, {"on_device": True}], ids=named)
def test_residuals_follow_the_scale(ranks, options):
    expected = ranks.run(train, options, size=2)
    for means, there in zip(
        ranks.run(train_scaled, [1, 1024, 512, 4], options, size=2), expected, strict=True
    ):
        for one, other in zip(means, there.means, strict=True):
            assert_same(one, other)


def train_with_scaler(group, is_spoiled):
    """As one does: a real GradScaler, an optimiser, and one step that overflows on rank 0."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {"scaler": scaler})
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.25)
    scales = []
    for step in [0, None, 1, 2, 3] if is_spoiled else range(4):
        given = gradients(group.rank(), 9 if step is None else step)
        if step is None and group.rank() == 0:
            spoil(given, "head", math.inf)
        optimizer.zero_grad()
        scaler.scale(ddp(given)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    handle.detach()
    return {name: value.detach() for name, value in ddp.module.named_parameters()}, scales


def test_training_with_a_scaler_goes_on_after_a_skipped_step(ranks):
    """The scale is halved, later doubled, and the model is the one that never saw the skipped step."""
    undisturbed = ranks.run(train_with_scaler, False, size=2)
    for (model, scales), (there, _) in zip(
        ranks.run(train_with_scaler, True, size=2), undisturbed, strict=True
    ):
        assert scales == [1024, 512, 512, 1024, 1024]
        assert_same(model, there)


def leave_at_another_scale(group):
    scaler = Scale(2.0)
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {"scaler": scaler})
    step_with(ddp, {name: 2 * tensor for name, tensor in gradients(group.rank(), 0).items()})
    left = handle.state_dict()["kept"]["residual"]["head"] / 2
    handle.detach()
    scaler.scale = 8.0
    ddp.zero_grad()
    ddp({name: 8 * tensor for name, tensor in gradients(group.rank(), 1).items()}).backward()
    return left, found(ddp)["head"] / 8


def test_detached_model_gets_what_was_left_at_its_scale(ranks):
    runs = ranks.run(leave_at_another_scale, size=2)
    expected = sum(left + gradients(rank, 1)["head"] for rank, (left, _) in enumerate(runs)) / 2
    for _, mean in runs:
        assert torch.equal(mean, expected)
