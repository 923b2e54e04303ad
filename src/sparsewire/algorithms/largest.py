"""The largest of everybody's numbers, on every rank, in ceil(log2 P) rounds of one tiny message.

In round t a rank sends the largest numbers it knows to the rank at distance 2**t.  This works for any P,
because hearing a number twice does not change a maximum.

Described in: Hensgen, Finkel and Manber, IJPP 1988 (dissemination).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsewire.algorithms.patterns import doublings
from sparsewire.cost import HEADER_BYTES, RoundCost
from sparsewire.expected import Numbers
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector

__all__ = ["largest", "largest_rounds"]

EXACT = 2**53  # up to here a float64 holds every whole number


def largest(rank: int, size: int, numbers: Sequence[int], bound: int = EXACT) -> Steps[list[int]]:
    """For each place, the largest number that any rank has there; they are whole, from 0 to the bound."""
    known = np.array(numbers, np.float64)
    expected = Numbers(len(known), known.dtype, bound)
    for distance in doublings(size):
        mine = SparseVector.from_dense(known)
        [theirs] = yield [Send((rank + distance) % size, mine), Recv((rank - distance) % size, expected)]
        known = np.maximum(known, theirs.values)
    return [int(number) for number in known]


def largest_rounds(size: int, numbers: int) -> list[RoundCost]:
    return [RoundCost(1, HEADER_BYTES + 8 * numbers) for _ in doublings(size)]
