"""A model whose gradients are given, and its training: what tests of ``compress`` run on every rank.

Gradients are multiples of 1/256 and small, so that sums and residuals of some steps are exact in float32, and
what is owed can be compared with ``==``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sparsewire.torch as swt

SHAPES = {
    "first": (30, 20),
    "first_bias": (7,),
    "middle": (500,),
    "last": (40, 10),
    "last_bias": (12,),
    "head": (300,),
}
# With ``OPTIONS`` they are exchanged in these groups, in this order; the rest goes densely.
GROUPS = [["head", "last"], ["middle", "first"]]
GROUP_VALUES = 512
EVERY_METHOD = (
    {"method": "topk"},
    {"method": "ok_topk"},
    {"method": "block_topk", "density": 0.4},
    {"method": "exact"},
    {"method": "dense"},
)
OPTIONS = {"density": 0.05, "min_size": 16, "timeout": 20.0}

Tensors = dict[str, torch.Tensor]


class Given(torch.nn.Module):
    """Its loss is the sum of all parameters times given tensors, which therefore are the gradients.

    What is not given takes no part.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, given: Tensors) -> torch.Tensor:
        terms = [(getattr(self, name) * gradient).sum() for name, gradient in given.items()]
        return torch.stack(terms).sum()


class Scale:
    """What ``compress`` asks a GradScaler."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def get_scale(self) -> float:
        return self.scale


def gradients(
    rank: int,
    step: int,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float32,
) -> Tensors:
    """What a rank finds in a step."""
    chance = torch.Generator().manual_seed(1000 * step + rank)
    return {
        name: (torch.randn(shape, generator=chance) * 256).round().div(256).to(dtype)
        for name, shape in shapes.items()
    }


class Run(NamedTuple):
    """What a rank has seen of a training."""

    means: list[Tensors]  # of each step
    stats: dict[str, float]
    state: dict[str, Any]


def wrapped(group: dist.ProcessGroup, model: torch.nn.Module, **ddp_options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, process_group=group, **ddp_options)


def compressed(ddp: torch.nn.Module, options: Mapping[str, Any]) -> swt.Compression:
    """With small groups: as many values of any type."""
    itemsize = next(ddp.parameters()).element_size()
    return swt.compress(ddp, **{"group_bytes": GROUP_VALUES * itemsize, **OPTIONS, **options})


def step_with(ddp: torch.nn.Module, given: Tensors) -> Tensors:
    """One backward; the gradients that are there then."""
    ddp.zero_grad()
    ddp(given).backward()
    return found(ddp)


def found(ddp: torch.nn.Module) -> Tensors:
    return {
        name.removeprefix("module."): parameter.grad.clone()
        for name, parameter in ddp.named_parameters()
        if parameter.grad is not None
    }


def train(
    group: dist.ProcessGroup,
    options: Mapping[str, Any],
    steps: Iterable[int] = range(4),
    ddp_options: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    state: Any = None,
) -> Run:
    """So many steps of ``Given``, from a state if there is one."""
    ddp = wrapped(group, Given(dtype=dtype), **ddp_options or {})
    handle = compressed(ddp, options)
    if state is not None:
        handle.load_state_dict(state)
    means = [step_with(ddp, gradients(group.rank(), step, dtype=dtype)) for step in steps]
    run = Run(means, handle.stats(), handle.state_dict())
    handle.detach()
    return run


def assert_same(one: Tensors, other: Tensors) -> None:
    """The same names, types and bits."""
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


def named(options: Mapping[str, Any]) -> str:
    """For the name of a test."""
    return "-".join(getattr(value, "__name__", str(value)) for value in options.values()) or "default"
