"""A model whose gradients are given: what tests of ``compress`` train on every rank (``training``).

Gradients are multiples of 1/256 and small, so that sums and residuals of some steps are exact in float32, and
what is owed can be compared with ``==``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

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
