"""Sums of blocks that come from several workers, in the order of ranks or as they arrive.

Half types are added up in float32.  For the maximum and the minimum, a block that a worker does not send
counts as zeros, which is what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsewire import kernels, work
from sparsewire.algorithms.omnireduce.message import Integers
from sparsewire.kernels import memory
from sparsewire.reduction import Reduction
from sparsewire.vector import Array

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
        if below.all() or not below.any():
            none = self.take(slice(0))
            return (self, none) if below.all() else (none, self)
        return self.take(below), self.take(~below)


class InRankOrder:
    """Keeps what workers send until it is complete: the same inputs give the same bits."""

    def __init__(self, op: Reduction, workers: int) -> None:
        self._op, self._workers = op, workers
        self._parts: list[list[Part]] = [[] for _ in range(workers)]

    def put(self, worker: int, part: Part) -> None:
        self._parts[worker].append(part)

    def take(self, bound: Integers) -> Part:
        """The sums of all blocks below the bound of their column."""
        halves = [[part.split(bound) for part in parts] for parts in self._parts]
        self._parts = [[above for _, above in of_one if len(above.blocks)] for of_one in halves]
        return added_up([below for of_one in halves for below, _ in of_one], self._op, self._workers)


class InArrivalOrder:
    """Adds up what comes as soon as it can; for sums only."""

    def __init__(self, op: Reduction, workers: int) -> None:
        self._op, self._workers = op, workers
        self._totals: list[Part] = []

    def put(self, worker: int, part: Part) -> None:
        for total in self._totals:
            if np.array_equal(total.blocks, part.blocks):
                work.count(values=part.data.size)
                _add(total.data, np.arange(len(part.blocks)), part.data)
                return
        self._totals.append(added_up([part], self._op, self._workers))

    def take(self, bound: Integers) -> Part:
        """As ``InRankOrder.take``."""
        halves = [total.split(bound) for total in self._totals]
        self._totals = [above for _, above in halves if len(above.blocks)]
        return added_up([below for below, _ in halves], self._op, self._workers)


def added_up(parts: Sequence[Part], op: Reduction, workers: int) -> Part:
    """The parts' sum, added up in the order given, in memory of its own."""
    parts = [part for part in parts if len(part.blocks)] or parts[:1]
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
    total[:] = parts[0].data if covered else -0.0  # x + -0.0 is x, whatever the sign of a zero
    for row, part in list(zip(rows, parts, strict=True))[covered:]:
        _add(total, row, part.data)


def _reduce(
    total: Array, rows: Sequence[Integers], parts: Sequence[Part], op: Reduction, workers: int
) -> None:
    times = np.zeros(len(total), np.int64)  # how many parts so far have the block
    for row, part in zip(rows, parts, strict=True):
        fresh = times[row] == 0
        total[row[fresh]] = part.data[fresh]
        total[row[~fresh]] = op.combine(total[row[~fresh]], part.data[~fresh].astype(total.dtype, copy=False))
        times[row] += 1
    absent = times < workers
    total[absent] = op.combine(total[absent], total.dtype.type(0))
    total += total.dtype.type(0)  # -0.0 becomes 0.0


def _add(total: Array, rows: Integers, data: Array) -> None:
    kernels.add_blocks(total.reshape(-1), rows, data.reshape(-1), total.shape[1])
