"""A rank that trains under DDP with ``swt.compress``; the mean of every step is compared."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from injectors import Injector
from journal import Journal
from torch.nn.parallel import DistributedDataParallel
from trials import Trial

import sparsewire as sw
import sparsewire.torch as swt

# With a density of 1 nothing is left out, so that the mean of a step is exact.
METHODS = ({"method": "topk"}, {"method": "exact"}, {"method": "dense"})
SHAPES = {"table": (400, 50), "weight": (300,), "bias": (7,)}
FIRST = 2  # DDP makes its buckets anew in the second step, by collectives that are not ours


class Given(torch.nn.Module):
    """A model whose gradients are what it is given."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([(getattr(self, name) * given[name]).sum() for name in SHAPES]).sum()


def gradients(trial: Trial, step: int, rank: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(1_000_003 * trial.number + 1000 * step + rank)
    return {name: torch.randint(-8, 9, shape, generator=chance).float() for name, shape in SHAPES.items()}


def perform(trial: Trial, injector: Injector, journal: Journal) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    address = f"tcp://127.0.0.1:{os.environ['STORE_PORT']}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=trial.size)
    ddp = DistributedDataParallel(Given())
    faulty = next((fault for fault in trial.faults if fault.kind == "bad input"), None)
    options = METHODS[trial.number % len(METHODS)]
    if faulty is not None:
        options = METHODS[0]
    density = _density(FIRST + faulty.at if faulty is not None and faulty.victim == rank else None, journal)
    compression = swt.compress(ddp, density=density, min_size=16, timeout=trial.timeout, **options)
    for step in range(FIRST + len(trial.calls)):
        if step >= FIRST and faulty is None:
            injector.before(trial.calls[step - FIRST])
        try:
            ddp.zero_grad()
            ddp(gradients(trial, step, rank)).backward()
        except sw.SparsewireError as error:
            journal.failed(step - FIRST, error)
            if isinstance(error, sw.TransportError):
                time.sleep(trial.linger)
                return
        else:
            journal.write(call=step - FIRST, right=faulty is not None or _is_right(trial, step, ddp))
    compression.detach()
    dist.destroy_process_group()


def _density(unusable_at: int | None, journal: Journal) -> Callable[[int], float]:
    def density(step: int) -> float:
        nonlocal unusable_at
        if step == unusable_at:
            unusable_at = None  # a step that was refused is repeated
            journal.write(fault="bad input")
            return 2.0
        return 1.0

    return density


def _is_right(trial: Trial, step: int, ddp: torch.nn.Module) -> bool:
    everybody = [gradients(trial, step, rank) for rank in range(trial.size)]
    return all(
        torch.equal(parameter.grad, sum(given[name] for given in everybody) / trial.size)
        for name, parameter in ddp.module.named_parameters()
    )
