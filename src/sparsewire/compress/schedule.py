"""How many entries to send: a density, the same at all times or a schedule of it.

A schedule is a function of the number of the step, counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sparsewire.errors import InputError

__all__ = ["Density", "Warmup"]

Density: TypeAlias = "float | Callable[[int], float]"


@dataclass(frozen=True)
class Warmup:
    """From density `start` down to `density` over `steps` steps, each step by the same factor.

    Deep Gradient Compression (Lin et al., ICLR 2018, section 3.3) goes from 25% to 0.1% by a factor of four
    per epoch: that is ``Warmup(0.001, steps=4 * steps_per_epoch)``.

    >>> [round(Warmup(0.01, steps=2)(step), 3) for step in range(4)]
    [0.25, 0.05, 0.01, 0.01]
    """

    density: float
    steps: int
    start: float = 0.25

    def __post_init__(self) -> None:
        checked_density(self.density)
        checked_density(self.start)
        if self.steps < 0:
            raise InputError(f"a warm-up of {self.steps} steps; give 0 for none")

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.density
        return float(self.start * (self.density / self.start) ** (step / self.steps))


def checked_density(density: Density) -> Density:
    """A density above 0 and up to 1; a schedule is looked at when it is used."""
    if not callable(density) and not 0 < density <= 1:  # and not nan
        raise InputError(f"density is {density}; it must be above 0 and at most 1, such as 0.01 for 1%")
    return density


def density_at(density: Density, step: int) -> float:
    """The density of one step."""
    if not callable(density):
        return density
    now = density(step)
    if not 0 < now <= 1:
        raise InputError(f"the schedule's density at step {step} is {now}; it must be above 0 and at most 1")
    return now


def count_of(length: int, density: float) -> int:
    """How many of so many that is: rounded down, and at least one if there is any."""
    return min(length, max(1, int(length * density)))
