"""Accelerate: compress the prepared model, and register its state for checkpoints.

torchrun --standalone --nproc-per-node 2 examples/pytorch/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

import sparsewire.torch as swt


class StatesOfAllRanks:
    """The states of all ranks as one, because Accelerate writes what the main process returns."""

    def __init__(self, handle):
        self.handle = handle

    def state_dict(self):
        return {"ranks": gather_object([self.handle.state_dict()])}

    def load_state_dict(self, state):
        self.handle.load_state_dict(state["ranks"])


def train(accelerator, checkpoint=None):
    """The weights after twenty steps, and how many times fewer bytes the last one has sent."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 100))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    handle = swt.compress(model, density=0.02)
    accelerator.register_for_checkpointing(StatesOfAllRanks(handle))
    if checkpoint:
        accelerator.load_state(checkpoint)
    for step in range(int(handle.stats()["steps"]), 20):
        if step == 10:
            accelerator.save_state("checkpoint")
        chance = torch.Generator().manual_seed(step * accelerator.num_processes + accelerator.process_index)
        samples = torch.randn(32, 100, generator=chance)
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(samples), samples.sign()))
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()), handle.stats()["ratio"]


weights, fewer = train(Accelerator(cpu=True))
accelerator = Accelerator(cpu=True)
again, _ = train(accelerator, "checkpoint")
same = torch.equal(again, weights)
accelerator.print(f"{fewer:.0f} times fewer bytes sent; from the checkpoint on, same bits: {same}")
accelerator.end_training()
