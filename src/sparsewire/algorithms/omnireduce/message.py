"""What workers and aggregators tell each other.

A message is two pieces: integers that say what it is, and numbers to be added up or sums.  Each carries the
terms of the collective, so an aggregator needs no other introduction; and nothing in it is used unchecked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsewire.errors import WireError
from sparsewire.vector import SparseVector

__all__ = ["CONTRIBUTION", "RESULT", "Integers", "Message", "Terms", "turned"]

Integers = npt.NDArray[np.int64]

CONTRIBUTION, RESULT = 1, 2  # from a worker to an aggregator, and back
LARGEST = 2**31 - 1  # the largest number that a term can have


@dataclass(frozen=True)
class Terms:
    """What all that take part in a collective have to agree on."""

    block: int  # positions of a block; 0: pairs of index and value
    slots: int  # units of work in flight between a worker and an aggregator
    width: int  # blocks, or pairs, in each of them
    arrival: bool = False  # sums are made in the order of arrival

    def to_numbers(self) -> list[int]:
        return [self.block, self.slots, self.width, int(self.arrival)]

    def fitted(self, length: int, aggregators: int) -> Terms:
        """No more slots of blocks than a vector fills, and no wider ones."""
        if not self.block:
            return self
        share = max(1, -(-length // (self.block * aggregators)))  # blocks of an aggregator
        width = min(self.width, share)
        return replace(self, slots=min(self.slots, -(-share // width)), width=width)

    @classmethod
    def from_numbers(cls, source: int, numbers: list[int]) -> Terms:
        block, slots, width, arrival = numbers
        if not (
            0 <= block <= LARGEST and 0 < slots <= LARGEST and 0 < width <= LARGEST and arrival in (0, 1)
        ):
            raise WireError(f"rank {source} sends impossible terms: {numbers}")
        return cls(block, slots, width, bool(arrival))


class Message(NamedTuple):
    """``number`` is how many slots a worker has told about so far, and 0 in an aggregator's last message."""

    kind: int
    number: int
    terms: Terms
    numbers: Integers
    body: SparseVector

    def payload(self) -> list[SparseVector]:
        head = np.array([self.kind, self.number, *self.terms.to_numbers()], np.int64)
        numbers = np.concatenate([head, self.numbers])
        if not len(numbers) or int(numbers.max()) <= LARGEST:
            numbers = numbers.astype(np.int32)  # half the bytes
        return [SparseVector.from_dense(numbers), self.body]

    @classmethod
    def read(cls, source: int, payload: Any) -> Message:
        """The message in a payload, whatever that is."""
        if not isinstance(payload, list) or len(payload) != 2:
            raise WireError(f"rank {source} sent no message of OmniReduce")
        head, body = payload
        if not head.is_dense or head.dtype.kind != "i" or head.nnz < 6 or head.values.min() < 0:
            raise WireError(f"rank {source} sent a message of OmniReduce without its first part")
        numbers = head.values.astype(np.int64, copy=False)
        kind, number, *terms = numbers[:6].tolist()
        if kind not in (CONTRIBUTION, RESULT):
            raise WireError(f"rank {source} sent a message of OmniReduce of the unknown kind {kind}")
        return cls(kind, number, Terms.from_numbers(source, terms), numbers[6:], body)


def turned(count: int, first: int) -> list[int]:
    """All numbers below ``count``, from ``first`` on; if all begin elsewhere, not all write to one at once.

    >>> turned(4, 2)
    [2, 3, 0, 1]
    """
    return [(first + step) % count for step in range(count)]
