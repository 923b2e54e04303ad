"""Patterns that several algorithms share: which ranks exchange messages, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sparsewire.cost import RoundCost
from sparsewire.expected import like
from sparsewire.steps import Expectation, Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.work import Work

__all__ = [
    "allgather",
    "alltoall",
    "doublings",
    "folded",
    "folded_rounds",
    "in_rank_order",
    "others",
    "ring",
    "segment_count",
]

T = TypeVar("T")


def others(rank: int, size: int) -> list[int]:
    """rank+1, rank+2, ...: if all ranks go through theirs in step, no two send to one peer at once.

    >>> others(2, 4)
    [3, 0, 1]
    """
    return [(rank + step) % size for step in range(1, size)]


def segment_count(nbytes: float, segment_bytes: int, length: int) -> int:
    """In how many segments to send so many bytes of a vector; every segment has at least one position."""
    return max(1, min(round(nbytes) // segment_bytes, length))


def doublings(size: int) -> Iterator[int]:
    """1, 2, 4, ... below ``size``."""
    distance = 1
    while distance < size:
        yield distance
        distance *= 2


def allgather(rank: int, size: int, part: T, expected: Sequence[Expectation]) -> Steps[list[T]]:
    """Everybody's part, in rank order, after one round in which each rank sends to all.

    ``expected[r]`` is what rank r sends.  With many ranks and small parts, ``bruck`` is faster.
    """
    return alltoall(rank, size, [part] * size, expected)


def alltoall(rank: int, size: int, shares: Sequence[T], expected: Sequence[Expectation]) -> Steps[list[T]]:
    """What everybody has for this rank, in rank order.

    ``shares[r]`` goes to rank r, and ``expected[r]`` is what comes from it.
    """
    peers = others(rank, size)
    sends = [Send(peer, shares[peer]) for peer in peers]
    received = yield sends + [Recv(peer, expected[peer]) for peer in peers]
    return in_rank_order(rank, size, shares[rank], received)


def ring(
    rank: int,
    size: int,
    pieces: list[list[SparseVector]],
    add: Callable[[list[SparseVector]], SparseVector],
) -> Steps[list[SparseVector]]:
    """Everybody's ``pieces[r]`` added up around the ring from rank r on, for all r, in the order of ranges.

    P-1 steps in which partial sums travel to the right, then P-1 in which the finished ones do.  A piece is a
    list of segments, as many on every rank: one is added up while the next is on its way.
    """
    left, right = (rank - 1) % size, (rank + 1) % size
    last = 2 * (size - 1) - 1
    sends = [Send(right, segment) for segment in pieces[rank]] if size > 1 else []
    for step in range(last + 1):
        taken = pieces[(rank - step - 1) % size]
        for place, mine in enumerate(taken):
            [got] = yield [*sends, Recv(left, like(mine))]
            taken[place] = add([got, mine]) if step < size - 1 else got
            sends = [Send(right, taken[place])] if step < last else []
    return [segment for piece in pieces for segment in piece]


def in_rank_order(rank: int, size: int, mine: T, from_others: list[T]) -> list[T]:
    """What ``others(rank, size)`` sent, and mine, as a list by rank."""
    by_rank = dict(zip(others(rank, size), from_others, strict=True)) | {rank: mine}
    return [by_rank[r] for r in range(size)]


def folded(
    rank: int,
    size: int,
    vec: SparseVector,
    core: Callable[[int, list[int], SparseVector], Steps[SparseVector]],
    add: Callable[[list[SparseVector]], SparseVector],
) -> Steps[SparseVector]:
    """Run ``core`` on a power of two of the ranks, for any ``size``.

    Of the first 2 * surplus ranks, each even one hands its vector to its odd neighbour, which adds it to
    its own, sits out, and is given the result.  ``core(position, ranks, vec)`` runs on the rest.
    """
    surplus = size - (1 << (size.bit_length() - 1))
    ranks = [2 * pair + 1 for pair in range(surplus)] + list(range(2 * surplus, size))
    if rank not in ranks:
        received = yield [Send(rank + 1, vec), Recv(rank + 1, like(vec))]
        result: SparseVector = received[0]
        return result
    if rank < 2 * surplus:
        [theirs] = yield [Recv(rank - 1, like(vec))]
        vec = add([theirs, vec])
    result = yield from core(ranks.index(rank), ranks, vec)
    if rank < 2 * surplus:
        yield [Send(rank - 1, result)]
    return result


def folded_rounds(
    size: int, core: list[RoundCost], frame_bytes: int, adding: Work, result_bytes: int
) -> list[RoundCost]:
    """The rounds of a rank that takes a neighbour in, which is the busiest."""
    if size & (size - 1) == 0:
        return core
    return [RoundCost(0, 0, (1, frame_bytes), adding), *core, RoundCost(1, result_bytes)]
