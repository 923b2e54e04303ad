"""What every compressor is: a pair of init and step, a state, and a source that it selects from.

A step is a function of its input and its state alone, and returns the next state.  Large arrays of a state (a
residual, a velocity) are *handed over*: the step writes to them and the state that it returns holds them, so
that nothing as long as the vector is made anew.  `copy.deepcopy(state)` keeps a state.  The input is never
written to.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from sparsewire import kernels
from sparsewire.errors import InputError
from sparsewire.kernels import Entries, Indices
from sparsewire.vector import VALUE_DTYPES, Array, SparseVector, index_dtype, value_dtype

__all__ = [
    "Accumulated",
    "Compressor",
    "Counting",
    "Gradient",
    "Source",
    "State",
    "Stateless",
    "StepState",
    "Values",
]

Gradient: TypeAlias = "Array | Sequence[Array]"  # whole, or in pieces that lie one after the other


@dataclass(frozen=True)
class State:
    """What a compressor knows from one step to the next: numbers, arrays, and states of what it wraps."""

    def state_dict(self) -> dict[str, Any]:
        """A copy as a plain dict of numbers, None, arrays and such dicts, for a checkpoint."""
        return {field.name: _saved(getattr(self, field.name)) for field in fields(self)}

    def load_state_dict(self: S, saved: Mapping[str, Any]) -> S:
        """A state like this one with the content that was saved; arrays are copied."""
        expected = [field.name for field in fields(self)]
        if sorted(saved) != sorted(expected):
            raise InputError(f"{type(self).__name__} has {_listed(expected)}, and saved are {_listed(saved)}")
        return replace(self, **{name: _loaded(name, getattr(self, name), saved[name]) for name in expected})


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class StepState(State):
    """The number of the next step, which is all that some compressors need."""

    step: int = 0


class Compressor(ABC, Generic[S]):
    """Chooses the entries of a vector that are worth sending."""

    @property
    def shared(self) -> bool:
        """Do all ranks choose the same places, so that indices need not travel?"""
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
        """Take the chosen entries out of the source: what a subclass writes, and what wrappers call."""

    def step(self, x: Array, state: S) -> tuple[SparseVector, S]:
        """The chosen entries of x, and the next state."""
        return self.take(Values(x), state)

    def give_back(self, entries: SparseVector, state: S) -> S:
        """Return entries that were not used after all.  Without error feedback they are dropped."""
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


class Source(ABC):
    """What is selected from.  Its long arrays are gone over as rarely as possible."""

    @property
    @abstractmethod
    def length(self) -> int: ...

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]: ...

    @abstractmethod
    def take(self, threshold: float, ties: int = 0) -> Entries:
        """Take what exceeds the threshold, and the first `ties` that equal it."""

    @abstractmethod
    def take_at(self, indices: Indices) -> Array:
        """Take the values at increasing indices."""

    @abstractmethod
    def take_buckets(self, k: int, bucket: int) -> Entries:
        """Take the k largest of every `bucket` neighbouring values."""

    @abstractmethod
    def block_norms(self, block: int) -> npt.NDArray[np.float64]:
        """The Euclidean norm of every `block` neighbouring values."""

    @abstractmethod
    def put_back(self, indices: Indices, values: Array) -> None:
        """Leave values where entries were taken."""

    @abstractmethod
    def array(self) -> Array:
        """All values, for reading."""

    @abstractmethod
    def sample(self) -> Array:
        """One of every 64 cache lines; more of a short vector, and all values of a very short one."""

    @property
    def index_dtype(self) -> np.dtype[Any]:
        return index_dtype(self.length)

    def keep_largest(self, entries: Entries, k: int) -> tuple[Entries, float]:
        """The k largest of at least k entries that were taken, and the k-th magnitude; the others go back."""
        indices, values = entries
        threshold, ties = kernels.threshold_for_k(values, k)
        if len(values) == k:
            return entries, threshold
        kept, others = kernels.partition(indices, values, threshold, ties)
        self.put_back(*others)
        return kept, threshold

    def vector(self, indices: Indices, values: Array) -> SparseVector:
        """Entries that were taken, as a vector."""
        return SparseVector.piece(self.length, 0, self.length, indices, values)


class Values(Source):
    """An array, which stays as it is."""

    def __init__(self, x: Array) -> None:
        self._x = x

    @property
    def length(self) -> int:
        return len(self._x)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._x.dtype

    def take(self, threshold: float, ties: int = 0) -> Entries:
        return kernels.select(self._x, threshold, ties, index_dtype=self.index_dtype)

    def take_at(self, indices: Indices) -> Array:
        values: Array = self._x[indices]
        return values

    def take_buckets(self, k: int, bucket: int) -> Entries:
        return kernels.select_buckets(self._x, k, bucket, index_dtype=self.index_dtype)

    def block_norms(self, block: int) -> npt.NDArray[np.float64]:
        return kernels.block_norms(self._x, block)

    def put_back(self, indices: Indices, values: Array) -> None:
        """Nothing has left the array."""

    def array(self) -> Array:
        return self._x

    def sample(self) -> Array:
        return _lines(self._x)


class Accumulated(Source):
    """A residual to which a gradient is added by the first pass over it.  What is taken leaves the residual.

    The gradient is one array, or several that lie one after the other.  With a velocity, that becomes
    momentum * velocity + gradient in the same pass, and is added in place of the gradient.

    >>> residual = np.array([0.5, 0, -2, 0], np.float32)
    >>> source = Accumulated(residual, [np.array([1, 0], np.float32), np.array([-1, 0.5], np.float32)])
    >>> source.take(1)
    (array([0, 2], dtype=uint32), array([ 1.5, -3. ], dtype=float32))
    >>> residual
    array([0. , 0. , 0. , 0.5], dtype=float32)
    """

    def __init__(
        self, residual: Array, gradient: Gradient, velocity: Array | None = None, momentum: float = 0.0
    ) -> None:
        self._residual, self._velocity, self._momentum = residual, velocity, momentum
        self._gradients = [gradient] if isinstance(gradient, np.ndarray) else list(gradient)  # until added
        self._check_alike()

    def _check_alike(self) -> None:
        length, dtypes = sum(map(len, self._gradients)), {gradient.dtype for gradient in self._gradients}
        if length != self.length or dtypes - {self.dtype}:
            found = f"{length:,} {', '.join(map(str, dtypes))}"
            raise InputError(
                f"the state is for {self.length:,} {self.dtype} values and the gradient has {found} values; "
                "give each tensor a state of its own"
            )

    @property
    def length(self) -> int:
        return len(self._residual)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._residual.dtype

    def take(self, threshold: float, ties: int = 0) -> Entries:
        if len(self._gradients) > 1 and ties:  # which of the ties are the first is for one pass to say
            self.array()
        if not self._gradients:
            entries = kernels.select(self._residual, threshold, ties, index_dtype=self.index_dtype)
            self._clear(entries[0])
            return entries
        taken = [self._take_piece(*piece, threshold, ties) for piece in self._pieces()]
        self._gradients = []
        if len(taken) == 1:
            return taken[0]
        indices, values = zip(*taken, strict=True)
        return np.concatenate(indices), np.concatenate(values)

    def _pieces(self) -> Iterator[tuple[int, Array]]:
        start = 0
        for gradient in self._gradients:
            yield start, gradient
            start += len(gradient)

    def _take_piece(self, start: int, gradient: Array, threshold: float, ties: int) -> Entries:
        here = slice(start, start + len(gradient))
        indices, values = kernels.accumulate_select(
            self._residual[here],
            gradient,
            threshold,
            ties,
            index_dtype=self.index_dtype,
            velocity=None if self._velocity is None else self._velocity[here],
            momentum=self._momentum,
        )
        if start:
            indices += self.index_dtype.type(start)
        return indices, values

    def take_at(self, indices: Indices) -> Array:
        values: Array = self.array()[indices]
        self._clear(indices)
        return values

    @property
    def _is_plain(self) -> bool:
        """Is one array to be added as it is?  Only accumulate_select knows velocities."""
        return len(self._gradients) == 1 and self._velocity is None

    def take_buckets(self, k: int, bucket: int) -> Entries:
        if self._is_plain:
            [gradient] = self._gradients
            self._gradients = []
            return kernels.accumulate_select_buckets(
                self._residual, gradient, k, bucket, index_dtype=self.index_dtype
            )
        entries = kernels.select_buckets(self.array(), k, bucket, index_dtype=self.index_dtype)
        self._clear(entries[0])
        return entries

    def block_norms(self, block: int) -> npt.NDArray[np.float64]:
        if self._is_plain:
            [gradient] = self._gradients
            self._gradients = []
            return kernels.accumulate_block_norms(self._residual, gradient, block)
        return kernels.block_norms(self.array(), block)

    def put_back(self, indices: Indices, values: Array) -> None:
        kernels.scatter(self._residual, indices, values)

    def array(self) -> Array:
        if self._gradients:
            # nothing exceeds NaN; of integers nothing exceeds infinity
            self.take(math.inf if self.dtype.kind == "i" else math.nan)
        return self._residual

    def sample(self) -> Array:
        if len(self._gradients) != 1:
            return _lines(self.array())
        with np.errstate(over="ignore", invalid="ignore"):
            added = _lines(self._gradients[0])
            if self._velocity is not None:
                added = _lines(self._velocity) * self.dtype.type(self._momentum) + added
            total: Array = _lines(self._residual) + added
        return total

    def _clear(self, indices: Indices) -> None:
        kernels.scatter(self._residual, indices, np.zeros(len(indices), self.dtype))


LINE = 16  # values in a cache line of float32
EVERY = 64  # the lines of which one is sampled, if that leaves
GOLDEN = (math.sqrt(5) - 1) / 2  # fractions of its multiples spread evenly over [0, 1)
SAMPLED = 1 << 16  # so many values: at 1% density, enough to know a count to 4%


def _lines(x: Array) -> Array:
    """One of every so many lines, each time another: in a matrix, those of one column would mislead."""
    every = min(EVERY, len(x) // SAMPLED)
    if every < 2:
        return x
    lines = x[: len(x) // LINE * LINE].reshape(-1, LINE)
    group = np.arange(len(lines) // every)
    chosen = group * every + (group * GOLDEN % 1 * every).astype(np.int64)
    return np.take(lines, chosen, axis=0).reshape(-1)


def checked_vector(length: int, dtype: npt.DTypeLike) -> tuple[int, np.dtype[Any]]:
    """A length and a dtype, given as a name or as a numpy type, that vectors can have."""
    if operator.index(length) < 0:
        raise InputError(f"a vector has no negative length, got {length}")
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in VALUE_DTYPES:
        raise InputError(f"values are {', '.join(VALUE_DTYPES)}, not {name}")
    return operator.index(length), value_dtype(name)


def _saved(content: Any) -> Any:
    if isinstance(content, State):
        return content.state_dict()
    return content.copy() if isinstance(content, np.ndarray) else content


def _loaded(name: str, present: Any, saved: Any) -> Any:
    """What was saved, if it could take the place of what is there."""
    if isinstance(present, State):
        if not isinstance(saved, Mapping):
            raise InputError(f"{name} is a {type(present).__name__}, and saved is {_described(saved)}")
        return present.load_state_dict(saved)
    if isinstance(present, np.ndarray):
        return _loaded_array(name, present, saved)
    number = saved.item() if isinstance(saved, np.ndarray) and saved.ndim == 0 else saved
    expected = Integral if isinstance(present, int) else (Real, type(None))
    if not isinstance(number, expected):
        raise InputError(f"{name} is {_described(present)}, and saved is {_described(saved)}")
    return number


def _loaded_array(name: str, present: Array, saved: Any) -> Array:
    if isinstance(saved, np.ndarray) and saved.dtype == f"V{present.itemsize}":
        saved = saved.view(present.dtype)  # np.load knows bfloat16 by its size only
    if not isinstance(saved, np.ndarray) or (saved.shape, saved.dtype) != (present.shape, present.dtype):
        raise InputError(f"{name} is {_described(present)}, and saved is {_described(saved)}")
    return saved.copy()


def _described(content: Any) -> str:
    if isinstance(content, np.ndarray):
        return f"an array of {content.size:,} {content.dtype} values"
    return repr(content)


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"
