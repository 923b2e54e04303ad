"""Bruck's allgather: everybody's part after ceil(log2 P) messages; and when direct messages are better.

    round 1   rank r sends its own part to r-1         and has those of r, r+1
    round 2   rank r sends these two to r-2            and has those of r .. r+3
    ...       the last round sends what is missing     and any P will do

A rank sends P-1 parts, as it does by direct messages, in fewer messages.  But it waits in every round for
parts that it has to forward, while direct messages keep the link busy from the start.  So the tree is for
many ranks and small parts.  All ranks take the same way, because they predict both from the same facts.

Paper: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems,
IEEE TPDS 1997.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sparsewire.algorithms.bundles import Bundle
from sparsewire.algorithms.patterns import allgather, doublings
from sparsewire.cost import CostFigures, RoundCost
from sparsewire.steps import Recv, Send, Steps
from sparsewire.work import NOTHING, Work

__all__ = ["bruck", "bruck_rounds", "gather", "gather_rounds", "is_faster"]

T = TypeVar("T")

# The tree has to be predicted so many times faster.  Predictions leave out that what is forwarded is checked
# and decoded first; of direct messages, one is decoded while the next one arrives.
LEAD = 1.25


def bruck(rank: int, size: int, mine: T, bundle: Bundle[T]) -> Steps[list[T]]:
    """Everybody's part, in rank order."""
    have = [mine]  # of rank, rank+1, ...
    for reach in doublings(size):
        count = min(reach, size - reach)
        given, wanted = ([(first + step) % size for step in range(count)] for first in (rank, rank + reach))
        payload = bundle.pack(have[:count], given)
        [received] = yield [Send((rank - reach) % size, payload), Recv(wanted[0], bundle.expected(wanted))]
        have += bundle.unpack(received, wanted)
    return have[size - rank :] + have[: size - rank]


def gather(
    rank: int,
    size: int,
    mine: T,
    bundle: Bundle[T],
    figures: CostFigures,
    nbytes: Callable[[int], int],
) -> Steps[list[T]]:
    """Everybody's part, in rank order, along the tree or by direct messages.

    ``nbytes(count)`` is about what so many parts take in one message.  It and the figures have to be the same
    on every rank.
    """
    if is_faster(figures, size, nbytes):
        return bruck(rank, size, mine, bundle)
    return allgather(rank, size, mine, [bundle.expected_of(source) for source in range(size)])


def is_faster(figures: CostFigures, size: int, nbytes: Callable[[int], int]) -> bool:
    """Whether the tree is clearly faster than direct messages."""
    direct, tree = (figures.cost(rounds(size, nbytes)).seconds for rounds in (_direct_rounds, bruck_rounds))
    return direct > LEAD * tree


def gather_rounds(
    figures: CostFigures, size: int, nbytes: Callable[[int], int], work: Work = NOTHING
) -> list[RoundCost]:
    """The rounds of ``gather``, with the work that follows the last."""
    rounds = (bruck_rounds if is_faster(figures, size, nbytes) else _direct_rounds)(size, nbytes)
    return [*rounds[:-1], *(last._replace(work=work) for last in rounds[-1:])]


def bruck_rounds(size: int, nbytes: Callable[[int], int]) -> list[RoundCost]:
    return [RoundCost(1, nbytes(min(reach, size - reach))) for reach in doublings(size)]


def _direct_rounds(size: int, nbytes: Callable[[int], int]) -> list[RoundCost]:
    return [RoundCost(size - 1, (size - 1) * nbytes(1))] if size > 1 else []
