"""Ok-Topk: the k largest entries of the sum of everybody's k largest, for at most 6k words.

    split      everybody sends each owner its entries of the owner's region
    reduce     an owner adds up what it gets
    tell       owners tell how their sums are spread over classes of magnitude: all know who keeps how many
    balance    only if an owner keeps far more than its share: the k entries are dealt out evenly
    allgather  everybody gets what the owners keep

Regions are ranges with about as many entries each.  They are cut anew every ``TAU`` calls, and when one has
become too full or entries could not be sent; until then they are reused.  No threshold is remembered: in
every call the owners keep exactly k entries, each its largest, and all stop at about the same magnitude.

Nobody sends or receives more than 6k(P-1)/P words (an entry has two) and a little that does not grow with
k; entries beyond a rank's share are not sent.  ``left`` are the rank's own entries that the sum does not
contain: those that were not sent, and those whose index is not in the result.

Paper: Li and Hoefler, Near-optimal sparse allreduce for distributed deep learning, PPoPP'22.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sparsewire import work
from sparsewire.algorithms.balanced import Integers, entries_at, report
from sparsewire.algorithms.patterns import allgather, alltoall, others
from sparsewire.algorithms.quotas import Ladder, Owner, quotas
from sparsewire.cost import HEADER_BYTES, Cost, CostFigures, RoundCost, Shape
from sparsewire.reduction import SUM, concat
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.work import Work

__all__ = ["Regions", "TopkSum", "cost", "ok_topk", "region_cuts"]

TAU = 64  # calls between two partitions, as in the authors' code
# Regions are cut anew if one gets so many times the mean, or if one of so many entries was not sent.
FULL = 1.25
BEHIND = 20


class Regions(NamedTuple):
    """Where each owner's region begins, and the last ends; the same on every rank."""

    cuts: tuple[int, ...]
    age: int = 0  # calls that used them

    def to_numbers(self) -> list[int]:
        """For a checkpoint."""
        return [self.age, *self.cuts]

    @classmethod
    def from_numbers(cls, numbers: Iterable[int]) -> Regions:
        age, *cuts = (int(number) for number in numbers)
        return cls(tuple(cuts), age)


class TopkSum(NamedTuple):
    """The result, this rank's entries that it does not contain, and what the next call may reuse."""

    total: SparseVector
    left: SparseVector
    regions: Regions | None = None


def ok_topk(
    rank: int, size: int, vec: SparseVector, k: int, regions: Regions | None = None
) -> Steps[TopkSum]:
    given = vec.as_sparse()
    chosen = given.largest(k)
    if regions is None or regions.age >= TAU:
        reports = yield from allgather(rank, size, _compact(report(chosen), vec.length))
        regions = Regions(region_cuts([piece.values.astype(np.int64) for piece in reports], vec.length))
    shares = _within_limits(chosen.split_at(regions.cuts), rank, k)
    sent = chosen if sum(share.nnz for share in shares) == chosen.nnz else concat(shares)
    received = yield from alltoall(rank, size, shares)
    sums = SUM.merge(received).as_sparse()

    owner = Owner(
        load=sum(share.nnz for share in received),
        sent=sent.nnz - shares[rank].nnz,
        behind=chosen.nnz - sent.nnz,
        ladder=Ladder.of(sums.histogram(), size),
    )
    told = yield from allgather(rank, size, _compact(owner.to_numbers(), vec.length))
    owners = [Owner.from_numbers(piece.values.tolist()) for piece in told]
    kept = quotas(owners, k)
    mine = sums.largest(kept[rank])
    if _is_uneven(owners, kept, k):
        mine = yield from _dealt_out(rank, size, mine, kept)
    total = concat((yield from allgather(rank, size, mine))).whole()

    unused = sent.without(total)
    left = unused if sent.nnz == given.nnz else given.without(sent.without(unused))
    age = TAU if _is_stale(owners) else regions.age + 1
    return TopkSum(total, left, Regions(regions.cuts, age))


def _compact(numbers: Sequence[int] | Integers, length: int) -> SparseVector:
    """Numbers up to the length of the vector, as something that can be sent."""
    return SparseVector.from_dense(np.array(numbers, np.int32 if length < 2**31 else np.int64))


def region_cuts(reports: Sequence[Integers], length: int) -> tuple[int, ...]:
    """The borders of regions with as many of all ranks' entries each, by what the reports say.

    Only + - * / and comparisons, which give the same bits on every machine: all ranks must find the same.
    """
    size = len(reports)
    borders = np.unique(np.concatenate([[0, length], *(told[1:] for told in reports)]))
    if len(borders) == 1:
        return (0,) * (size + 1)
    # A little is added for every position: so the count grows everywhere, and empty regions are even.
    below = borders / length
    for told in reports:
        below += entries_at(borders, told)
    goals = below[-1] * np.arange(1, size) / size
    at = np.searchsorted(below, goals, side="right") - 1
    inside = (goals - below[at]) / (below[at + 1] - below[at])
    cuts = borders[at] + (inside * (borders[at + 1] - borders[at])).astype(np.int64)
    work.count(entries=size * len(reports[0]))
    return (0, *cuts.tolist(), length)


def _within_limits(shares: list[SparseVector], rank: int, k: int) -> list[SparseVector]:
    """The shares without what exceeds what each owner may be sent.

    An owner gets 6k(P-1)/P words in all, of which the result takes 2k; each partner may send an equal part of
    the rest.  A few more are allowed, because random supports make shares uneven.
    """
    size = len(shares)
    if size == 1:
        return shares
    limit = (k * (2 * size - 3) // size + math.isqrt(k)) // (size - 1) + 1
    return [share if owner == rank else share.largest(limit) for owner, share in enumerate(shares)]


def _is_uneven(owners: Sequence[Owner], kept: Sequence[int], k: int) -> bool:
    """Would an owner send more than 6k(P-1)/P words if it told all ranks what it keeps?

    It would if it kept twice the mean.
    The paper deals out from four times the mean on; then this could be 10k(P-1)/P.
    """
    peers = len(owners) - 1
    return any(
        len(owners) * (some * peers + owner.sent) > 3 * k * peers
        for some, owner in zip(kept, owners, strict=True)
    )


def _is_stale(owners: Sequence[Owner]) -> bool:
    """Is a region fuller than random supports explain, or were more than a few entries not sent?"""
    arrived = sum(owner.load for owner in owners)
    fullest = max(owner.load for owner in owners) - math.isqrt(arrived)
    behind = sum(owner.behind for owner in owners)
    return fullest * len(owners) > FULL * arrived or behind * BEHIND > arrived


def _dealt_out(rank: int, size: int, mine: SparseVector, kept: Sequence[int]) -> Steps[SparseVector]:
    """This rank's even part of everybody's entries in a row, ``kept[r]`` of them from rank r.

    All ranks know who has what, so nobody has to ask, and nobody sends an empty message.
    """
    have = np.cumsum([0, *kept])
    want = [have[-1] * part // size for part in range(size + 1)]

    def overlap(holder: int, taker: int) -> tuple[int, int]:
        first, last = max(have[holder], want[taker]), min(have[holder + 1], want[taker + 1])
        return int(first - have[holder]), int(max(first, last) - have[holder])

    peers = others(rank, size)
    parts = {peer: mine.entries_between(*overlap(rank, peer)) for peer in range(size)}
    holders = [peer for peer in peers if np.diff(overlap(peer, rank))]
    sends = [Send(peer, parts[peer]) for peer in peers if parts[peer].nnz]
    received = yield [*sends, *(Recv(peer) for peer in holders)]
    by_holder = {rank: parts[rank]} | dict(zip(holders, received, strict=True))
    return concat([piece for _, piece in sorted(by_holder.items()) if piece.nnz] or [parts[rank]])


def cost(figures: CostFigures, shape: Shape) -> Cost:
    """The cost of a call that reuses its regions, if no owner has far more than its share."""
    size, k = shape.size, shape.nnz
    if size == 1:
        return figures.cost([])
    span, peers = shape.length / size, size - 1
    piece = peers * shape.frame_bytes(k / size, span)
    adding = Work(entries=k, values=2 * k)
    rungs = (4 * size).bit_length() + 1
    telling = peers * (HEADER_BYTES + 8 * (rungs + 2))
    return figures.cost(
        [
            RoundCost(peers, piece, work=adding),
            RoundCost(peers, telling),
            RoundCost(peers, piece, work=Work(entries=k, values=k)),
        ]
    )
