"""What every compressor is: a pair of ``init`` and ``step``.

A step is a function of its input and its state alone, and returns the next state.  Large arrays of a state
(a residual, a velocity) are *handed over*: the step writes to them, and the state that it returns holds them.
So no array as long as the vector is allocated in a step.  `copy.deepcopy(state)` keeps a state.  The input
is never written to.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sparsewire.compress.source import Source, Values
from sparsewire.compress.state import State, StepState
from sparsewire.errors import InputError
from sparsewire.vector import VALUE_DTYPES, Array, SparseVector, value_dtype

__all__ = ["Compressor", "Counting", "Stateless", "checked_vector"]

S = TypeVar("S", bound=State)


class Compressor(ABC, Generic[S]):
    """Chooses the entries of a vector that are worth sending."""

    @property
    def shared(self) -> bool:
        """Whether all ranks choose the same places, so that indices need not travel."""
        return False

    @property
    def block(self) -> int:
        """Entries come in whole blocks of so many neighbours."""
        return 1

    @abstractmethod
    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> S:
        """The state before the first step."""

    @abstractmethod
    def take(self, source: Source, state: S) -> tuple[SparseVector, S]:
        """The chosen entries, taken out of the source, and the next state.

        Subclasses implement it, and compressors that wrap others call it.
        """

    def step(self, x: Array, state: S) -> tuple[SparseVector, S]:
        """The chosen entries of x, and the next state."""
        return self.take(Values(x), state)

    def give_back(self, entries: SparseVector, state: S) -> S:
        """The state after entries were not used; without error feedback they are dropped."""
        return state


class Counting(Compressor[StepState]):
    """A compressor whose state is the number of the step."""

    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> StepState:
        checked_vector(length, dtype)
        return StepState()


class Stateless(Compressor[State]):
    """A compressor whose state is empty."""

    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> State:
        checked_vector(length, dtype)
        return State()


def checked_vector(length: int, dtype: npt.DTypeLike) -> tuple[int, np.dtype[Any]]:
    """The length and the dtype of a vector; an InputError if no vector has them."""
    if operator.index(length) < 0:
        raise InputError(f"a vector has no negative length, got {length}")
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in VALUE_DTYPES:
        raise InputError(f"values are {', '.join(VALUE_DTYPES)}, not {name}")
    return operator.index(length), value_dtype(name)
