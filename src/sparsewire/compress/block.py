"""Whole blocks of neighbouring values, chosen by norm or at random (OmniReduce, Fei et al., SIGCOMM'21).

All values of a chosen block are entries, zeros included, so that blocks stay whole.  The last block may be
shorter.  Norms are Euclidean; a block that holds a NaN has norm NaN, and counts as the largest.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.compress.compressor import Counting, Stateless
from sparsewire.compress.randomk import checked_seed, places
from sparsewire.compress.schedule import Density, checked_density, count_of, density_at
from sparsewire.compress.source import Source
from sparsewire.compress.state import State, StepState
from sparsewire.compress.threshold import checked_threshold
from sparsewire.errors import InputError
from sparsewire.kernels import Indices
from sparsewire.vector import SparseVector

__all__ = ["BlockRandomK", "BlockThreshold", "BlockTopK"]


@dataclass(frozen=True)
class BlockTopK(Counting):
    """The blocks of largest norm, a share of `density` of all.

    Among blocks of equal norm the first is chosen; a block of zeros never is.

    >>> top = BlockTopK(density=0.5, block=2)
    >>> entries, _ = top.step(np.array([1, 1, 3, 0], np.float32), top.init(4))
    >>> entries.indices, entries.values
    (array([2, 3], dtype=uint32), array([3., 0.], dtype=float32))
    """

    density: Density
    block: int = 256

    def __post_init__(self) -> None:
        checked_density(self.density)
        _checked_block(self.block)

    def take(self, source: Source, state: StepState) -> tuple[SparseVector, StepState]:
        norms = source.block_norms(self.block)
        k = count_of(len(norms), density_at(self.density, state.step))
        threshold, ties = kernels.threshold_for_k(norms, k) if k else (0, 0)
        blocks, _ = kernels.select(norms, threshold, ties if threshold != 0 else 0)
        return _take_blocks(source, blocks, self.block), StepState(state.step + 1)


@dataclass(frozen=True)
class BlockRandomK(Counting):
    """Blocks drawn at random in each step, the same on every rank; see `RandomK`."""

    density: Density
    block: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        checked_density(self.density)
        _checked_block(self.block)
        checked_seed(self.seed)

    @property
    def shared(self) -> bool:
        return True

    def take(self, source: Source, state: StepState) -> tuple[SparseVector, StepState]:
        count = -(-source.length // self.block)
        k = count_of(count, density_at(self.density, state.step))
        blocks = places(count, k, self.seed, state.step)
        return _take_blocks(source, blocks, self.block), StepState(state.step + 1)


@dataclass(frozen=True)
class BlockThreshold(Stateless):
    """The blocks whose norm exceeds a value; none if none does."""

    value: float
    block: int = 256

    def __post_init__(self) -> None:
        checked_threshold(self.value)
        _checked_block(self.block)

    def take(self, source: Source, state: State) -> tuple[SparseVector, State]:
        blocks, _ = kernels.select(source.block_norms(self.block), self.value)
        return _take_blocks(source, blocks, self.block), state


def _checked_block(block: int) -> None:
    if operator.index(block) < 1:
        raise InputError(f"a block of {block} values; it holds at least one")


def _take_blocks(source: Source, blocks: Indices, block: int) -> SparseVector:
    """The entries of blocks with these numbers, taken out of the source."""
    begin = blocks.astype(np.uint64) * np.uint64(block)
    indices = (begin[:, None] + np.arange(block, dtype=np.uint64)).reshape(-1)
    beyond = (
        max(0, int(indices[-1]) + 1 - source.length) if len(indices) else 0
    )  # the last block may be short
    indices = indices[: len(indices) - beyond].astype(source.index_dtype)
    return source.vector(indices, source.take_at(indices))
