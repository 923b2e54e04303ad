"""OmniReduce's block form: workers send their blocks that are not zero, aggregators add them up.  No I/O.

Every block belongs to a column of an aggregator, and ``fusion`` columns are a slot.  In a column a worker's
blocks go one after the other, and with each travels the number of the one that follows:

    worker       of every column: (column, current, next) and the data of current, its first block there
    aggregator   once all have spoken about a slot: in each column all blocks below the smallest next are
                 complete, for who has another one would have named it; their sums go to every worker
    worker       whose current came back: (column, current, next) again, one block further

So a sum is the permission to send the next block, and slots are a window: while one is added up the others
are on their way.  Which messages there are, and the sums in them, do not depend on who is faster.

The original sends a block of every column before it knows who has one, and asks for each further one; here a
worker's first blocks are on their way from the start, and its next follows without being asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np

from sparsewire.algorithms.omnireduce.block_sources import DenseBlocks, SparseBlocks
from sparsewire.algorithms.omnireduce.block_sums import InArrivalOrder, InRankOrder, Part
from sparsewire.algorithms.omnireduce.dealing import Deal
from sparsewire.algorithms.omnireduce.message import CONTRIBUTION, RESULT, Integers, Message, Terms, turned
from sparsewire.errors import CallMismatchError, WireError
from sparsewire.steps import Send
from sparsewire.vector import Array, Reduction, SparseVector

__all__ = ["Aggregator", "Layout", "Worker"]


@dataclass(frozen=True)
class Layout:
    """Which column of which aggregator a block belongs to."""

    length: int
    aggregators: int
    terms: Terms

    @property
    def blocks(self) -> int:
        """How many there are; as the number of a block it means none."""
        return -(-self.length // self.terms.block)

    @property
    def columns(self) -> int:
        """Of one aggregator."""
        return self.terms.slots * self.terms.width

    def place(self, blocks: Integers) -> tuple[Integers, Integers]:
        """The aggregator and the column of each block."""
        aggregator, card = Deal(self.aggregators).of(blocks)
        return aggregator, Deal(self.columns).of(card)[0]


class Batch(NamedTuple):
    """Blocks, at most one of a column if they are a worker's; ``data`` has a row for each."""

    columns: Integers
    current: Integers
    next: Integers
    data: Array

    def between(self, begin: int, end: int) -> Batch:
        return Batch(*(part[begin:end] for part in self))

    def message(self, kind: int, number: int, terms: Terms) -> Message:
        numbers = np.concatenate([self.columns, self.current, self.next])
        return Message(kind, number, terms, numbers, SparseVector.from_dense(self.data.reshape(-1)))

    @classmethod
    def read(cls, source: int, message: Message, layout: Layout, dtype: np.dtype[Any], place: int) -> Batch:
        """What a message says about blocks of the aggregator at ``place``."""
        if message.terms != layout.terms:
            raise CallMismatchError(f"rank {source} sends {message.terms}, and others {layout.terms}")
        count, rest = divmod(len(message.numbers), 3)
        block, body = layout.terms.block, message.body
        if rest or not body.is_dense or body.nnz != count * block or body.dtype != dtype:
            raise WireError(
                f"rank {source} sends {len(message.numbers)} numbers and {body.nnz} values of "
                f"{body.dtype.name}, which are no blocks of {block} values of {dtype.name}"
            )
        columns, current, following = message.numbers.reshape(3, count)
        aggregator, column = layout.place(current)
        wrong = (current >= layout.blocks) | (aggregator != place) | (column != columns)
        wrong |= (following <= current) | (following > layout.blocks)
        if wrong.any():
            at = int(wrong.argmax())
            raise WireError(
                f"rank {source} sends block {current[at]}, next {following[at]}, in column {columns[at]} of "
                f"aggregator {place}, where they do not belong"
            )
        return cls(columns, current, following, body.values.reshape(-1, block))


class Worker:
    """One rank's vector on its way to the aggregators, and their sums on the way back."""

    def __init__(self, source: DenseBlocks | SparseBlocks, layout: Layout, servers: Sequence[int]) -> None:
        self._source, self._layout, self._servers = source, layout, servers
        self._open = {server: place for place, server in enumerate(servers)}  # those that have more to say
        mine = self._source.nonzero()
        aggregator, column = layout.place(mine)
        keys = aggregator * layout.columns + column
        counts = np.bincount(keys, minlength=layout.aggregators * layout.columns)
        self._blocks = mine[np.argsort(keys, kind="stable")]  # by aggregator, then column, then number
        self._ends = np.cumsum(counts).reshape(layout.aggregators, layout.columns)
        self._at = self._ends - counts.reshape(self._ends.shape)  # the current one of each column

    @property
    def awaited(self) -> set[int]:
        return {*self._open}

    def begin(self, first: int = 0) -> Iterator[Send]:
        """The first block of every column; to one aggregator after the other, from the ``first`` on."""
        rounds = zip_longest(*map(self._opening, turned(len(self._servers), first)))
        return (send for send in chain.from_iterable(rounds) if send is not None)

    def on_message(self, source: int, message: Message) -> list[Send]:
        if message.kind != RESULT or source not in self._open:
            raise WireError(f"rank {source} sends a sum out of turn")
        place = self._open[source]
        batch = Batch.read(source, message, self._layout, self._source.dtype, place)
        self._source.write(batch.current, batch.data)
        if not message.number:
            del self._open[source]
        at, ends = self._at[place], self._ends[place]
        column = batch.columns
        mine = column[(at[column] < ends[column]) & (self._current(at[column]) == batch.current)]
        at[mine] += 1
        going_on = mine[at[mine] < ends[mine]]
        return [self._contribution(place, going_on, self._layout.terms.slots)] if len(going_on) else []

    def result(self) -> SparseVector:
        return self._source.result()

    def _opening(self, place: int) -> Iterator[Send]:
        """Messages about all slots of an aggregator, each about as many as fill it."""
        columns = np.flatnonzero(self._at[place] < self._ends[place])
        slots, width = self._layout.terms.slots, self._layout.terms.width
        before = np.searchsorted(columns, np.arange(slots + 1) * width)
        for begin, end in _filled(np.diff(before).tolist(), width):
            yield self._contribution(place, columns[before[begin] : before[end]], end)

    def _contribution(self, place: int, columns: Integers, told: int) -> Send:
        at = self._at[place, columns]
        current = self._blocks[at]
        following = np.where(at + 1 < self._ends[place, columns], self._current(at + 1), self._layout.blocks)
        batch = Batch(columns, current, following, self._source.gather(current))
        return Send(self._servers[place], batch.message(CONTRIBUTION, told, self._layout.terms).payload())

    def _current(self, at: Integers) -> Integers:
        """The block at each place, and any where there is none."""
        if not len(self._blocks):
            return at
        return self._blocks[np.minimum(at, len(self._blocks) - 1)]


class Aggregator:
    """The sums of one aggregator's blocks."""

    def __init__(self, place: int, layout: Layout, workers: int, op: Reduction, dtype: np.dtype[Any]) -> None:
        self._place, self._layout, self._workers, self._dtype = place, layout, workers, dtype
        self._slots = [_Slot(number, layout, workers, op, dtype) for number in range(layout.terms.slots)]
        self._told = [0] * workers  # how many slots each worker has spoken about at least once
        self._open = layout.terms.slots

    @property
    def awaited(self) -> set[int]:
        return {worker for slot in self._slots for worker in slot.waiting}

    def on_message(self, source: int, message: Message) -> list[Send]:
        if message.kind != CONTRIBUTION or not 0 <= source < self._workers:
            raise WireError(f"rank {source} sends blocks and is no worker")
        batch = Batch.read(source, message, self._layout, self._dtype, self._place)
        complete = []
        for slot, part in self._parts(source, message.number, batch):
            slot.hear(source, part)
            if not slot.waiting:
                complete.append((slot, slot.complete()))
        return list(self._results(complete))

    def _parts(self, source: int, told: int, batch: Batch) -> Iterator[tuple[_Slot, Batch]]:
        """What a worker says about each slot; about those that it opens it may have nothing to say."""
        slots, width = self._layout.terms.slots, self._layout.terms.width
        if not self._told[source] <= told <= slots or (np.diff(batch.columns) <= 0).any():
            raise WireError(f"rank {source} tells about {told} of {slots} slots, or of columns in disorder")
        opened, self._told[source] = range(self._told[source], told), told
        for number in sorted({*(batch.columns // width).tolist(), *opened}):
            begin, end = np.searchsorted(batch.columns, [number * width, (number + 1) * width])
            yield self._slots[number], batch.between(begin, end)

    def _results(self, complete: Sequence[tuple[_Slot, Batch]]) -> Iterator[Send]:
        """Messages with the sums of slots, each with as many as fill it, to every worker."""
        terms = self._layout.terms
        for begin, end in _filled([len(batch.current) for _, batch in complete], terms.width):
            self._open -= sum(not slot.waiting for slot, _ in complete[begin:end])
            batch = _joined([batch for _, batch in complete[begin:end]])
            if len(batch.current) or not self._open:
                payload = batch.message(RESULT, self._open, terms).payload()
                yield from (Send(worker, payload) for worker in turned(self._workers, self._place + 1))


class _Slot:
    """What workers have said about some columns, and the sums that are being made of it."""

    def __init__(
        self, number: int, layout: Layout, workers: int, op: Reduction, dtype: np.dtype[Any]
    ) -> None:
        self.waiting = set(range(workers))  # who has to speak before anything is complete
        self._layout, self._dtype = layout, dtype
        self._first = number * layout.terms.width  # of its columns
        shape = workers, layout.terms.width
        self._current = np.full(
            shape, layout.blocks
        )  # the block that each worker has sent and is not complete
        self._next = np.full(shape, layout.blocks)  # ... and the one that it will send then
        self._due: dict[
            int, Integers
        ] = {}  # the columns that a worker has to speak about, after its first words
        at_once = layout.terms.arrival and op.absent_is_neutral  # otherwise the order does not matter
        self._sums = InArrivalOrder(op, workers) if at_once else InRankOrder(op, workers)

    def hear(self, worker: int, batch: Batch) -> None:
        column = batch.columns - self._first
        due = self._due.get(worker, column)
        named = self._next[worker, column] if worker in self._due else batch.current
        if worker not in self.waiting or not np.array_equal(due, column) or (named != batch.current).any():
            raise WireError(f"rank {worker} sends blocks {batch.current} out of turn: due are {named}")
        self.waiting.remove(worker)
        self._current[worker, column] = batch.current
        self._next[worker, column] = batch.next
        self._sums.put(worker, Part(column, batch.current, batch.data))

    def complete(self) -> Batch:
        """The sums of all blocks below everybody's next; from here on the slot waits for who has more."""
        bound = self._next.min(axis=0)
        done = self._current < bound
        self._current[done] = self._layout.blocks
        due = done & (self._next < self._layout.blocks)
        self.waiting = set(np.flatnonzero(due.any(axis=1)).tolist())
        self._due = {worker: np.flatnonzero(due[worker]) for worker in self.waiting}
        columns, blocks, sums = self._sums.take(bound)
        return Batch(self._first + columns, blocks, bound[columns], sums.astype(self._dtype, copy=False))


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return Batch(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))


def _filled(counts: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Neighbours that are together at most so many, as ranges; one that is larger is alone.

    >>> list(_filled([3, 1, 2, 9, 0], 4))
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    begin = inside = 0
    for end, count in enumerate(counts):
        if end > begin and inside + count > most:
            yield begin, end
            begin, inside = end, 0
        inside += count
    if counts:
        yield begin, len(counts)
