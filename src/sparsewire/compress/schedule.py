"""How many entries to send: a density, which is a number or a schedule.

A schedule is a function from the number of the step, counted from 0, to the density of that step.
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

    Deep Gradient Compression (Lin et al., ICLR 2018, section 3.3) falls from 25% to 0.1% by a factor of four
    per epoch, which is ``Warmup(0.001, steps=4 * steps_per_epoch)``.

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
    """The density, if it is above 0 and at most 1.  A schedule is checked in each step."""
    if not callable(density) and not 0 < density <= 1:  # true for NaN too
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
    """The number of entries that a density means: rounded down, and at least one if there is any value."""
    return min(length, max(1, int(length * density)))
