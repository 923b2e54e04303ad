"""What compressors select from: an array, or a residual to which a gradient is added on the way."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire import kernels
from sparsewire.errors import InputError
from sparsewire.kernels import Entries, Indices
from sparsewire.vector import Array, SparseVector, index_dtype

__all__ = ["Accumulated", "Gradient", "Source", "Values"]

Gradient: TypeAlias = "Array | Sequence[Array]"  # whole, or in pieces that lie one after the other


class Source(ABC):
    """Values to select from.  Its methods read and write the long arrays as rarely as possible."""

    def __init__(self, values: Array) -> None:
        self._values = values

    @property
    def length(self) -> int:
        return len(self._values)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._values.dtype

    @abstractmethod
    def take(self, threshold: float, ties: int = 0) -> Entries:
        """Take the entries whose magnitude exceeds the threshold, and the first `ties` that equal it."""

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
        """Put values where entries were taken."""

    @abstractmethod
    def array(self) -> Array:
        """All values, for reading."""

    @abstractmethod
    def sample(self) -> Array:
        """The values of one cache line in 64; of more lines if the vector is short, or of all of them."""

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

    def take(self, threshold: float, ties: int = 0) -> Entries:
        return kernels.select(self._values, threshold, ties, index_dtype=self.index_dtype)

    def take_at(self, indices: Indices) -> Array:
        values: Array = self._values[indices]
        return values

    def take_buckets(self, k: int, bucket: int) -> Entries:
        return kernels.select_buckets(self._values, k, bucket, index_dtype=self.index_dtype)

    def block_norms(self, block: int) -> npt.NDArray[np.float64]:
        return kernels.block_norms(self._values, block)

    def put_back(self, indices: Indices, values: Array) -> None:
        """Nothing to do: what was taken is still in the array."""

    def array(self) -> Array:
        return self._values

    def sample(self) -> Array:
        return _lines(self._values)


class Accumulated(Source):
    """A residual to which a gradient is added by the first pass over it.  What is taken becomes zero there.

    The gradient is one array, or several that lie one after the other.  With a velocity, the same pass
    computes velocity = momentum * velocity + gradient and adds the velocity instead of the gradient.

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
        super().__init__(residual)
        self._velocity, self._momentum = velocity, momentum
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

    def take(self, threshold: float, ties: int = 0) -> Entries:
        if len(self._gradients) > 1 and ties:
            self.array()  # one pass over all pieces finds which of the ties are the first
        if not self._gradients:
            entries = kernels.select(self._values, threshold, ties, index_dtype=self.index_dtype)
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
            self._values[here],
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
        """Whether one array is still to be added, without velocity: what the other fused kernels can do."""
        return len(self._gradients) == 1 and self._velocity is None

    def take_buckets(self, k: int, bucket: int) -> Entries:
        if self._is_plain:
            [gradient] = self._gradients
            self._gradients = []
            return kernels.accumulate_select_buckets(
                self._values, gradient, k, bucket, index_dtype=self.index_dtype
            )
        entries = kernels.select_buckets(self.array(), k, bucket, index_dtype=self.index_dtype)
        self._clear(entries[0])
        return entries

    def block_norms(self, block: int) -> npt.NDArray[np.float64]:
        if self._is_plain:
            [gradient] = self._gradients
            self._gradients = []
            return kernels.accumulate_block_norms(self._values, gradient, block)
        return kernels.block_norms(self.array(), block)

    def put_back(self, indices: Indices, values: Array) -> None:
        kernels.scatter(self._values, indices, values)

    def array(self) -> Array:
        if self._gradients:
            # The pass adds, and takes nothing: no number exceeds NaN, and no integer exceeds infinity.
            self.take(math.inf if self.dtype.kind == "i" else math.nan)
        return self._values

    def sample(self) -> Array:
        if len(self._gradients) != 1:
            return _lines(self.array())
        with np.errstate(over="ignore", invalid="ignore"):
            added = _lines(self._gradients[0])
            if self._velocity is not None:
                added = _lines(self._velocity) * self.dtype.type(self._momentum) + added
            total: Array = _lines(self._values) + added
        return total

    def _clear(self, indices: Indices) -> None:
        kernels.scatter(self._values, indices, np.zeros(len(indices), self.dtype))


LINE = 16  # float32 values in a cache line
MOST_LINES = 64  # of so many lines at most, one is sampled
FEWEST_SAMPLED = 1 << 16  # values; at 1% density their count is known to 4%
GOLDEN = (math.sqrt(5) - 1) / 2  # the fractions of its multiples spread evenly over [0, 1)


def _lines(x: Array) -> Array:
    """One line of every so many, at a changing place among them.

    Lines at equal distances could all belong to one column of a matrix.
    """
    every = min(MOST_LINES, len(x) // FEWEST_SAMPLED)
    if every < 2:
        return x
    lines = x[: len(x) // LINE * LINE].reshape(-1, LINE)
    group = np.arange(len(lines) // every)
    chosen = group * every + (group * GOLDEN % 1 * every).astype(np.int64)
    return np.take(lines, chosen, axis=0).reshape(-1)
