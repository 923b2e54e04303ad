"""Train a small language model with DDP, and send 1% of its gradients.  A second run continues the first.

torchrun --standalone --nproc-per-node 2 examples/pytorch/ddp.py
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sparsewire.torch as swt

CONTEXT, BATCH, STEPS = 16, 64, 60
TEXT = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # of the standard library


def batch(step):
    """Characters and the ones that follow them; they differ between ranks and steps."""
    seed = step * dist.get_world_size() + dist.get_rank()
    starts = torch.randint(len(TEXT) - CONTEXT, (BATCH,), generator=torch.Generator().manual_seed(seed))
    windows = TEXT[starts[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, -1]


dist.init_process_group("gloo")
torch.manual_seed(0)
layers = nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 512), nn.ReLU(), nn.Linear(512, 256)
model = DistributedDataParallel(nn.Sequential(*layers))
handle = swt.compress(model, density=0.01)  # the only line that Sparsewire needs
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

checkpoint = Path(f"ddp-rank{dist.get_rank()}.pt")  # every rank keeps its own residuals
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    handle.load_state_dict(saved["handle"])

begin = int(handle.stats()["steps"])
for step in range(begin, begin + STEPS):
    characters, following = batch(step)
    loss = nn.functional.cross_entropy(model(characters), following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and (step + 1) % 30 == 0:
        fewer = handle.stats()["ratio"]
        print(f"step {step + 1}: loss {loss:.3f}, {fewer:.0f} times fewer bytes sent than by a dense sum")

torch.save(
    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "handle": handle.state_dict()},
    checkpoint,
)
dist.destroy_process_group()
