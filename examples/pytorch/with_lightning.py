"""Lightning: a callback that compresses gradients, and whose state is in every checkpoint.

torchrun --standalone --nproc-per-node 2 examples/pytorch/with_lightning.py
"""

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import nn

import sparsewire.torch as swt


class Sparsewire(pl.Callback):
    """Takes the options of ``swt.compress``; for ``Trainer(strategy="ddp")``."""

    def __init__(self, **options):
        self.options, self.loaded = options, None

    def on_fit_start(self, trainer, module):  # the first hook in which the model is wrapped
        self.handle = swt.compress(trainer.strategy.model, **self.options)
        if self.loaded:
            self.handle.load_state_dict(self.loaded)

    def state_dict(self):  # every rank is asked, and rank 0 writes: it returns the states of all ranks
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, self.handle.state_dict())
        return {"ranks": states}

    def load_state_dict(self, state):  # Lightning calls it before on_fit_start
        self.loaded = state["ranks"]


class Signs(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 100))

    def training_step(self, samples):
        return nn.functional.mse_loss(self.layers(samples), samples.sign())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(checkpoint=None):
    """The weights after two epochs, and how many times fewer bytes a step has sent."""
    pl.seed_everything(0, verbose=False)
    model, samples = Signs(), torch.utils.data.DataLoader(torch.randn(640, 100), batch_size=32)
    callbacks = [Sparsewire(density=0.02), pl.callbacks.ModelCheckpoint("checkpoints", save_top_k=-1)]
    trainer = pl.Trainer("cpu", "ddp", devices=2, max_epochs=2, callbacks=callbacks, logger=False)
    trainer.fit(model, samples, ckpt_path=checkpoint)
    return nn.utils.parameters_to_vector(model.parameters()), callbacks[0].handle.stats()["ratio"]


weights, fewer = fit()
again, _ = fit("checkpoints/epoch=0-step=10.ckpt")
same = torch.equal(again, weights)
if dist.get_rank() == 0:
    print(f"{fewer:.0f} times fewer bytes sent; from the checkpoint on, same bits: {same}")
