"""OmniReduce's block form: workers send their blocks that are not zero, aggregators add them up.  No I/O.

Every block belongs to a column of an aggregator, and some columns are a slot.  In a column a worker's blocks
go one after the other, and with each travels the number of the one that follows:

    worker       of every column: (column, current, next) and the data of current, for its first blocks there
    aggregator   once all have spoken about a slot: in each column all blocks below the smallest next are
                 complete, for who has another one would have named it; their sums go to every worker
    worker       whose blocks of a column have all come back: (column, current, next) again, of those behind

So a sum is the permission to send more, and slots are a window: while one is added up the others are on their
way.  The sums do not depend on who is faster.

The original sends a block of every column before it knows who has one, and asks for each further one.  Here
a worker's first blocks are on their way from the start, several of a column if it has blocks in few of them,
and more follow without being asked for: a link has a queue, and a question waits in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsewire.algorithms.omnireduce.block_sources import DenseBlocks, SparseBlocks
from sparsewire.algorithms.omnireduce.block_sums import InArrivalOrder, InRankOrder, Part
from sparsewire.algorithms.omnireduce.dealing import Deal, ranges
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
    """Blocks, by column and then by number; ``data`` has a row for each."""

    columns: Integers
    current: Integers
    next: Integers
    data: Array

    @property
    def is_first(self) -> npt.NDArray[np.bool_]:
        """Which are the first of their column."""
        first: npt.NDArray[np.bool_] = np.diff(self.columns, prepend=-1) != 0
        return first

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
        same = columns[1:] == columns[:-1]
        wrong[1:] |= (columns[1:] < columns[:-1]) | (same & (current[1:] <= current[:-1]))
        if wrong.any():
            at = int(wrong.argmax())
            raise WireError(
                f"rank {source} sends block {current[at]}, next {following[at]}, in column {columns[at]} of "
                f"aggregator {place}, where they do not belong, or not in order"
            )
        return cls(columns, current, following, body.values.reshape(-1, block))


class Worker:
    """One rank's vector on its way to the aggregators, and their sums on the way back."""

    def __init__(self, source: DenseBlocks | SparseBlocks, layout: Layout, servers: Sequence[int]) -> None:
        self._source, self._layout, self._servers = source, layout, servers
        blocks = source.nonzero()
        aggregator, column = layout.place(blocks)
        mine = [aggregator == place for place in range(layout.aggregators)]
        self._shares = [_Share(column[chosen], blocks[chosen], layout) for chosen in mine]
        self._open = {server: place for place, server in enumerate(servers)}  # those that have more to say

    @property
    def awaited(self) -> set[int]:
        return {*self._open}

    def begin(self, first: int = 0) -> Iterator[Send]:
        """The first blocks of every column; to one aggregator after the other, from the ``first`` on."""
        rounds = zip_longest(*map(self._opening, turned(len(self._servers), first)))
        return (send for send in chain.from_iterable(rounds) if send is not None)

    def on_message(self, source: int, message: Message) -> list[Send]:
        if message.kind != RESULT or source not in self._open:
            raise WireError(f"rank {source} sends a sum out of turn")
        place = self._open[source]
        batch = Batch.read(source, message, self._layout, self._source.dtype, place)
        columns = self._shares[place].complete(source, batch, is_last=message.number == 0)
        self._source.write(batch.current, batch.data)
        if not message.number:
            del self._open[source]
        return [self._contribution(place, columns, self._layout.terms.slots)] if len(columns) else []

    def result(self) -> SparseVector:
        return self._source.result()

    def _opening(self, place: int) -> Iterator[Send]:
        """Messages about all slots of an aggregator, each about as many as fill it."""
        columns, counts = self._shares[place].opening()
        slots, width = self._layout.terms.slots, self._layout.terms.width
        of_slots = np.bincount(columns // width, weights=counts, minlength=slots)
        for begin, end in _filled(of_slots.tolist(), width):
            first, last = np.searchsorted(columns, [begin * width, end * width])
            yield self._contribution(place, columns[first:last], end)

    def _contribution(self, place: int, columns: Integers, told: int) -> Send:
        columns, current, following = self._shares[place].next(columns)
        batch = Batch(columns, current, following, self._source.gather(current))
        return Send(self._servers[place], batch.message(CONTRIBUTION, told, self._layout.terms).payload())


class _Share:
    """A worker's blocks of one aggregator, by column and then by number, and how far they are."""

    def __init__(self, columns: Integers, blocks: Integers, layout: Layout) -> None:
        order = np.argsort(columns, kind="stable")
        self._none = layout.blocks
        self._by_number, self._blocks = blocks, blocks[order]
        counts = np.bincount(columns, minlength=layout.columns)
        self._ends = np.cumsum(counts)  # of each column; the next two: what has been sent, and has come back
        self._sent = self._ends - counts
        self._complete = self._sent.copy()
        self._latest = np.full(layout.columns, -1)  # block of each column whose sum has come
        # Of a column so many blocks go at once that all together are no more than a block of every column.
        self._depth = layout.columns // max(1, int(np.count_nonzero(counts)))

    def opening(self) -> tuple[Integers, Integers]:
        """The columns that have blocks, and how many of each go at first."""
        columns = np.flatnonzero(self._sent < self._ends)
        return columns, np.minimum(self._depth, (self._ends - self._sent)[columns])

    def next(self, columns: Integers) -> tuple[Integers, Integers, Integers]:
        """The blocks of these columns that go now: column, number, and the number of the one that follows."""
        begins, ends = self._sent[columns], self._ends[columns]
        stops = np.minimum(begins + self._depth, ends)
        self._sent[columns] = stops
        at, counts = ranges(begins, stops), stops - begins
        following = np.append(self._blocks, self._none)[at + 1]
        following[at + 1 == np.repeat(ends, counts)] = self._none
        return np.repeat(columns, counts), self._blocks[at], following

    def complete(self, source: int, sums: Batch, is_last: bool) -> Integers:
        """These have come back; the columns of which others may go now."""
        at = np.searchsorted(self._by_number, sums.current)
        mine = sums.columns[np.append(self._by_number, -1)[at] == sums.current]
        complete = self._complete + np.bincount(mine, minlength=len(self._complete))
        is_first = sums.is_first
        repeated = sums.current[is_first] <= self._latest[sums.columns[is_first]]
        if repeated.any() or (complete > self._sent).any() or (is_last and (complete < self._ends).any()):
            raise WireError(f"rank {source} sends a sum twice, or of what it was not sent, or ends too early")
        self._complete = complete
        self._latest[sums.columns] = sums.current  # of those of one column the last stays
        mine = mine[np.diff(mine, prepend=-1) > 0]
        idle = (complete[mine] == self._sent[mine]) & (self._sent[mine] < self._ends[mine])
        return np.compress(idle, mine)


class Aggregator:
    """The sums of one aggregator's blocks."""

    def __init__(self, place: int, layout: Layout, workers: int, op: Reduction, dtype: np.dtype[Any]) -> None:
        self._place, self._layout, self._workers, self._dtype = place, layout, workers, dtype
        slots, columns = layout.terms.slots, layout.columns
        # By worker and column: the last block that has come, while it is not complete; the one that will come
        # then; and whether it is expected now.
        self._last = np.full((workers, columns), layout.blocks)
        self._next = np.full((workers, columns), layout.blocks)
        self._due = np.zeros((workers, columns), bool)
        self._waiting = np.ones((workers, slots), bool)  # who has to speak before a slot goes on
        self._told = [0] * workers  # how many slots each worker has spoken about at least once
        in_order_of_arrival = layout.terms.arrival and op.absent_is_neutral  # for others it does not matter
        self._sums = (InArrivalOrder if in_order_of_arrival else InRankOrder)(op, workers)

    @property
    def awaited(self) -> set[int]:
        return set(np.flatnonzero(self._waiting.any(axis=1)).tolist())

    def on_message(self, source: int, message: Message) -> list[Send]:
        if message.kind != CONTRIBUTION or not 0 <= source < self._workers:
            raise WireError(f"rank {source} sends blocks and is no worker")
        batch = Batch.read(source, message, self._layout, self._dtype, self._place)
        spoken = self._spoken(source, message.number, batch)
        self._waiting[source, spoken] = False
        self._due[source, batch.columns] = False
        self._last[source, batch.columns] = batch.current  # of those of one column the last stays
        self._next[source, batch.columns] = batch.next
        self._sums.put(source, Part(batch.columns, batch.current, batch.data))
        complete = spoken & ~self._waiting.any(axis=0)
        return list(self._results(complete, self._complete(complete))) if complete.any() else []

    def _spoken(self, source: int, told: int, batch: Batch) -> npt.NDArray[np.bool_]:
        """The slots that a message is about, once it is known to be about what is due."""
        slots, width = self._layout.terms.slots, self._layout.terms.width
        columns, current, is_first = batch.columns, batch.current, batch.is_first
        aggregator, column = self._layout.place(batch.next)
        is_here = (aggregator == self._place) & (column == columns) | (batch.next == self._layout.blocks)
        if not is_here.all() or (batch.next[:-1] != current[1:])[~is_first[1:]].any():
            raise WireError(f"rank {source} names blocks {batch.next}, which do not follow {current}")
        opened, spoken = np.zeros((2, slots), bool)
        if not self._told[source] <= told <= slots or (columns >= told * width).any():
            raise WireError(f"rank {source} tells about {told} of {slots} slots, after {self._told[source]}")
        opened[self._told[source] : told] = True
        spoken[columns // width] = True
        due = np.flatnonzero(self._due[source] & np.repeat(spoken, width))
        going_on = is_first & ~opened[columns // width]
        columns, current = columns[going_on], current[going_on]
        if not np.array_equal(columns, due) or (self._next[source, columns] != current).any():
            raise WireError(
                f"rank {source} sends blocks {current} and should send {self._next[source, due]}: out of turn"
            )
        self._told[source] = told
        return opened | spoken

    def _complete(self, slots: npt.NDArray[np.bool_]) -> Batch:
        """The sums of all blocks below everybody's next; from here on these slots wait for who has more."""
        column = np.repeat(slots, self._layout.terms.width)
        bound = np.where(column, self._next.min(axis=0), 0)
        done = self._last < bound
        self._last[done] = self._layout.blocks
        self._due |= done & (self._next < self._layout.blocks)
        self._waiting |= self._due.reshape(self._workers, len(slots), -1).any(axis=2)
        columns, blocks, sums = self._sums.take(bound)
        return Batch(columns, blocks, bound[columns], sums.astype(self._dtype, copy=False))

    def _results(self, slots: npt.NDArray[np.bool_], sums: Batch) -> Iterator[Send]:
        """Messages with the sums of slots, each with as many as fill it, to every worker."""
        terms = self._layout.terms
        before = np.searchsorted(sums.columns, [0, *(np.flatnonzero(slots) + 1) * terms.width])
        parts = list(_filled(np.diff(before).tolist(), terms.width))
        for part, (begin, end) in enumerate(parts, start=1):
            batch = sums.between(before[begin], before[end])
            is_last = part == len(parts) and not self._waiting.any()
            if len(batch.current) or is_last:
                payload = batch.message(RESULT, int(not is_last), terms).payload()
                yield from (Send(worker, payload) for worker in turned(self._workers, self._place + 1))


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
