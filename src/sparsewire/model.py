"""The model behind every prediction: what a network does with messages, and what supports do when they merge.

>>> gigabit = Network(latency=50e-6, bandwidth=125e6)
>>> shape = Shape(size=4, length=2**24, nnz=167_772)
>>> round(shape.union(4) / shape.length, 4)
0.0394
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Cost", "Network", "Round", "Shape"]

# Bytes of a frame's header on the wire; tests hold it against the wire format.
HEADER_BYTES = 104


@dataclass(frozen=True)
class Network:
    """Seconds of latency, bytes per second, and seconds a rank spends on each message and merged entry.

    The defaults are those of an ordinary 1 Gbit/s Ethernet.
    """

    latency: float = 50e-6
    bandwidth: float = 125e6
    overhead: float = 0.0
    seconds_per_entry: float = 0.0

    def seconds(self, messages: int, nbytes: float) -> float:
        """How long a NIC is busy with so many messages of so many bytes together."""
        return messages * self.overhead + nbytes / self.bandwidth

    def cost(self, rounds: Sequence[Round]) -> Cost:
        return Cost(
            seconds=sum(
                self.latency
                + max(self.seconds(r.messages, r.bytes_sent), self.seconds(*r.received))
                + r.merged * self.seconds_per_entry
                for r in rounds
            ),
            rounds=len(rounds),
            messages=sum(r.messages for r in rounds),
            bytes_sent=sum(r.bytes_sent for r in rounds),
        )


class Round(NamedTuple):
    """One round of the busiest rank."""

    messages: int
    bytes_sent: int
    bytes_received: int | None = None  # None: as many, in as many messages, as are sent; else in one
    merged: float = 0.0  # entries that go through a merge after it

    @property
    def received(self) -> tuple[int, int]:
        """Messages and bytes that come in."""
        if self.bytes_received is None:
            return self.messages, self.bytes_sent
        return 1, self.bytes_received


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
    or "disjoint".
    """

    size: int
    length: int
    nnz: int
    value_bytes: int = 4
    overlap: str = "uniform"

    @property
    def index_bytes(self) -> int:
        return 4 if self.length <= 2**32 else 8

    def union(self, ranks: int) -> float:
        """Expected entries in the sum of so many ranks' vectors."""
        if self.overlap == "identical" or not self.length:
            return self.nnz
        if self.overlap == "disjoint":
            return min(self.nnz * ranks, self.length)
        return self.length * (1 - (1 - self.nnz / self.length) ** ranks)

    def frame_bytes(self, entries: float, span: float) -> int:
        """A frame with so many entries in a range, stored as is smaller."""
        sparse = _aligned(entries * self.index_bytes) + _aligned(entries * self.value_bytes)
        return HEADER_BYTES + min(sparse, _aligned(span * self.value_bytes))

    def dense_frame_bytes(self, span: float) -> int:
        return HEADER_BYTES + _aligned(span * self.value_bytes)


def _aligned(nbytes: float) -> int:
    return -(-round(nbytes) // 8) * 8
