"""What messages and computing cost on a machine, and what rounds of a script cost with these figures.

>>> gigabit = CostFigures(latency=50e-6, bandwidth=125e6)
>>> gigabit.cost([RoundCost(messages=1, bytes_sent=125_000)]).seconds
0.00105
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparsewire.work import NOTHING, Work

__all__ = ["Cost", "CostFigures", "RoundCost"]

# Predicted times do not contain the time of coding, so indices are coded only where it saves clearly more.
CODING_MARGIN = 1.5


@dataclass(frozen=True)
class CostFigures:
    """What messages and computing cost; `sparsewire tune` measures it.

    The defaults are those of an ordinary 1 Gbit/s Ethernet on which computing is free.
    """

    latency: float = 50e-6  # seconds from a message's first byte sent to its first byte received
    bandwidth: float = 125e6  # bytes per second
    overhead: float = 0.0  # seconds a rank spends on each message
    seconds_per_entry: float = 0.0  # to merge one entry
    seconds_per_value: float = 0.0  # to add, copy or compare one value of a contiguous array
    overlap: float = 1.0  # share of computing that can hide behind transfers; 0 if the CPU moves the bytes
    startup: float = 0.0  # seconds of every call, whatever it does; cost functions leave it out
    seconds_per_index: float = 0.0  # to code one index at one end and decode it at the other

    def seconds(self, messages: int, nbytes: float) -> float:
        """Seconds for which a NIC is busy with so many messages that have so many bytes in all."""
        return messages * self.overhead + nbytes / self.bandwidth

    @property
    def index_price(self) -> float:
        """Bytes that coding one index must save to pay for its time."""
        return CODING_MARGIN * self.seconds_per_index * self.bandwidth

    def computing(self, work: Work) -> float:
        return work.entries * self.seconds_per_entry + work.values * self.seconds_per_value

    def pipelined(self, transfer: float, computing: float, segments: int) -> float:
        """Seconds of a transfer in segments, if each is computed on while the next one arrives."""
        shorter = min(transfer, computing)
        return max(transfer, computing) + shorter / segments + self.exposed(shorter, segments)

    def exposed(self, shorter: float, segments: int) -> float:
        """Seconds of the shorter of transfer and computing that could overlap with the longer and do not."""
        return (1 - self.overlap) * (shorter - shorter / segments)

    def cost(self, rounds: Sequence[RoundCost], before: Work = NOTHING) -> Cost:
        """The cost of rounds one after the other, with the work ``before`` the first."""
        return Cost(
            seconds=self.computing(before) + sum(map(self._round_seconds, rounds)),
            rounds=len(rounds),
            messages=sum(r.messages for r in rounds),
            bytes_sent=sum(r.bytes_sent for r in rounds),
        )

    def _round_seconds(self, r: RoundCost) -> float:
        sent = self.seconds(r.messages, r.bytes_sent)
        received = sent if r.received is None else self.seconds(*r.received)
        return self.latency + max(sent, received) + self.computing(r.work)


class RoundCost(NamedTuple):
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
