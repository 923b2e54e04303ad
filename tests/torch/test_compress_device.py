"""compress(on_device=True): torch operations, as on an accelerator, select the same as the kernels do."""

import pytest
import torch
from models import EVERY_METHOD, GROUPS, gradients
from training import assert_same, named, train

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "options",
    [
        *EVERY_METHOD,
        {"momentum": 0.9},
        {"method": "ok_topk", "momentum": 0.9},
        {"density": 1.0},
    ],
    ids=named,
)
def test_torch_operations_give_the_bits_of_the_kernels(ranks, options):
    assert_same_bits(ranks, options, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", ["topk", "exact"])
def test_torch_operations_give_the_bits_of_the_kernels_for_other_types(ranks, method, dtype):
    assert_same_bits(ranks, {"method": method}, dtype)


def assert_same_bits(ranks, options, dtype):
    by_kernels = ranks.run(train, options, range(4), None, dtype, size=2)
    by_torch = ranks.run(train, options | {"on_device": True}, range(4), None, dtype, size=2)
    for here, there in zip(by_torch, by_kernels, strict=True):
        for one, other in zip(here.means, there.means, strict=True):
            assert_same(one, other)
        for kind, tensors in there.state["kept"].items():
            assert_same(here.state["kept"][kind], tensors)
        assert here.stats["bytes_sent"] == there.stats["bytes_sent"]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_what_rounding_leaves_out_waits_but_for_that_of_sums(ranks, precision):
    runs = ranks.run(train, {"on_device": True, "precision": precision}, size=2)
    for here, there in zip(runs[0].means, runs[1].means, strict=True):
        assert_same(here, there)
    half = torch.finfo(getattr(torch, precision)).eps / 2
    for name in [name for names in GROUPS for name in names]:
        given = sum(gradients(rank, step)[name].double() for rank in range(2) for step in range(4))
        got = 2 * sum(means[name].double() for means in runs[0].means)
        largest = 2 * sum(means[name].double().abs() for means in runs[0].means)
        owed = sum(run.state["kept"]["residual"][name].double() for run in runs)
        lost = (got.reshape(-1) + owed - given.reshape(-1)).abs()
        assert (lost <= 1.01 * half * largest.reshape(-1) + 1e-6).all()
