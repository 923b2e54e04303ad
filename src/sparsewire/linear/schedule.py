"""Step lengths as functions of the number of the step and of the pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["SCHEDULES", "Schedule"]

# The factor by which the length of the first step is multiplied, given the parameter and how many steps and
# passes were done before.
SCHEDULES: dict[str, Callable[[float, int, int], float]] = {
    "constant": lambda parameter, step, epoch: 1.0,
    "invscaling": lambda power, step, epoch: (1.0 + step) ** -power,
    "epoch_decay": lambda decay, step, epoch: decay**epoch,
}


@dataclass(frozen=True)
class Schedule:
    """The length of each step, relative to the first.

    - "constant": all steps have the same length
    - "invscaling": the length is divided by step^``power``, where steps count from 1
    - "epoch_decay": the length is multiplied by ``decay`` after every pass

    >>> Schedule("invscaling", power=0.5).factor(step=3, epoch=0)
    0.5
    """

    name: str = "constant"
    power: float = 0.5
    decay: float = 0.8

    def factor(self, step: int, epoch: int) -> float:
        """The length of this step, relative to the first; ``step`` and ``epoch`` count from 0."""
        parameter = self.decay if self.name == "epoch_decay" else self.power
        return SCHEDULES[self.name](parameter, step, epoch)
