"""The entries above a fixed threshold."""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire.compress.compressor import Stateless
from sparsewire.compress.source import Source
from sparsewire.compress.state import State
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
    """The threshold, if magnitudes can be compared with it."""
    if not value >= 0:  # true for NaN too
        raise InputError(f"the threshold is {value}; it must be at least 0, which sends all that is not zero")
    return value
