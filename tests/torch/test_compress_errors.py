"""compress(): what goes wrong is raised on every rank, from compress() or from backward(), by its name."""

import logging
import os
import re
import signal
import time

import pytest
import torch
from models import GROUPS, Given, Scale, gradients
from ranks import Ranks
from training import assert_same, compressed, step_with, wrapped

import sparsewire as sw
import sparsewire.torch as swt

pytestmark = pytest.mark.torch


# -- compress() ----------------------------------------------------------------------------------


def refused_then_accepted(group, options, askers):
    """What some ranks ask for is refused on all; then the same model is compressed."""
    ddp = wrapped(group, Given())
    said = ""
    try:
        compressed(ddp, options if group.rank() in askers else {})
    except sw.InputError as error:
        said = str(error)
    handle = compressed(ddp, {})
    step_with(ddp, gradients(group.rank(), 0))
    handle.detach()
    return said


def schedule(step):
    return 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "topkk"}, "unknown method 'topkk'; known are topk, ok_topk"),
        ({"parameters": "encoder.*"}, "no parameter is called like 'encoder.*'; they are first, first_bias"),
        ({"density": 0.0}, "density is 0.0"),
        ({"density": schedule, "warmup_steps": 3}, "density is a schedule already"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"method": "exact", "momentum": 0.5}, "momentum correction is for residuals; 'exact' has none"),
        ({"method": "exact", "precision": "float16"}, "'exact' loses nothing"),
        ({"method": "ok_topk", "precision": "float16"}, "ok_topk sends values as they are"),
        ({"method": "auto", "precision": "float16"}, "auto_topk sends values as they are"),
        ({"precision": "float7"}, "unknown precision 'float7'"),
        ({"min_size": -1}, "min_size is -1"),
        ({"group_bytes": 0}, "group_bytes is 0"),
    ],
)
def test_options_that_make_no_sense_on_one_rank_are_refused_on_all(ranks, options, message):
    for said in ranks.run(refused_then_accepted, options, [1], size=2):
        assert f"rank 1: {message}" in said


def test_options_that_make_no_sense_on_all_ranks_are_refused(ranks):
    for said in ranks.run(refused_then_accepted, {"method": "topkk"}, [0, 1], size=2):
        assert "unknown method 'topkk'" in said


@pytest.mark.parametrize(
    ("options", "here", "there"),
    [
        ({"density": 0.1}, 0.05, 0.1),
        ({"density": schedule}, 0.05, 0.1),
        ({"method": "ok_topk"}, "topk", "ok_topk"),
        ({"min_size": 4096}, 16, 4096),
        ({"group_bytes": 1 << 20}, 2048, 1 << 20),
        ({"parameters": "head"}, "['*']", "['head']"),
        ({"precision": "float16"}, None, "float16"),
        ({"precision": sw.QSGD(4, bucket=64)}, None, "QSGD"),
        ({"momentum": 0.5}, 0.0, 0.5),
        ({"on_device": True}, None, True),
        ({"scaler": Scale()}, False, True),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_an_option_that_differs_on_one_rank_is_named_on_all(ranks, options, here, there):
    [name] = options
    expected = f"the {name} must be the same on every rank: it is {here} on rank 0 and {there}"
    for said in ranks.run(refused_then_accepted, options, [1], size=3):
        assert said.startswith(expected)
        assert said.endswith("on rank 1")


def compress_models_of(group, models):
    """What compress() says of a model for each rank: names, shapes and a type."""
    shapes, dtype = models[group.rank()]
    ddp = wrapped(group, Given(shapes, dtype), init_sync=False)  # DDP itself compares shapes only
    try:
        compressed(ddp, {"group_bytes": 1024})
    except sw.InputError as error:
        return str(error)


@pytest.mark.parametrize(
    ("other", "dtype", "difference"),
    [
        ({"a": (20,), "c": (3, 8)}, "float32", "it is b of shape [3, 8] {} and c of shape [3, 8]"),
        ({"a": (20,), "b": (8, 3)}, "float32", "it is b of shape [3, 8] {} and b of shape [8, 3]"),
        ({"a": (20,)}, "float32", "it is b of shape [3, 8] {} and None"),
        ({"b": (3, 8), "a": (20,)}, "float32", "it is a of shape [20] {} and b of shape [3, 8]"),
        (
            {"a": (20,), "b": (3, 8)},
            "float64",
            "it is a of shape [20] {} and a of shape [20] and type float64",
        ),
    ],
    ids=["name", "shape", "number", "order", "type"],
)
def test_a_parameter_that_differs_on_one_rank_is_named_on_all(ranks, other, dtype, difference):
    same = {"a": (20,), "b": (3, 8)}, torch.float32
    models = [same, same, (other, getattr(torch, dtype))]
    place = 0 if "it is a" in difference else 1
    expected = f"the parameter {place} of the model must be the same on every rank: {difference}"
    for said in ranks.run(compress_models_of, models, size=3):
        assert said.startswith(expected.format("and type float32, in group 0, on rank 0"))
        assert said.endswith("on rank 2")


def compress_twice(group):
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {})
    try:
        compressed(ddp, {})
    except sw.InputError as error:
        return str(error)
    finally:
        step_with(ddp, gradients(group.rank(), 0))
        handle.detach()


def test_model_is_compressed_once(ranks):
    for said in ranks.run(compress_twice, size=2):
        assert "once" in said


def test_model_has_to_be_distributed():
    with pytest.raises(sw.InputError, match=r"takes DistributedDataParallel\(model\), not a Linear"):
        swt.compress(torch.nn.Linear(2, 2))


# -- backward() ----------------------------------------------------------------------------------


class FailsOnce:
    """A schedule that is wrong once, on one rank, in step 2."""

    def __init__(self, fails):
        self.fails = fails

    def __call__(self, step):
        if step == 2 and self.fails:
            self.fails = False
            return 2.0
        return 0.05


def fail_on_rank_1(group, method, on_device):
    ddp = wrapped(group, Given(), bucket_cap_mb=0.002)
    options = {"density": FailsOnce(group.rank() == 1), "method": method, "on_device": on_device}
    handle = compressed(ddp, options)
    means, said = [], ""
    for step in range(5):
        given = gradients(group.rank(), step)
        try:
            means.append(step_with(ddp, given))
        except sw.InputError as error:
            said += f"{step}: {error}"
    state = handle.state_dict()
    handle.detach()
    return means, said, state


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("method", ["topk", "ok_topk", "block_topk"])
def test_selection_that_fails_on_one_rank_is_raised_on_all_and_the_next_step_works(ranks, method, on_device):
    runs = ranks.run(fail_on_rank_1, method, on_device, size=3)
    for means, said, state in runs:
        assert said == "2: rank 1: the schedule's density at step 2 is 2.0; it must be above 0 and at most 1"
        assert len(means) == 4
        for here, there in zip(means, runs[0][0], strict=True):
            assert_same(here, there)
        steps = [(facts["step"], facts["inner"]["step"]) for facts in state["groups"]]
        assert steps == [(4, 4), (5, 5)], "the group that failed repeats its step, on all ranks"


def test_ranks_whose_exchange_was_refused_keep_their_gradients(ranks):
    """Only the rank that could not select is without its own."""
    runs = ranks.run(fail_on_rank_1, "topk", False, size=3)
    for name in GROUPS[0]:
        given = sum(gradients(rank, step)[name].double() for rank in range(3) for step in range(5))
        got = 3 * sum(means[name].double() for means in runs[0][0])
        owed = sum(state["kept"]["residual"][name].double() for _, _, state in runs)
        missing = (given - got).reshape(-1) - owed
        torch.testing.assert_close(missing, gradients(1, 2)[name].double().reshape(-1), rtol=0, atol=1e-5)


def reach_the_last_buckets(group, ddp):
    """DDP makes its buckets anew when a second step begins: a collective of its own."""
    for step in range(2):
        step_with(ddp, gradients(group.rank(), step))


def come_late(group):
    """Rank 1 does not come to the step until the other has given up."""
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {"timeout": 1.0})
    reach_the_last_buckets(group, ddp)
    errors = []
    if group.rank() == 0:
        for step in range(2, 4):
            try:
                step_with(ddp, gradients(group.rank(), step))
            except sw.SparsewireError as error:
                errors.append(error)
    group.barrier().wait()
    handle.detach()
    return errors


def test_rank_that_never_comes_is_a_time_out(ranks):
    first, second = ranks.run(come_late, size=2)[0]
    assert isinstance(first, sw.CollectiveTimeout)
    assert "rank 1" in str(first)
    assert isinstance(second, sw.TransportError)


def join(group):
    """Rank 0 has less to do than rank 1."""
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {"timeout": 1.0})
    try:
        with ddp.join():
            for step in range(2 + group.rank()):
                step_with(ddp, gradients(group.rank(), step))
    except sw.InputError as error:
        return str(error)
    finally:
        group.barrier().wait()
        handle.detach()


def test_ranks_cannot_join_early(ranks):
    for said in ranks.run(join, size=2):
        assert "rank 0: DDP's join() is not supported" in said


def die(group):
    ddp = wrapped(group, Given())
    compressed(ddp, {})
    reach_the_last_buckets(group, ddp)
    if group.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    step_with(ddp, gradients(group.rank(), 2))


def test_rank_that_dies_is_named_by_the_others():
    own_ranks = Ranks()
    outcomes = own_ranks.outcomes(die, size=3)
    own_ranks.stop()
    assert isinstance(outcomes.pop(1), EOFError)
    for outcome in outcomes:
        assert isinstance(outcome, sw.PeerLostError), outcome
        assert "rank 1 is gone" in str(outcome)


def compress_alone(group):
    """Only rank 0 calls compress()."""
    from sparsewire.drivers import waiting

    waiting.FIRST_S, before = 0.2, waiting.FIRST_S
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("sparsewire").addHandler(handler)
    ddp = wrapped(group, Given())
    try:
        if group.rank() == 0:
            swt.compress(ddp, timeout=1.0)
    except sw.CollectiveTimeout as error:
        said.append(str(error))
    finally:
        logging.getLogger("sparsewire").removeHandler(handler)
        waiting.FIRST_S = before
    time.sleep(1.5 * (group.rank() > 0))  # gloo ends the call of a rank whose peers have left
    return said


def test_a_rank_that_calls_compress_alone_says_whom_it_waits_for():
    ranks = Ranks()
    try:
        said, *_ = ranks.run(compress_alone, size=3)
    finally:
        ranks.stop()
    waits = r"rank 0 has waited \d+ s for rank 1, 2 of the process group to make the same call"
    assert re.fullmatch(waits, said[0])
    assert "rank 1, 2 of the process group" in said[-1]


def lose_an_answer(group):
    """An answer that the worker never writes, for whatever reason."""
    from sparsewire.torch import handle as module

    module.MARGIN_S, before = 0.5, module.MARGIN_S
    ddp = wrapped(group, Given())
    handle = compressed(ddp, {"timeout": 1.0})
    handle._finish = lambda job, request: None
    since = time.monotonic()
    try:
        step_with(ddp, gradients(group.rank(), 0))
    except sw.TransportError as error:
        return str(error), time.monotonic() - since
    finally:
        module.MARGIN_S = before
        handle.detach()
    return None


def test_backward_ends_with_an_error_if_an_answer_is_never_written(ranks):
    for rank, (message, seconds) in enumerate(ranks.run(lose_an_answer, size=2)):
        assert message.startswith(f"rank {rank}: the means of some gradients were not written within 1.5 s")
        assert seconds < 10
