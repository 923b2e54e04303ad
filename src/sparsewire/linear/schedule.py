"""Step lengths, by the number of the step and of the pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["SCHEDULES", "Schedule"]

# Factors of the first step's length, given the parameter and how many steps and passes were done before.
SCHEDULES: dict[str, Callable[[float, int, int], float]] = {
    "constant": lambda parameter, step, epoch: 1.0,
    "invscaling": lambda power, step, epoch: (1.0 + step) ** -power,
    "epoch_decay": lambda decay, step, epoch: decay**epoch,
}


@dataclass(frozen=True)
class Schedule:
    """The length of each step, given that of the first.

    - "constant"
    - "invscaling": divided by the number of the step, from 1 on, to the power ``power``
    - "epoch_decay": times ``decay`` after every pass

    >>> Schedule("invscaling", power=0.5).factor(step=3, epoch=0)
    0.5
    """

    name: str = "constant"
    power: float = 0.5
    decay: float = 0.8

    def factor(self, step: int, epoch: int) -> float:
        """Of the first step's length; ``step`` and ``epoch`` count from 0."""
        parameter = self.decay if self.name == "epoch_decay" else self.power
        return SCHEDULES[self.name](parameter, step, epoch)
