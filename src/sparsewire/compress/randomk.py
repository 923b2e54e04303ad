"""k random places, the same on every rank: values travel without indices.

The vector is split into k strips that differ by at most one in width, and one place is drawn in each.  So the
places are sorted, and every place is equally likely, up to the rounding of the strips.  The random number is
a hash of seed, step and strip, so every rank, machine and version of numpy draws the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsewire.compress.compressor import Counting
from sparsewire.compress.schedule import Density, checked_density, count_of, density_at
from sparsewire.compress.source import Source
from sparsewire.compress.state import StepState
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector

__all__ = ["RandomK", "checked_seed", "places"]

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of splitmix64


@dataclass(frozen=True)
class RandomK(Counting):
    """Entries at k places drawn at random in each step; zeros too, because all ranks send the same places.

    >>> import numpy as np
    >>> chance = RandomK(density=0.5, seed=1)
    >>> entries, state = chance.step(np.arange(8, dtype=np.float32), chance.init(8))
    >>> entries.indices
    array([1, 3, 5, 6], dtype=uint32)
    """

    density: Density
    seed: int = 0

    def __post_init__(self) -> None:
        checked_density(self.density)
        checked_seed(self.seed)

    @property
    def shared(self) -> bool:
        return True

    def take(self, source: Source, state: StepState) -> tuple[SparseVector, StepState]:
        k = count_of(source.length, density_at(self.density, state.step))
        indices = places(source.length, k, self.seed, state.step).astype(source.index_dtype)
        return source.vector(indices, source.take_at(indices)), StepState(state.step + 1)


def places(length: int, k: int, seed: int, step: int) -> npt.NDArray[np.uint64]:
    """One position in each of k strips of a vector, in order."""
    if k == 0:
        return np.empty(0, np.uint64)
    width, wider = divmod(length, k)  # the first strips are one wider
    strip = np.arange(k, dtype=np.uint64)
    begin = strip * np.uint64(width) + np.minimum(strip, np.uint64(wider))
    widths = np.uint64(width) + (strip < wider).astype(np.uint64)
    stream = _hash(_hash(np.array([seed], np.uint64)) + np.uint64(step))
    return begin + _hash(stream + strip) % widths


def checked_seed(seed: int) -> int:
    """A seed that fits the hash."""
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise InputError(f"seed is {seed!r}; it must be between 0 and 2^64 - 1")
    return seed


def _hash(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The first output of splitmix64 for each number as its state (Steele et al., OOPSLA 2014)."""
    z = numbers + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
