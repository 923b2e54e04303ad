"""OmniReduce's scripts: the pumps of its workers and aggregators."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.omnireduce import blocks, pairs
from sparsewire.algorithms.omnireduce.block_sources import DenseBlocks, SparseBlocks
from sparsewire.algorithms.omnireduce.message import CONTRIBUTION, Message, Terms
from sparsewire.cost import BLOCK
from sparsewire.errors import InputError, WireError
from sparsewire.reduction import Reduction
from sparsewire.steps import RecvAny, Send, Steps
from sparsewire.vector import Array, SparseVector

__all__ = ["OmniReduce", "aggregate", "omnireduce"]

# Rows of so many values make good blocks: to name a shorter one costs more than to send it.
SHORTEST_ROW, LONGEST_ROW = 16, 4096


@dataclass(frozen=True)
class OmniReduce:
    """How OmniReduce does it; every rank has the same.

    ``block`` is how many positions travel together if one of them is not zero; with None they travel one by
    one, with their indices.  ``slots`` messages of about ``message_bytes`` are on their way between a worker
    and an aggregator.  With ``arrival``, blocks are added up in the order in which they come: the ranks still
    get the same bits as each other, but others on the next run.
    """

    block: int | None = None
    slots: int = 8
    message_bytes: int = 1 << 20
    arrival: bool = False

    def __post_init__(self) -> None:
        for name in ("block", "slots", "message_bytes"):
            value = getattr(self, name)
            if not (
                (value is None and name == "block")
                or (isinstance(value, int | np.integer) and 0 < value < 2**31)
            ):
                raise InputError(f"{name} is {value!r}; it must be a positive number, below 2^31")

    @classmethod
    def for_input(cls, vec: SparseVector, row: int) -> OmniReduce:
        """Entries of a sparse vector; blocks of a dense one: its rows, if their length is a good one."""
        if not vec.is_dense:
            return cls()
        return cls(row if SHORTEST_ROW <= row <= LONGEST_ROW else BLOCK)

    @property
    def detail(self) -> int:
        """What ranks compare before they begin; messages carry the rest."""
        return self.block or 0

    def terms(self, length: int, value_bytes: int, servers: int) -> Terms:
        """For a vector."""
        unit_bytes = 4 + value_bytes if self.block is None else self.block * value_bytes
        width = max(1, self.message_bytes // unit_bytes)
        return Terms(self.block or 0, self.slots, width, self.arrival).fitted(length, servers)


def omnireduce(
    rank: int,
    size: int,
    vec: SparseVector,
    context: Context = PLAIN,
) -> Steps[SparseVector]:
    """A worker's script; if no ranks only aggregate, all ``size`` workers aggregate too.

    The options are an ``OmniReduce``.  The sum of blocks of a dense vector is written to ``context.out``.
    """
    servers = range(size) if context.servers is None else context.servers
    options = context.options or OmniReduce()
    terms = options.terms(vec.length, vec.dtype.itemsize, len(servers))
    worker = _worker(vec, terms, servers, context.out)
    aggregator = None
    if rank in servers:
        place, places = servers.index(rank), len(servers)
        aggregator = _aggregator(place, places, size, context.op, vec.dtype, vec.length, terms)
    yield from _pump(rank, worker, aggregator, worker.begin(first=rank + 1))
    return worker.result()


def aggregate(
    rank: int, size: int, servers: Sequence[int], op: Reduction, dtype: np.dtype[Any], length: int
) -> Steps[None]:
    """The script of a rank that only aggregates, for one collective of ``size`` workers."""
    [(source, payload)] = yield [RecvAny(tuple(range(size)))]
    terms = Message.read(source, payload).terms
    if terms != terms.fitted(length, len(servers)):
        raise WireError(f"rank {source} sends {terms}, which a vector of {length:,} does not fill")
    aggregator = _aggregator(servers.index(rank), len(servers), size, op, dtype, length, terms)
    yield from _pump(rank, None, aggregator, _dispatch(source, payload, None, aggregator))


_Worker = blocks.Worker | pairs.Worker
_Aggregator = blocks.Aggregator | pairs.Aggregator


def _worker(vec: SparseVector, terms: Terms, servers: Sequence[int], out: Array | None) -> _Worker:
    if not terms.block:
        return pairs.Worker(vec, terms, servers)
    source = DenseBlocks(vec, terms.block, out) if vec.is_dense else SparseBlocks(vec, terms.block)
    return blocks.Worker(source, blocks.Layout(vec.length, len(servers), terms), servers)


def _aggregator(
    place: int, places: int, workers: int, op: Reduction, dtype: np.dtype[Any], length: int, terms: Terms
) -> _Aggregator:
    if not terms.block:
        return pairs.Aggregator(place, pairs.Stripes(length, places).share, terms, workers, op, dtype)
    return blocks.Aggregator(place, blocks.Layout(length, places, terms), workers, op, dtype)


def _pump(
    rank: int, worker: _Worker | None, aggregator: _Aggregator | None, sends: Iterable[Send]
) -> Steps[None]:
    """Carry messages until nobody waits for one any more; what a rank tells itself does not travel."""
    roles = [role for role in (worker, aggregator) if role is not None]
    outbox: deque[Send] = deque()
    for send in sends:  # each is on its way before the next one is made
        if send.peer == rank:
            outbox.extend(_dispatch(rank, send.payload, worker, aggregator))
        else:
            yield [send]
    while True:
        leaving = []
        while outbox:
            send = outbox.popleft()
            if send.peer == rank:
                outbox.extend(_dispatch(rank, send.payload, worker, aggregator))
            else:
                leaving.append(send)
        awaited = {peer for role in roles for peer in role.awaited}
        if not awaited:
            yield leaving
            return
        [(source, payload)] = yield [*leaving, RecvAny(tuple(sorted(awaited - {rank})))]
        outbox.extend(_dispatch(source, payload, worker, aggregator))


def _dispatch(
    source: int, payload: Any, worker: _Worker | None, aggregator: _Aggregator | None
) -> list[Send]:
    message = Message.read(source, payload)
    role = aggregator if message.kind == CONTRIBUTION else worker
    if role is None:
        raise WireError(f"rank {source} takes this rank for {'an aggregator' if worker else 'a worker'}")
    return role.on_message(source, message)
