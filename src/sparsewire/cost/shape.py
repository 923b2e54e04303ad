"""The shape of a problem: how many ranks, how long a vector, how many entries, and what pieces take.

>>> shape = Shape(size=4, length=2**24, nnz=167_772)
>>> round(shape.union(4) / shape.length, 4)
0.0394
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsewire.coding.indices import best_form_by_count
from sparsewire.coding.values import Precision
from sparsewire.work import NOTHING, Work

__all__ = ["BLOCK", "HEADER_BYTES", "Shape"]

# Bytes of a frame's header on the wire; tests hold it against the wire format.
HEADER_BYTES = 112
BLOCK = 256  # positions of the blocks that ``Shape.blocks`` counts: a kilobyte of float32


@dataclass(frozen=True)
class Shape:
    """The problem: ``size`` ranks, each with ``nnz`` entries of a vector of ``length``.

    ``overlap`` says how the ranks' supports meet: "uniform" (independent, uniformly random), "identical"
    or "disjoint".  ``union_nnz`` is the number of entries in the sum, if it is known; then ``overlap`` does
    not matter.  ``skew`` is how many times its share the fullest of ``size`` even ranges has.
    ``precision`` is how values travel, if they are rounded.  ``index_price`` is that of the ``CostFigures``.
    ``blocks`` is the number of blocks of ``BLOCK`` positions that have an entry, if it is known.
    ``aggregators`` is the number of further ranks that only aggregate.  With ``in_rank_order``, only
    algorithms that add up in rank order are suited.
    """

    size: int
    length: int
    nnz: int
    value_bytes: int = 4
    overlap: str = "uniform"
    union_nnz: int | None = None
    skew: float = 1.0
    precision: Precision | None = None
    index_price: float = 0.0
    blocks: int | None = None
    aggregators: int = 0
    in_rank_order: bool = False

    @property
    def index_bytes(self) -> int:
        return 4 if self.length <= 2**32 else 8

    def union(self, ranks: int) -> float:
        """Expected entries in the sum of so many ranks' vectors."""
        if self.overlap == "identical" or not self.nnz or min(ranks, self.size) == 1:
            return self.nnz
        if self.union_nnz is not None:  # a power of ranks: nnz for one, union_nnz for all
            growth = math.log(max(1.0, self.union_nnz / self.nnz)) / math.log(self.size)
            return self.nnz * math.pow(ranks, growth)
        if self.overlap == "disjoint":
            return min(self.nnz * ranks, self.length)
        return self.length * (1 - math.pow(1 - self.nnz / self.length, ranks))

    def is_dense(self, entries: float, span: float) -> bool:
        """Does a range with so many entries take fewer bytes as plain values?"""
        return entries * (self.index_bytes + self.value_bytes) > span * self.value_bytes

    def merging(self, parts: Sequence[float], union: float, span: float) -> Work:
        """The work of adding up pieces of a range: their numbers of entries, and that of the sum."""
        sparse = [part for part in parts if not self.is_dense(part, span)]
        if len(sparse) == len(parts) and not self.is_dense(sum(parts), span):
            return Work(entries=sum(parts))
        # The first piece is written, each further dense one is added, and the sum is searched for zeros.
        passes = 2 + sum(self.is_dense(part, span) for part in parts[1:])
        if not self.is_dense(union, span):
            passes += 1  # back to entries
        return Work(sum(sparse), passes * span)

    def joining(self, entries: float, span: float) -> Work:
        """The work of copying pieces, with so many entries in all, to one array."""
        return Work(values=span if self.is_dense(entries, span) else entries)

    def spreading(self, entries: float, span: float) -> Work:
        """The work of storing a range densely, unless it is dense already."""
        return NOTHING if self.is_dense(entries, span) else Work(entries, span)

    def stored_bytes(self, entries: float, span: float) -> float:
        return min(entries * (self.index_bytes + self.value_bytes), span * self.value_bytes)

    def frame_bytes(self, entries: float, span: float) -> int:
        """Bytes of a frame with so many entries of a range, in the smaller form; no clusters are assumed."""
        if self.is_dense(entries, span):
            return self.dense_frame_bytes(span)
        return self.sparse_frame_bytes(entries, span)

    def sparse_frame_bytes(self, entries: float, span: float) -> int:
        count = round(entries)
        indices = best_form_by_count(count, round(span), self.index_bytes, self.index_price)
        return HEADER_BYTES + indices.nbytes + self._travelling(count)

    def dense_frame_bytes(self, span: float) -> int:
        return HEADER_BYTES + self._travelling(round(span))

    def _travelling(self, values: int) -> int:
        nbytes = values * self.value_bytes if self.precision is None else self.precision.nbytes(values)
        return -(-nbytes // 8) * 8
