"""A worker's vector as blocks, and the sum as it comes back block by block; in the form that was given."""

from __future__ import annotations

import numpy as np

from sparsewire import kernels, work
from sparsewire.algorithms.omnireduce.dealing import ranges
from sparsewire.algorithms.omnireduce.message import Integers
from sparsewire.kernels import memory
from sparsewire.vector import Array, SparseVector, index_dtype

__all__ = ["DenseBlocks", "SparseBlocks"]


class DenseBlocks:
    """The blocks of a dense vector; the sum is written to ``out``, which may be the vector's own array."""

    def __init__(self, vec: SparseVector, block: int, out: Array | None = None) -> None:
        self.dtype = vec.dtype
        self._vec, self._block = vec, block
        self._out = out
        in_place = out is not None and out.ctypes.data == vec.values.ctypes.data
        if in_place and self.dtype.itemsize == 2:
            self._vec = SparseVector.from_dense(vec.values.copy())  # of which no kernel sees the bits
        self._is_clear = in_place and self._vec is vec  # where nobody has anything, this rank has zeros

    def nonzero(self, first: int, last: int) -> Integers:
        """The numbers of the blocks, from ``first`` to before ``last``, that are not zero."""
        values = self._vec.values[first * self._block : last * self._block]
        work.count(values=len(values))
        if self._is_clear:  # in place -0.0 is not zero: it would stay, and on this rank only
            values = values.view(f"i{self.dtype.itemsize}")
        return first + kernels.nonzero_blocks(values, self._block)

    def gather(self, blocks: Integers) -> Array:
        """Their values, a row for each; the last block of the vector is filled up with zeros."""
        work.count(values=len(blocks) * self._block)
        return kernels.gather_blocks(self._vec.values, blocks, self._block).reshape(-1, self._block)

    def write(self, blocks: Integers, data: Array) -> None:
        work.count(values=data.size)
        kernels.scatter_blocks(self._clear(), blocks, self._block, data.reshape(-1))

    def result(self) -> SparseVector:
        return SparseVector.from_dense(self._clear())

    def _clear(self) -> Array:
        """Where the sum goes; cleared when that is first needed, because by then all is on its way."""
        if self._out is None:
            self._out = memory.empty(self._vec.length, self.dtype)
        if not self._is_clear:
            work.count(values=self._vec.length)
            self._out[:] = 0
            self._is_clear = True
        return self._out


class SparseBlocks:
    """The blocks of a vector that is stored as entries."""

    def __init__(self, vec: SparseVector, block: int) -> None:
        self.dtype = vec.dtype
        self._vec, self._block = vec, block
        self._sums: list[tuple[Integers, Array]] = []

    def nonzero(self, first: int, last: int) -> Integers:
        """As ``DenseBlocks.nonzero``."""
        assert self._vec.indices is not None
        begin, end = np.searchsorted(self._vec.indices, [first * self._block, last * self._block])
        blocks = self._vec.indices[begin:end].astype(np.int64) // self._block
        return np.compress(np.diff(blocks, prepend=-1) != 0, blocks)

    def gather(self, blocks: Integers) -> Array:
        """As ``DenseBlocks.gather``."""
        assert self._vec.indices is not None
        begins, ends = np.searchsorted(self._vec.indices, [blocks * self._block, (blocks + 1) * self._block])
        rows, entries = np.repeat(np.arange(len(blocks)), ends - begins), ranges(begins, ends)
        filled = np.zeros((len(blocks), self._block), self.dtype)
        filled[rows, self._vec.indices[entries] % self._block] = self._vec.values[entries]
        return filled

    def write(self, blocks: Integers, data: Array) -> None:
        self._sums.append((blocks, data))

    def result(self) -> SparseVector:
        length = self._vec.length
        if not self._sums:
            return SparseVector.empty(length, self.dtype)
        blocks = np.concatenate([blocks for blocks, _ in self._sums])
        order = np.argsort(blocks)
        indices = (blocks[order, None] * self._block + np.arange(self._block)).reshape(-1)
        values = np.concatenate([data for _, data in self._sums])[order].reshape(-1)
        inside = np.searchsorted(indices, length)  # the last block may end before its end
        return SparseVector.piece(
            length, 0, length, indices[:inside].astype(index_dtype(length)), values[:inside]
        )
