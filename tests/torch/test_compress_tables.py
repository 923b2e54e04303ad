"""compress(): embeddings with ``sparse=True``, beside layers that are not."""

import math
import sys

import pytest
import torch
from models import Scale
from training import compressed, wrapped

pytestmark = pytest.mark.torch

ROWS, WIDTH = 20, 4
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 0.01, torch.bfloat16: 0.05}


class Words(torch.nn.Module):
    """An embedding of either kind, and a layer."""

    def __init__(self, kind, is_sparse, dtype):
        super().__init__()
        self.table = kind(ROWS, WIDTH, sparse=is_sparse, dtype=dtype)
        self.layer = torch.nn.Linear(WIDTH, 8, bias=False, dtype=dtype)
        torch.nn.init.constant_(self.layer.weight, 0.25)
        with torch.no_grad():
            self.table.weight.copy_(torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) % 5)

    def forward(self, words, is_spoiled=False):
        one_bag = [torch.zeros(1, dtype=torch.int64)] if isinstance(self.table, BAG) else []
        rows = self.table(words, *one_bag)
        if is_spoiled:  # in the table alone
            rows.register_hook(lambda gradient: gradient * math.nan)
        return self.layer(rows).sum()


TABLE, BAG = torch.nn.Embedding, torch.nn.EmbeddingBag
# What rank r looks up in each step: repeated words, words of one rank alone, and none at all.
LOOKUPS = [
    [[1, 1, 3], [1, 19, 0], [3, 3, 3]],
    [[2, 5, 5], [7, 7, 2], []],
]
OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
    "adam": lambda model: torch.optim.SparseAdam([model.module.table.weight], lr=0.5),
}


def learn(group, kind, is_sparse, dtype=torch.float32, options=None, optimizer="sgd"):
    """The gradient of the table in each step, and the table in the end."""
    ddp = wrapped(group, Words(kind, is_sparse, dtype))
    handle = compressed(ddp, {"density": 1.0, **(options or {})}) if is_sparse else None
    optimiser = OPTIMIZERS[optimizer](ddp)
    means = []
    for lookups in LOOKUPS:
        ddp.zero_grad()
        words = torch.tensor(lookups[group.rank()], dtype=torch.int64)
        ddp(words).backward()
        gradient = ddp.module.table.weight.grad
        means.append((gradient.layout, gradient.to_dense().clone(), ddp.module.layer.weight.grad.clone()))
        optimiser.step()
    if handle is not None:
        handle.detach()
    return means, ddp.module.table.weight.detach()


@pytest.mark.parametrize(
    ("size", "kind", "dtype"),
    [
        *((size, kind, torch.float32) for size in (1, 2, 3) for kind in (TABLE, BAG)),
        *((2, TABLE, dtype) for dtype in TOLERANCE if dtype != torch.float32),
    ],
)
def test_sparse_table_gets_the_mean_that_dense_ddp_has(ranks, size, kind, dtype):
    dense = ranks.run(learn, kind, False, torch.float64, size=size)
    for (means, _), (expected, _) in zip(ranks.run(learn, kind, True, dtype, size=size), dense, strict=True):
        for (layout, table, layer), (_, dense_table, dense_layer) in zip(means[:1], expected, strict=False):
            assert layout == torch.sparse_coo
            torch.testing.assert_close(table, dense_table.to(dtype))
            torch.testing.assert_close(layer, dense_layer.to(dtype))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["topk", "exact"])
def test_ranks_learn_the_same_table(ranks, method, optimizer):
    one, *others = ranks.run(learn, TABLE, True, torch.float32, {"method": method}, optimizer, size=3)
    for means, table in others:
        assert torch.equal(table, one[1])
        for (_, gradient, _), (_, there, _) in zip(means, one[0], strict=True):
            assert torch.equal(gradient, there)
    touched = {word for step in LOOKUPS for words in step for word in words}
    before = Words(TABLE, True, torch.float32).table.weight
    assert {row for row in range(ROWS) if not torch.equal(one[1][row], before[row])} == touched


def learn_with_many_ranks(group, dtype):
    """Two ranks are many."""
    module = sys.modules["sparsewire.torch.compress"]
    module.MOST_RANKS_FOR_ROWS = 1
    try:
        return learn(group, TABLE, True, dtype)
    finally:
        module.MOST_RANKS_FOR_ROWS = 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_ranks_sum_entries_to_the_bits_of_gathered_rows(ranks, dtype):
    few, many = ranks.run(learn, TABLE, True, dtype, size=2), ranks.run(learn_with_many_ranks, dtype, size=2)
    for (means, table), (expected, expected_table) in zip(many, few, strict=True):
        assert torch.equal(table, expected_table)
        for (layout, gradient, _), (_, there, _) in zip(means, expected, strict=True):
            assert layout == torch.sparse_coo
            assert torch.equal(gradient, there)


def learn_table_alone(group):
    """A model without any dense gradient."""
    torch.manual_seed(0)
    ddp = wrapped(group, torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True))
    handle = compressed(ddp, {})
    for _ in range(2):
        ddp.zero_grad()
        ddp(torch.tensor([[group.rank(), 5]])).sum().backward()
    stats, state = handle.stats(), handle.state_dict()
    handle.detach()
    return ddp.module.weight.grad.to_dense(), stats["bytes_sent"], state["groups"]


def test_model_may_have_sparse_tables_alone(ranks):
    expected = torch.zeros(ROWS, WIDTH)
    expected[[0, 1]], expected[5] = 0.5, 1.0
    for gradient, bytes_sent, groups in ranks.run(learn_table_alone, size=2):
        assert torch.equal(gradient, expected)
        assert bytes_sent > 0
        assert groups == []


def learn_with_one_spoiled(group):
    """What waits before and after a step in which the table of rank 1 has a gradient that is not finite."""
    ddp = wrapped(group, Words(TABLE, True, torch.float32))
    handle = compressed(ddp, {"density": 0.1, "scaler": Scale()})
    kept = []
    for is_spoiled in (False, group.rank() == 1):
        ddp.zero_grad()
        ddp(torch.tensor([group.rank() + 1]), is_spoiled).backward()
        kept.append(handle.state_dict()["kept"]["residual"]["layer.weight"])
    handle.detach()
    return kept, ddp.module.table.weight.grad.to_dense()


def test_step_that_a_scaler_skips_for_a_table_is_undone(ranks):
    for (before, after), gradient in ranks.run(learn_with_one_spoiled, size=2):
        assert gradient[2].isnan().all()
        assert before.any()
        assert torch.equal(after, before)


def learn_after_detach(group):
    ddp = wrapped(group, Words(TABLE, True, torch.float32))
    handle = compressed(ddp, {})
    handle.detach()
    ddp(torch.tensor([group.rank()])).backward()
    return ddp.module.table.weight.grad.to_dense()


def test_detached_model_has_sparse_tables_too(ranks):
    for gradient in ranks.run(learn_after_detach, size=2):
        assert gradient.sum(dim=1).tolist() == [4.0, 4.0] + [0.0] * (ROWS - 2)
