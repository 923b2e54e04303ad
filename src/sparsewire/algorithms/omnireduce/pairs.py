"""OmniReduce's key-value form: workers stream their entries, aggregators merge the streams.  No I/O.

The positions are dealt to aggregators in stripes.  Each aggregator has a shorter vector, of its stripes only:

    worker       sends its first entries of that vector, at most ``width`` in a message.  A message is a piece
                 that ends where the next entry is.  ``slots`` messages are on their way at a time
    aggregator   knows all entries up to the position that the pieces of all workers reach.  It merges that
                 range, and sends the sum to every worker
    worker       sends another message for each one whose end the sums have reached

No dense vector is formed on the way, and no aggregator holds more than ``slots * width`` entries of a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sparsewire import kernels, work
from sparsewire.algorithms.omnireduce.dealing import Deal
from sparsewire.algorithms.omnireduce.message import CONTRIBUTION, RESULT, Integers, Message, Terms, turned
from sparsewire.errors import CallMismatchError, WireError
from sparsewire.kernels import memory
from sparsewire.reduction import Reduction, concat
from sparsewire.steps import Send
from sparsewire.vector import SparseVector, index_dtype

__all__ = ["STRIPE_ENTRIES", "Aggregator", "Stripes", "Worker"]

STRIPE = 256  # positions, or a multiple: whole tiles of the wire format, and the rows of most embeddings
MOST_STRIPES = 512  # enough to spread a region with many entries, and few enough to take little time
STRIPE_ENTRIES = 500  # measured: Python moves a stripe in the time in which so many entries are merged
NOTHING: Integers = np.empty(0, np.int64)
NOWHERE = -1  # before the first position


class Stripes:
    """How the positions of a vector are shared out among aggregators."""

    def __init__(self, length: int, aggregators: int) -> None:
        stripe = STRIPE * -(-length // (STRIPE * MOST_STRIPES))
        stripe = max(1, min(stripe, -(-length // aggregators)))  # a short vector has one for each
        stripes = np.arange(-(-length // stripe))
        turns = -(-len(stripes) // aggregators)
        self.count = len(stripes)
        self.share = turns * stripe  # length of an aggregator's vector
        self._length = length
        self._cuts, self._share_cuts = stripe * np.arange(len(stripes) + 1), stripe * np.arange(turns + 1)
        hand, turn = Deal(aggregators).of(stripes)
        self._of_each = [np.flatnonzero(hand == one) for one in range(aggregators)]
        # The distance from a stripe in the whole vector to the same stripe in its aggregator's vector.
        self._nearer = self._cuts[:-1] - self._share_cuts[turn]

    def split(self, vec: SparseVector) -> list[SparseVector]:
        """Each aggregator's vector."""
        stripes = self._cut(vec, self._cuts)
        return [
            _joined([stripes[number] for number in mine], -self._nearer[mine], self.share, vec.dtype)
            for mine in self._of_each
        ]

    def join(self, shares: Sequence[SparseVector]) -> SparseVector:
        """The vector of which these are the aggregators' parts."""
        stripes: list[Any] = [None] * len(self._nearer)
        for mine, share in zip(self._of_each, shares, strict=True):
            for number, stripe in zip(mine, self._cut(share, self._share_cuts), strict=False):
                stripes[number] = stripe
        return _joined(stripes, self._nearer, self._length, shares[0].dtype)

    def _cut(self, vec: SparseVector, cuts: Integers) -> list[kernels.Entries]:
        entries = vec.as_sparse()
        assert entries.indices is not None
        at = kernels.split_at(entries.indices, cuts).tolist()
        return [(entries.indices[begin:end], entries.values[begin:end]) for begin, end in pairwise(at)]


def _joined(
    stripes: Sequence[kernels.Entries], shifts: Integers, length: int, dtype: np.dtype[Any]
) -> SparseVector:
    """The stripes, in this order and with shifted indices, as one vector."""
    counts = [len(values) for _, values in stripes]
    work.count(entries=STRIPE_ENTRIES * len(stripes), values=2 * sum(counts))
    indices = memory.empty(sum(counts), index_dtype(length))
    values = memory.empty(sum(counts), dtype)
    if stripes:
        np.concatenate([part for part, _ in stripes], out=indices, casting="unsafe")
        np.concatenate([part for _, part in stripes], out=values)
        indices += np.repeat(shifts.astype(indices.dtype), counts)  # modulo 2^32 or 2^64, in which all fits
    return SparseVector.piece(length, 0, length, indices, values)


class Worker:
    """One rank's entries on their way to the aggregators, and their sums on the way back."""

    def __init__(self, vec: SparseVector, terms: Terms, servers: Sequence[int]) -> None:
        self._terms = terms
        self._stripes = Stripes(vec.length, len(servers))
        shares = self._stripes.split(vec)
        self._streams = {server: _Stream(share) for server, share in zip(servers, shares, strict=True)}

    @property
    def awaited(self) -> set[int]:
        return {server for server, stream in self._streams.items() if not stream.is_summed}

    def begin(self, first: int = 0) -> Iterator[Send]:
        """As many messages as may be on their way, to each aggregator in turn, beginning with ``first``."""
        servers = [*self._streams]
        for place in self._terms.slots * turned(len(servers), first):
            yield from self._contribution(servers[place])

    def on_message(self, source: int, message: Message) -> list[Send]:
        stream = self._streams.get(source)
        if message.kind != RESULT or stream is None or stream.is_summed:
            raise WireError(f"rank {source} sends a sum out of turn")
        _check(source, message, self._terms, stream.share, stream.summed)
        if message.body.stop > stream.told:
            raise WireError(
                f"rank {source} sends {message.body}, beyond {stream.told}: nobody said what is there"
            )
        arrived = stream.take(message.body)
        return [send for _ in range(arrived) for send in self._contribution(source)]

    def result(self) -> SparseVector:
        total = self._stripes.join([concat(stream.sums) for stream in self._streams.values()])
        # If the entries need more bytes than the dense vector, many of their sums may be zero.
        smaller = total.smaller()
        return smaller.smaller() if smaller.is_dense else total

    def _contribution(self, server: int) -> Iterator[Send]:
        """The next message, unless all entries have been sent."""
        stream = self._streams[server]
        if not stream.is_told:
            body = stream.next(self._terms.width)
            yield Send(server, Message(CONTRIBUTION, 0, self._terms, NOTHING, body).payload())


class _Stream:
    """A worker's part of one aggregator's vector, and how much of it is under way."""

    def __init__(self, share: SparseVector) -> None:
        self.share = share
        self.sums: list[SparseVector] = []
        self.is_told = False  # whether all entries have been sent
        self.told = 0  # the position up to which entries have been sent
        self._entries = 0  # how many entries have been sent
        self._ends: deque[int] = deque()  # where messages end whose sums have not come

    @property
    def summed(self) -> int:
        """How far the sums reach."""
        return self.sums[-1].stop if self.sums else 0

    @property
    def is_summed(self) -> bool:
        return bool(self.sums) and self.summed == self.share.length

    def next(self, most: int) -> SparseVector:
        """The piece of the next entries, at most so many; it ends where the entry after them is."""
        begin, self._entries = self._entries, min(self._entries + most, self.share.nnz)
        self.is_told = self._entries == self.share.nnz
        piece = self.share.entries_between(begin, self._entries)
        self._ends.append(piece.stop)
        self.told = piece.stop
        return piece

    def take(self, total: SparseVector) -> int:
        """How many messages end in this sum, which is kept."""
        self.sums.append(total)
        before = len(self._ends)
        while self._ends and self._ends[0] <= total.stop:
            self._ends.popleft()
        return before - len(self._ends)


class Aggregator:
    """The sum of one aggregator's vectors, made from left to right."""

    def __init__(
        self, place: int, length: int, terms: Terms, workers: int, op: Reduction, dtype: np.dtype[Any]
    ) -> None:
        self._place, self._terms, self._op = place, terms, op
        self._like = SparseVector.empty(length, dtype)
        self._pieces: list[deque[SparseVector]] = [deque() for _ in range(workers)]  # not summed yet
        self._reached = [NOWHERE] * workers  # how far each worker's pieces go
        self._done = NOWHERE  # how far the sums go

    @property
    def awaited(self) -> set[int]:
        return {worker for worker, reached in enumerate(self._reached) if reached < self._like.length}

    def on_message(self, source: int, message: Message) -> list[Send]:
        if message.kind != CONTRIBUTION or source not in self.awaited:
            raise WireError(f"rank {source} sends entries out of turn")
        _check(source, message, self._terms, self._like, max(0, self._reached[source]))
        if len(self._pieces[source]) == self._terms.slots or message.body.nnz > self._terms.width:
            raise WireError(
                f"rank {source} sends more than {self._terms.slots} times {self._terms.width} entries"
            )
        self._pieces[source].append(message.body)
        self._reached[source] = message.body.stop
        bound = min(self._reached)
        if bound <= self._done:
            return []
        total = self._merged([self._below(bound, pieces) for pieces in self._pieces])
        self._done = bound
        payload = Message(RESULT, 0, self._terms, NOTHING, total).payload()
        return [Send(worker, payload) for worker in turned(len(self._pieces), self._place + 1)]

    def _merged(self, pieces: Sequence[SparseVector]) -> SparseVector:
        """The sum, always as entries: where a range ends depends on timing, and the form must not."""
        work.count(entries=sum(piece.nnz for piece in pieces) if len(pieces) > 1 else 0)
        entries = [(piece.indices, piece.values) for piece in pieces if piece.indices is not None]
        first = pieces[0]
        merged = self._op.merge_entries(entries, None)
        return SparseVector.piece(first.length, first.start, first.stop, *merged)

    def _below(self, bound: int, pieces: deque[SparseVector]) -> SparseVector:
        """The entries of a worker from the end of the sums so far up to the bound."""
        below = []
        while pieces and pieces[0].stop <= bound:
            below.append(pieces.popleft())
        if pieces and pieces[0].start < bound:
            low, pieces[0] = pieces[0].split_at([pieces[0].start, bound, pieces[0].stop])
            below.append(low)
        return concat(below)


def _check(source: int, message: Message, terms: Terms, like: SparseVector, start: int) -> None:
    """Raise an error unless the piece of the message is the next one of a vector like this."""
    body = message.body
    if message.terms != terms:
        raise CallMismatchError(f"rank {source} sends {message.terms}, and others {terms}")
    is_like = (body.length, body.dtype, body.start) == (like.length, like.dtype, start)
    is_new = start < body.stop or not like.length
    if body.is_dense or not is_like or not is_new or message.number or len(message.numbers):
        raise WireError(f"rank {source} sends {body}, and not what follows {start} in {like}")
