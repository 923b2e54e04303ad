"""A rank dies, torchrun restarts all ranks, and they end with the same bits as without the failure.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    torchrun --standalone --nproc-per-node 2 --max-restarts 1 examples/pytorch/elastic.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sparsewire.torch as swt

STEPS, SAVE_EVERY, DIES_AT = 20, 5, 13
CHECKPOINT = "elastic.pt"


def save(model, optimizer, handle):
    """One file with the states of all ranks; it is replaced at once, so it is always complete."""
    handles = [None] * dist.get_world_size()
    dist.all_gather_object(handles, handle.state_dict())
    if rank == 0:
        torch.save([model.state_dict(), optimizer.state_dict(), handles], "elastic.new")
        os.replace("elastic.new", CHECKPOINT)


def train(saves=False, dies=False):
    """The weights at the end, and the step at which this attempt began."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 100)))
    handle = swt.compress(model, density=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if saves and os.path.exists(CHECKPOINT):
        for part, state in zip((model, optimizer, handle), torch.load(CHECKPOINT), strict=True):
            part.load_state_dict(state)
    begin = int(handle.stats()["steps"])
    for step in range(begin, STEPS):
        if saves and step % SAVE_EVERY == 0:
            save(model, optimizer, handle)
        if dies and step == DIES_AT:
            os._exit(1)
        samples = torch.randn(32, 100, generator=torch.Generator().manual_seed(STEPS * rank + step))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(samples), samples.sign()).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()), begin


dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
weights, begin = train(saves=True, dies=rank == 1 and attempt == 0)
undisturbed, _ = train()
if rank == 0:
    os.remove(CHECKPOINT)
    print(f"restart {attempt} went on from step {begin}")
    print(f"as without the failure, same bits: {torch.equal(weights, undisturbed)}")
dist.destroy_process_group()
