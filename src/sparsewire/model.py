"""The model behind every prediction: what a network does with messages, and what supports do when they merge.

>>> gigabit = Network(latency=50e-6, bandwidth=125e6)
>>> shape = Shape(size=4, length=2**24, nnz=167_772)
>>> round(shape.union(4) / shape.length, 4)
0.0394
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparsewire import support
from sparsewire.precision import Precision
from sparsewire.work import Work

__all__ = ["HEADER_BYTES", "NOTHING", "Cost", "Network", "Round", "Shape"]

# Bytes of a frame's header on the wire; tests hold it against the wire format.
HEADER_BYTES = 112
NOTHING = Work()
# Predictions leave out what coding costs, so it is only done where it saves clearly more.
CLEARLY = 1.5


@dataclass(frozen=True)
class Network:
    """What messages and computing cost; `sparsewire tune` measures it.

    The defaults are those of an ordinary 1 Gbit/s Ethernet on which computing is free.
    """

    latency: float = 50e-6  # seconds from a message's first byte sent to its first byte received
    bandwidth: float = 125e6  # bytes per second
    overhead: float = 0.0  # seconds a rank spends on each message
    seconds_per_entry: float = 0.0  # of computing, for each entry that goes through a merge
    seconds_per_value: float = 0.0  # ... for each value that is added, copied or looked at in a row
    overlap: float = 1.0  # share of computing that can hide behind transfers; 0 if the CPU moves the bytes
    startup: float = 0.0  # seconds of every call, whatever it does; cost functions compare without it
    seconds_per_index: float = 0.0  # ... for each index that is coded at one end and decoded at the other

    def seconds(self, messages: int, nbytes: float) -> float:
        """How long a NIC is busy with so many messages of so many bytes together."""
        return messages * self.overhead + nbytes / self.bandwidth

    @property
    def index_price(self) -> float:
        """How many bytes an index has to be coded to fewer, so that coding it is worth its time."""
        return CLEARLY * self.seconds_per_index * self.bandwidth

    def computing(self, work: Work) -> float:
        return work.entries * self.seconds_per_entry + work.values * self.seconds_per_value

    def pipelined(self, transfer: float, computing: float, segments: int) -> float:
        """Seconds of a transfer in segments, each of which is computed on while the next one comes."""
        shorter = min(transfer, computing)
        return max(transfer, computing) + shorter / segments + self.exposed(shorter, segments)

    def exposed(self, shorter: float, segments: int) -> float:
        """Seconds, of the shorter of transfer and computing, that could hide behind the longer and do not."""
        return (1 - self.overlap) * (shorter - shorter / segments)

    def cost(self, rounds: Sequence[Round], before: Work = NOTHING) -> Cost:
        """What rounds cost, one after the other, and what is computed before the first."""
        return Cost(
            seconds=self.computing(before) + sum(map(self._round_seconds, rounds)),
            rounds=len(rounds),
            messages=sum(r.messages for r in rounds),
            bytes_sent=sum(r.bytes_sent for r in rounds),
        )

    def _round_seconds(self, r: Round) -> float:
        sent = self.seconds(r.messages, r.bytes_sent)
        received = sent if r.received is None else self.seconds(*r.received)
        return self.latency + max(sent, received) + self.computing(r.work)


class Round(NamedTuple):
    """One round of the busiest rank."""

    messages: int
    bytes_sent: int
    received: tuple[int, int] | None = None  # messages and bytes that come in; None: as many as are sent
    work: Work = NOTHING  # what is computed after it


class Cost(NamedTuple):
    """What the busiest rank of a collective spends."""

    seconds: float
    rounds: int
    messages: int
    bytes_sent: int


@dataclass(frozen=True)
class Shape:
    """The problem: ``size`` ranks, each with ``nnz`` entries of a vector of ``length``.

    ``overlap`` says how the ranks' supports meet: "uniform" (independent, uniformly random), "identical"
    or "disjoint".  If the number of entries in the sum is known, ``union_nnz`` says it, and ``overlap`` does
    not matter.  ``skew`` is how many times its share the fullest of ``size`` even ranges has.
    ``precision`` is how values travel, if they are rounded, and ``index_price`` is the network's.  ``blocks``
    is how many blocks of 256 positions have an entry, if that is known, and ``aggregators`` how many ranks
    there are beside the others that do nothing but add up.  ``ordered``: sums have to be made in rank order.
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
    ordered: bool = False

    @property
    def index_bytes(self) -> int:
        return 4 if self.length <= 2**32 else 8

    def union(self, ranks: int) -> float:
        """Expected entries in the sum of so many ranks' vectors."""
        if self.overlap == "identical" or not self.nnz or min(ranks, self.size) == 1:
            return self.nnz
        if self.union_nnz is not None:  # a power of the ranks, which gives nnz for 1 and this for all
            growth = math.log(max(1.0, self.union_nnz / self.nnz)) / math.log(self.size)
            return self.nnz * math.pow(ranks, growth)
        if self.overlap == "disjoint":
            return min(self.nnz * ranks, self.length)
        return self.length * (1 - math.pow(1 - self.nnz / self.length, ranks))

    def is_dense(self, entries: float, span: float) -> bool:
        """Whether so many entries in a range take less room as plain values."""
        return entries * (self.index_bytes + self.value_bytes) > span * self.value_bytes

    def merging(self, parts: Sequence[float], union: float, span: float) -> Work:
        """Adding up pieces of a range, with so many entries each, that have ``union`` together."""
        sparse = [part for part in parts if not self.is_dense(part, span)]
        if len(sparse) == len(parts) and not self.is_dense(sum(parts), span):
            return Work(entries=sum(parts))
        # The first is written, the dense ones of the others are added, and all is looked at for zeros.
        passes = 2 + sum(self.is_dense(part, span) for part in parts[1:])
        if not self.is_dense(union, span):
            passes += 1  # back to entries
        return Work(sum(sparse), passes * span)

    def joining(self, entries: float, span: float) -> Work:
        """Copying pieces, with so many entries in all, to one place."""
        return Work(values=span if self.is_dense(entries, span) else entries)

    def spreading(self, entries: float, span: float) -> Work:
        """Storing a range densely, if it is not."""
        return NOTHING if self.is_dense(entries, span) else Work(entries, span)

    def stored_bytes(self, entries: float, span: float) -> float:
        return min(entries * (self.index_bytes + self.value_bytes), span * self.value_bytes)

    def frame_bytes(self, entries: float, span: float) -> int:
        """A frame with so many entries in a range, stored as is smaller; they are not in clusters."""
        if self.is_dense(entries, span):
            return self.dense_frame_bytes(span)
        return self.sparse_frame_bytes(entries, span)

    def sparse_frame_bytes(self, entries: float, span: float) -> int:
        count = round(entries)
        indices = support.form_by_formula(count, round(span), self.index_bytes, self.index_price)
        return HEADER_BYTES + indices.nbytes + self._travelling(count)

    def dense_frame_bytes(self, span: float) -> int:
        return HEADER_BYTES + self._travelling(round(span))

    def _travelling(self, values: int) -> int:
        nbytes = values * self.value_bytes if self.precision is None else self.precision.nbytes(values)
        return -(-nbytes // 8) * 8
