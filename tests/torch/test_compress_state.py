"""Compression.state_dict(), load_state_dict() and detach(): training goes on as if nothing had happened."""

import io
import itertools

import pytest
import torch
from models import EVERY_METHOD, GROUPS, SHAPES, Given, gradients
from training import assert_same, compressed, named, step_with, train, wrapped

import sparsewire as sw

pytestmark = pytest.mark.torch

NAMES = [*itertools.chain(*GROUPS)]


def saved(state):
    """As it comes back from a file, by the loader that takes nothing but tensors and plain values."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# -- the same number of ranks --------------------------------------------------------------------


def train_interrupted(group, options, dtype):
    """Another DDP model goes on, whose buckets are those of a first step again."""
    ddp_options = {"bucket_cap_mb": 0.002}
    before = train(group, options, range(3), ddp_options, dtype)
    after = train(group, options, range(3, 6), ddp_options, dtype, saved(before.state))
    return before.means + after.means, after


@pytest.mark.parametrize(
    "options",
    [
        *EVERY_METHOD,
        {"momentum": 0.9},
        {"precision": "float16"},
        {"precision": "qsgd8"},
        {"warmup_steps": 5},
        {"on_device": True, "momentum": 0.9},
    ],
    ids=named,
)
def test_restarted_training_has_the_same_bits(ranks, options):
    assert_restart_changes_nothing(ranks, options, torch.float32)


def test_restarted_training_of_half_type_has_the_same_bits(ranks):
    assert_restart_changes_nothing(ranks, {"momentum": 0.9}, torch.bfloat16)


def assert_restart_changes_nothing(ranks, options, dtype):
    whole = ranks.run(train, options, range(6), {"bucket_cap_mb": 0.002}, dtype, size=2)
    runs = ranks.run(train_interrupted, options, dtype, size=2)
    for (means, after), there in zip(runs, whole, strict=True):
        for one, other in zip(means, there.means, strict=True):
            assert_same(one, other)
        for kind, tensors in there.state["kept"].items():
            assert_same(after.state["kept"][kind], tensors)
        assert after.stats["steps"] == 6


def test_state_is_a_copy(ranks):
    [run] = ranks.run(keep_state_over_a_step, size=1)
    assert_same(*run)


def keep_state_over_a_step(group):
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {})
    step_with(ddp, gradients(0, 0))
    kept = handle.state_dict()["kept"]["residual"]
    then = {name: tensor.clone() for name, tensor in kept.items()}
    step_with(ddp, gradients(0, 1))
    handle.detach()
    return kept, then


# -- another number of ranks ---------------------------------------------------------------------


def owed(states, name):
    """What the mean still has to get."""
    return sum(state["kept"]["residual"][name].double() for state in states) / len(states)


@pytest.mark.parametrize("method", ["topk", "ok_topk"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (1, 2), (3, 1), (2, 2)])
def test_what_is_owed_survives_another_number_of_ranks(ranks, before, after, method):
    states = [run.state for run in ranks.run(train, {"method": method}, size=before)]
    loaded = ranks.run(train, {"method": method}, [], None, torch.float32, states, size=after)
    for name in NAMES:
        after_loading = owed([run.state for run in loaded], name)
        torch.testing.assert_close(after_loading, owed(states, name), rtol=0, atol=1e-6)
    runs = ranks.run(train, {"method": method}, range(4, 6), None, torch.float32, states, size=after)
    for run in runs:
        assert run.stats["steps"] == 6
        for here, there in zip(run.means, runs[0].means, strict=True):
            assert_same(here, there)


@pytest.mark.parametrize(
    "options", [{"on_device": True}, {"method": "block_topk"}, {"method": "ok_topk"}], ids=named
)
def test_another_device_or_method_takes_over_what_is_owed(ranks, options):
    loaded = states = [run.state for run in ranks.run(train, {}, size=2)]
    for there_and_back in (options, {}):
        runs = ranks.run(train, there_and_back, [], None, torch.float32, loaded, size=2)
        loaded = [run.state for run in runs]
        for run, state in zip(runs, states, strict=True):
            assert_same(run.state["kept"]["residual"], state["kept"]["residual"])
            assert run.stats["steps"] == 4


def test_groups_of_another_size_take_over_what_is_owed(ranks):
    states = [run.state for run in ranks.run(train, {}, size=2)]
    loaded = ranks.run(train, {"group_bytes": 1}, [], None, torch.float32, states, size=2)
    for run, state in zip(loaded, states, strict=True):
        assert_same(run.state["kept"]["residual"], state["kept"]["residual"])


# -- what is refused -----------------------------------------------------------------------------


def load(group, changes, options, count):
    state = train(group, {}, range(1)).state | changes
    ddp = wrapped(group, Given())
    handle = compressed(ddp, options)
    try:
        handle.load_state_dict(state if count is None else [state] * count)
    except sw.InputError as error:
        return str(error)
    finally:
        handle.detach()


@pytest.mark.parametrize(
    ("changes", "options", "count", "message"),
    [
        ({"format": 99}, {}, None, "a state of format 99"),
        (
            {},
            {"momentum": 0.5},
            None,
            "the mean_velocity of first_bias has 7 values here and 0 in what was saved",
        ),
        ({}, {"min_size": 401}, None, "the residual of head has 0 values here and 300"),
        ({"ranks": 3}, {}, None, "saved by 3 ranks, and these are 2"),
        ({}, {}, 3, "saved by 2 ranks"),
        ({}, {}, 0, "give every rank the list of what all ranks saved"),
    ],
)
def test_state_of_something_else_is_refused(ranks, changes, options, count, message):
    for said in ranks.run(load, changes, options, count, size=2):
        assert message in said


# -- detach --------------------------------------------------------------------------------------


def train_and_detach(group, options, dtype):
    ddp = wrapped(group, Given(dtype=dtype))
    handle = compressed(ddp, options)
    means = [step_with(ddp, gradients(group.rank(), step, dtype=dtype)) for step in range(2)]
    handle.detach()
    handle.detach()
    means += [step_with(ddp, gradients(group.rank(), step, dtype=dtype)) for step in range(2, 5)]
    return means, handle.stats()["steps"]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"method": "ok_topk"}, {"method": "exact"}], ids=named)
def test_detached_model_gets_what_was_left_and_is_dense_then(ranks, size, options):
    runs = ranks.run(train_and_detach, options, torch.float32, size=size)
    given = [[gradients(rank, step) for rank in range(size)] for step in range(5)]
    for means, steps in runs:
        assert steps == 2
        for name in SHAPES:
            sums = [sum(tensors[name] for tensors in everybody) for everybody in given]
            assert torch.equal(size * sum(step[name] for step in means[:3]), sum(sums[:3]))
            for step in (3, 4):
                assert torch.equal(means[step][name], sums[step] / size)


def test_detached_model_of_half_type_is_dense(ranks):
    one, other = ranks.run(train_and_detach, {}, torch.bfloat16, size=2)
    for here, there in zip(one[0], other[0], strict=True):
        assert_same(here, there)


def detach_unused(group):
    """What was left waits until its parameter is used again."""
    ddp = wrapped(group, Given(), find_unused_parameters=True)
    handle = compressed(ddp, {})
    means = [step_with(ddp, gradients(group.rank(), 0))]
    handle.detach()
    used = gradients(group.rank(), 1)
    unused = {name: used.pop(name) for name in ["head", "first"]}
    means.append(step_with(ddp, used))
    means.append(step_with(ddp, used | unused))
    return [{name: step[name] for name in unused if name in step} for step in means]


def test_what_was_left_waits_for_its_parameter(ranks):
    for first, without, then in ranks.run(detach_unused, size=2):
        assert not without
        for name in first:
            given = sum(gradients(rank, step)[name] for rank in range(2) for step in range(2))
            assert torch.equal(2 * (first[name] + then[name]), given)
