"""A large embedding of which a batch touches few rows: only these rows travel, and nothing is lost.

torchrun --standalone --nproc-per-node 2 examples/pytorch/embeddings.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sparsewire.torch as swt

WORDS, WIDTH, BATCH, STEPS = 20_000, 32, 64, 10


def batch(step):
    """Word numbers, small ones more often, and whether their sum is even; they differ between ranks."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    words = (WORDS * torch.rand(BATCH, 8, generator=generator) ** 4).long()
    return words, words.sum(1) % 2


def train(method=None, sparse=False):
    """The weights after some steps, and the handle of ``compress``."""
    torch.manual_seed(0)
    table = nn.EmbeddingBag(WORDS, WIDTH, sparse=sparse)
    model = DistributedDataParallel(nn.Sequential(table, nn.Linear(WIDTH, 2)))
    handle = swt.compress(model, method=method) if method else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        words, labels = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words), labels).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()), handle


dist.init_process_group("gloo")
dense, _ = train()
for title, options in [
    ("a dense gradient", {"method": "exact"}),
    ("a sparse one (sparse=True)", {"method": "exact", "sparse": True}),
]:
    weights, handle = train(**options)
    sent, difference = handle.stats()["bytes_sent"], (weights - dense).abs().max()
    if dist.get_rank() == 0:
        print(
            f"{title}: {sent:,} bytes in a step, where {dense.nbytes:,} are the gradient; "
            f"weights differ from those of dense DDP by at most {difference:.0e}"
        )
dist.destroy_process_group()
