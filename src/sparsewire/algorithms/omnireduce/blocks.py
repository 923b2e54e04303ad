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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsewire.algorithms.omnireduce.block_sources import DenseBlocks, SparseBlocks
from sparsewire.algorithms.omnireduce.block_sums import InArrivalOrder, InRankOrder, Part
from sparsewire.algorithms.omnireduce.dealing import Deal, ranges
from sparsewire.algorithms.omnireduce.message import CONTRIBUTION, RESULT, Integers, Message, Terms, turned
from sparsewire.errors import CallMismatchError, WireError
from sparsewire.reduction import Reduction
from sparsewire.steps import Send
from sparsewire.vector import Array, SparseVector

__all__ = ["Aggregator", "Layout", "Worker"]

# In a first message: a smaller one costs more to handle than it gains by leaving early.
ENOUGH_BYTES = 1 << 18


@dataclass(frozen=True)
class Layout:
    """Which column of which aggregator a block belongs to."""

    length: int
    aggregators: int
    terms: Terms

    @property
    def blocks(self) -> int:
        """The number of blocks; where the number of a block is expected, it means that there is none."""
        return -(-self.length // self.terms.block)

    @property
    def columns(self) -> int:
        """The number of columns of one aggregator."""
        return self.terms.slots * self.terms.width

    @property
    def cards(self) -> int:
        """How many of a slot's blocks an aggregator gets."""
        return -(-self.blocks // (self.aggregators * self.terms.slots))

    def slot(self, number: int) -> tuple[int, int]:
        """The range of blocks of a slot, which are neighbours: the first, and the one after the last."""
        first, last = (
            min(self.blocks, place * self.cards * self.aggregators) for place in (number, number + 1)
        )
        return first, last

    def place(self, blocks: Integers) -> tuple[Integers, Integers]:
        """The aggregator and the column of each block."""
        aggregator, card = Deal(self.aggregators).of(blocks)
        slot = card // max(1, self.cards)
        column, _ = Deal(self.terms.width).of(card - slot * self.cards)
        return aggregator, slot * self.terms.width + column


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
        self._shares = _Shares(layout)
        self._open = {server: place for place, server in enumerate(servers)}  # those that send more

    @property
    def awaited(self) -> set[int]:
        return {*self._open}

    def begin(self, first: int = 0) -> Iterator[Send]:
        """The first blocks of every slot; to one aggregator after the other, from the ``first`` on.

        The vector is looked at slot by slot, while what was found before is on its way.
        """
        slots, row_bytes = self._layout.terms.slots, self._layout.terms.block * self._source.dtype.itemsize
        enough = min(self._layout.terms.width, ENOUGH_BYTES // row_bytes)
        for slot in range(slots):
            blocks = self._source.nonzero(*self._layout.slot(slot))
            self._shares.open(slot, *self._layout.place(blocks), blocks)
            for place in turned(len(self._servers), first):
                if self._shares.opened[place] > enough or slot + 1 == slots:
                    yield self._contribution(place, self._shares.take_opened(place, slot), slot + 1)

    def on_message(self, source: int, message: Message) -> list[Send]:
        if message.kind != RESULT or source not in self._open:
            raise WireError(f"rank {source} sends a sum out of turn")
        place = self._open[source]
        batch = Batch.read(source, message, self._layout, self._source.dtype, place)
        columns = self._shares.complete(place, batch, is_last=message.number == 0)
        if columns is None:
            raise WireError(f"rank {source} sends a sum twice, or of what it was not sent, or ends too early")
        self._source.write(batch.current, batch.data)
        if not message.number:
            del self._open[source]
        return [self._contribution(place, columns, self._layout.terms.slots)] if len(columns) else []

    def result(self) -> SparseVector:
        return self._source.result()

    def _contribution(self, place: int, columns: Integers, told: int) -> Send:
        columns, current, following = self._shares.next(place, columns)
        batch = Batch(columns, current, following, self._source.gather(current))
        return Send(self._servers[place], batch.message(CONTRIBUTION, told, self._layout.terms).payload())


class _Shares:
    """A worker's blocks, by slot, aggregator, column and number, and how far they are."""

    def __init__(self, layout: Layout) -> None:
        self._width, self._none = layout.terms.width, layout.blocks
        self._by_number = self._blocks = np.empty(0, np.int64)
        shape = layout.aggregators, layout.columns
        # Of each column: where its blocks end, and how many of them have been sent and have come back.
        self._ends, self._sent, self._complete = np.zeros((3, *shape), np.int64)
        self._latest = np.full(shape, -1)  # the last block whose sum has come
        # By aggregator and slot: how many blocks of a column are sent at once.
        self._depth = np.ones((layout.aggregators, layout.terms.slots), np.int64)
        # How many may go at first, in all, if more than one of a column: as many as there are columns.
        self._budget = np.full(layout.aggregators, layout.columns)
        self._told = [0] * layout.aggregators  # slots
        self.opened = np.zeros(layout.aggregators, np.int64)  # blocks, in slots that were not told about

    def open(self, slot: int, aggregator: Integers, columns: Integers, blocks: Integers) -> None:
        """Add the blocks of the next slot."""
        first = slot * self._width
        keys = aggregator * self._width + columns - first
        counts = np.bincount(keys, minlength=len(self._budget) * self._width).reshape(-1, self._width)
        here = slice(first, first + self._width)
        self._ends[:, here] = len(self._blocks) + np.cumsum(counts).reshape(counts.shape)
        self._sent[:, here] = self._complete[:, here] = self._ends[:, here] - counts
        self._by_number = np.concatenate([self._by_number, blocks])
        self._blocks = np.concatenate([self._blocks, blocks[np.argsort(keys, kind="stable")]])
        active = np.maximum(1, np.count_nonzero(counts, axis=1))
        self._depth[:, slot] = np.maximum(1, self._budget // active)
        going = np.minimum(counts, self._depth[:, slot, None]).sum(axis=1)
        self._budget = np.maximum(0, self._budget - going)
        self.opened += going

    def take_opened(self, place: int, slot: int) -> Integers:
        """An aggregator's columns that have blocks, in slots up to this one that it was not told about."""
        here = slice(self._told[place] * self._width, (slot + 1) * self._width)
        self._told[place], self.opened[place] = slot + 1, 0
        return here.start + np.flatnonzero(self._sent[place, here] < self._ends[place, here])

    def next(self, place: int, columns: Integers) -> tuple[Integers, Integers, Integers]:
        """The blocks of these columns that go now: column, number, and the number of the one that follows."""
        begins, ends = self._sent[place, columns], self._ends[place, columns]
        stops = np.minimum(begins + self._depth[place, columns // self._width], ends)
        self._sent[place, columns] = stops
        at, counts = ranges(begins, stops), stops - begins
        following = np.append(self._blocks, self._none)[at + 1]
        following[at + 1 == np.repeat(ends, counts)] = self._none
        return np.repeat(columns, counts), self._blocks[at], following

    def complete(self, place: int, sums: Batch, is_last: bool) -> Integers | None:
        """These have come back; the columns of which others may go now.  None if that cannot be."""
        sent, ends = self._sent[place], self._ends[place]
        at = np.searchsorted(self._by_number, sums.current)
        mine = sums.columns[np.append(self._by_number, -1)[at] == sums.current]
        complete = self._complete[place] + np.bincount(mine, minlength=len(ends))
        is_first = sums.is_first
        repeated = sums.current[is_first] <= self._latest[place, sums.columns[is_first]]
        if repeated.any() or (complete > sent).any() or (is_last and (complete < ends).any()):
            return None
        self._complete[place] = complete
        self._latest[place, sums.columns] = sums.current  # several of one column: the last one stays
        mine = mine[np.diff(mine, prepend=-1) > 0]
        return np.compress((complete[mine] == sent[mine]) & (sent[mine] < ends[mine]), mine)


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
        self._waiting = np.ones((workers, slots), bool)  # the workers that a slot waits for
        self._told = [0] * workers  # the slots for which each worker has sent at least one message
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
        self._last[source, batch.columns] = batch.current  # several of one column: the last one stays
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
