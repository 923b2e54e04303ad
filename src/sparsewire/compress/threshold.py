"""Everything above a fixed threshold."""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire.compress.base import Source, State, Stateless
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector

__all__ = ["Threshold", "checked_threshold"]


@dataclass(frozen=True)
class Threshold(Stateless):
    """The entries whose magnitude exceeds a value; none if none does.

    >>> import numpy as np
    >>> above = Threshold(2)
    >>> entries, _ = above.step(np.array([1, -3, 2, 2], np.float32), above.init(4))
    >>> entries.indices, entries.values
    (array([1], dtype=uint32), array([-3.], dtype=float32))
    """

    value: float

    def __post_init__(self) -> None:
        checked_threshold(self.value)

    def take(self, source: Source, state: State) -> tuple[SparseVector, State]:
        return source.vector(*source.take(self.value)), state


def checked_threshold(value: float) -> float:
    """A number that magnitudes can be compared with."""
    if not value >= 0:  # or nan
        raise InputError(f"the threshold is {value}; it must be at least 0, which sends all that is not zero")
    return value
