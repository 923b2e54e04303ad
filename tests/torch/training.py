"""Steps of ``models.Given`` under DDP and ``compress``, and what tests do with their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from models import GROUP_VALUES, OPTIONS, Given, Tensors, gradients
from torch.nn.parallel import DistributedDataParallel

import sparsewire.torch as swt


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
