"""Sums of blocks that come from several workers, in the order of ranks or as they arrive.

Half types are added up in float32.  For the maximum and the minimum, a block that a worker does not send
counts as zeros, which is what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsewire import kernels, memory, work
from sparsewire.algorithms.omnireduce.message import Integers
from sparsewire.vector import Array, Reduction

__all__ = ["InArrivalOrder", "InRankOrder", "Part"]


class Part(NamedTuple):
    """Blocks, by column and then by number, and a row of data for each."""

    columns: Integers
    blocks: Integers
    data: Array

    def take(self, chosen: Any) -> Part:
        return Part(self.columns[chosen], self.blocks[chosen], self.data[chosen])

    def without_data(self) -> Part:
        return self._replace(data=self.data[:0])

    def split(self, bound: Integers) -> tuple[Part, Part]:
        """The blocks below the bound of their column, and the others."""
        below = self.blocks < bound[self.columns]
        return (self, self.take(slice(0))) if below.all() else (self.take(below), self.take(~below))


class InRankOrder:
    """Keeps what each worker sends until it is complete: the same inputs give the same bits."""

    def __init__(self, op: Reduction, workers: int) -> None:
        self._op, self._workers = op, workers
        self._parts: dict[int, Part] = {}

    def put(self, worker: int, part: Part) -> None:
        kept = self._parts.get(worker)
        self._parts[worker] = joined([kept, part]) if kept is not None and len(kept.blocks) else part

    def take(self, bound: Integers) -> Part:
        """The sums of all blocks below the bound of their column, by number."""
        ready = []
        for worker in sorted(self._parts):
            part, self._parts[worker] = self._parts[worker].split(bound)
            ready.append(part)
        return added_up(ready, self._op, self._workers)


class InArrivalOrder:
    """Adds up at once what comes; for sums only."""

    def __init__(self, op: Reduction, workers: int) -> None:
        self._op, self._workers = op, workers
        self._total: Part | None = None

    def put(self, worker: int, part: Part) -> None:
        if self._total is None:
            self._total = added_up([part], self._op, self._workers)
        elif np.array_equal(self._total.blocks, part.blocks):
            work.count(values=part.data.size)
            rows = np.arange(len(part.blocks))
            kernels.add_blocks(self._total.data.reshape(-1), rows, part.data.reshape(-1), part.data.shape[1])
        else:
            self._total = added_up([self._total, part], self._op, self._workers)

    def take(self, bound: Integers) -> Part:
        """As ``InRankOrder.take``."""
        assert self._total is not None
        done, self._total = self._total.split(bound)
        return done


def added_up(parts: Sequence[Part], op: Reduction, workers: int) -> Part:
    """The parts' sum, added up in the order given, in memory of its own."""
    blocks, rows = _union(parts)
    count, block = len(blocks.blocks), parts[0].data.shape[1]
    dtype = np.float32 if parts[0].data.dtype.itemsize == 2 else parts[0].data.dtype
    total = memory.empty(count * block, dtype).reshape(count, block)
    work.count(values=sum(part.data.size for part in parts[1:]))
    with np.errstate(over="ignore", invalid="ignore"):  # sums that overflow, and inf - inf, are values
        if op.absent_is_neutral:
            _sum(total, rows, parts)
        else:
            _reduce(total, rows, parts, op, workers)
    return blocks._replace(data=total)


def _union(parts: Sequence[Part]) -> tuple[Part, list[Integers]]:
    """All blocks of the parts, without data, and at which row each part has its own."""
    first = parts[0].without_data()
    if all(np.array_equal(part.blocks, first.blocks) for part in parts[1:]):
        return first, [np.arange(len(first.blocks))] * len(parts)
    columns = np.concatenate([part.columns for part in parts])
    blocks = np.concatenate([part.blocks for part in parts])
    order = np.lexsort((blocks, columns))
    differs = np.diff(blocks[order], prepend=-1) != 0  # equal ones are neighbours
    rows = np.empty(len(order), np.int64)
    rows[order] = np.cumsum(differs) - 1
    ends = np.cumsum([len(part.blocks) for part in parts])
    chosen = order[differs]
    return first._replace(columns=columns[chosen], blocks=blocks[chosen]), np.split(rows, ends[:-1])


def _sum(total: Array, rows: Sequence[Integers], parts: Sequence[Part]) -> None:
    covered = len(rows[0]) == len(total)
    total[:] = parts[0].data if covered else 0
    for row, part in list(zip(rows, parts, strict=True))[covered:]:
        kernels.add_blocks(total.reshape(-1), row, part.data.reshape(-1), total.shape[1])


def _reduce(
    total: Array, rows: Sequence[Integers], parts: Sequence[Part], op: Reduction, workers: int
) -> None:
    times = np.zeros(len(total), np.int64)  # how many parts have the block, so far
    for row, part in zip(rows, parts, strict=True):
        fresh = times[row] == 0
        total[row[fresh]] = part.data[fresh]
        total[row[~fresh]] = op.combine(total[row[~fresh]], part.data[~fresh].astype(total.dtype, copy=False))
        times[row] += 1
    absent = times < workers
    total[absent] = op.combine(total[absent], total.dtype.type(0))
    total += total.dtype.type(0)  # -0.0 becomes 0.0


def joined(parts: Sequence[Part]) -> Part:
    """All blocks of the parts, in their order."""
    together = Part(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return together.take(np.lexsort((together.blocks, together.columns)))
