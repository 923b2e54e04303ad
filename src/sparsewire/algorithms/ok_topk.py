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

Per rank: P-1 messages to split.  To tell and to gather take P-1 messages each, or ceil(log2 P) along Bruck's
tree where that is faster.

Paper: Li and Hoefler, Near-optimal sparse allreduce for distributed deep learning, PPoPP'22.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sparsewire import work
from sparsewire.algorithms.balanced import Integers, entries_at, gather_reports, report
from sparsewire.algorithms.bruck import gather, gather_rounds, is_faster
from sparsewire.algorithms.bundles import Bundle, Entries, Lists, Rows
from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import alltoall, doublings, others
from sparsewire.algorithms.quotas import Ladder, Owner, quotas
from sparsewire.cost import HEADER_BYTES, Cost, CostFigures, RoundCost, Shape
from sparsewire.errors import InputError, WireError
from sparsewire.expected import Expected, like
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
        """What ``to_numbers`` gave; raises InputError if it cannot have."""
        try:
            age, *cuts = (operator.index(number) for number in numbers)
        except (TypeError, ValueError):
            raise InputError(f"regions are saved as whole numbers, not as {numbers!r}") from None
        if len(cuts) < 2 or cuts[0] != 0 or age < 0 or any(a > b for a, b in pairwise(cuts)):
            raise InputError(f"regions are an age and cuts that rise from 0, not {[age, *cuts]}")
        return cls(tuple(cuts), age)


class TopkSum(NamedTuple):
    """The result, this rank's entries that it does not contain, and what the next call may reuse."""

    total: SparseVector
    left: SparseVector
    regions: Regions | None = None


def ok_topk(
    rank: int,
    size: int,
    vec: SparseVector,
    k: int,
    regions: Regions | None = None,
    context: Context = PLAIN,
) -> Steps[TopkSum]:
    given = vec.as_sparse()
    chosen = given.largest(k)
    if regions is None or regions.age >= TAU:
        mine = _compact(report(chosen), vec.length)
        reports = yield from gather_reports(rank, size, mine, vec.length, context.figures)
        regions = Regions(region_cuts(reports, vec.length))
    limit = _limit(size, k)
    shares = chosen.split_at(regions.cuts)
    entries = [like(share)._replace(is_dense=False) for share in shares]
    shares = [share if owner == rank else share.largest(limit) for owner, share in enumerate(shares)]
    sent = chosen if sum(share.nnz for share in shares) == chosen.nnz else concat(shares)
    received = yield from alltoall(rank, size, shares, [entries[rank]._replace(most=limit)] * size)
    sums = SUM.merge(received).as_sparse()

    owner = Owner(
        load=sum(share.nnz for share in received),
        sent=sent.nnz - shares[rank].nnz,
        behind=chosen.nnz - sent.nnz,
        ladder=Ladder.of(sums.histogram(), size),
    )
    mine = _compact(owner.to_numbers(), vec.length)
    most = Owner.most_numbers(size)
    rows = Rows(Expected(dtype=mine.dtype, is_dense=True, most=most), most, mine.dtype)
    told = yield from gather(rank, size, mine, rows, context.figures, _told_bytes(size, vec.length))
    owners = [Owner.from_numbers(source, piece.values.tolist(), k) for source, piece in enumerate(told)]
    kept = quotas(owners, k)
    mine = sums.largest(kept[rank])
    bundle: Bundle[SparseVector] = Entries(vec.length, regions.cuts, kept, vec.dtype)
    nbytes = _kept_bytes(_shape(size, vec, k, context.figures))
    if _is_uneven(owners, _forwarded(kept, is_faster(context.figures, size, nbytes)), k):
        anywhere = Expected(vec.length, None, None, vec.dtype, is_dense=False, most=-(-sum(kept) // size))
        mine, bundle = (yield from _dealt_out(rank, size, mine, kept, anywhere)), Lists([anywhere] * size)
    everybody = yield from gather(rank, size, mine, bundle, context.figures, nbytes)
    total = _in_a_row(enumerate(everybody)).whole()

    unused = sent.without(total)
    left = unused if sent.nnz == given.nnz else given.without(sent.without(unused))
    age = TAU if _is_stale(owners) else regions.age + 1
    return TopkSum(total, left, Regions(regions.cuts, age))


def _compact(numbers: Sequence[int] | Integers, length: int) -> SparseVector:
    """Numbers up to the length of the vector, as something that can be sent."""
    return SparseVector.from_dense(np.array(numbers, _number_dtype(length)))


def _number_dtype(length: int) -> np.dtype[Any]:
    return np.dtype(np.int32 if length < 2**31 else np.int64)


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


def _limit(size: int, k: int) -> int:
    """How many entries a rank may send to an owner.

    An owner gets 6k(P-1)/P words in all, of which the result takes 2k; each partner may send an equal part of
    the rest.  A few more are allowed, because random supports make shares uneven.
    """
    return (k * (2 * size - 3) // size + math.isqrt(k)) // (size - 1) + 1 if size > 1 else k


def _in_a_row(from_ranks: Iterable[tuple[int, SparseVector]]) -> SparseVector:
    """The ranks' pieces as one; raises WireError if one has entries in the range of another.

    Where a rank's part of what was dealt out lies, is known from its entries alone.
    """
    pieces = list(from_ranks)
    filled = [(rank, piece) for rank, piece in pieces if piece.nnz]
    for (_, before), (rank, piece) in pairwise(filled):
        if piece.start < before.stop:
            raise WireError(f"rank {rank} sent {piece}, which overlaps {before}")
    return concat([piece for _, piece in filled or pieces[:1]])


def _forwarded(kept: Sequence[int], by_tree: bool) -> list[int]:
    """How many entries each owner sends if what all owners keep is gathered as it is.

    >>> _forwarded([9, 0, 0, 1], by_tree=False), _forwarded([9, 0, 0, 1], by_tree=True)
    ([27, 0, 0, 3], [18, 0, 1, 11])
    """
    size = len(kept)
    if not by_tree:
        return [some * (size - 1) for some in kept]
    below = np.cumsum([0, *kept, *kept])
    counts = [min(reach, size - reach) for reach in doublings(size)]
    return [sum(int(below[owner + count] - below[owner]) for count in counts) for owner in range(size)]


def _is_uneven(owners: Sequence[Owner], forwarded: Sequence[int], k: int) -> bool:
    """Would an owner send more than 6k(P-1)/P words in all?

    By direct messages, it would if it kept twice the mean.
    The paper deals out from four times the mean on; then this could be 10k(P-1)/P.
    """
    size = len(owners)
    return any(
        size * (some + owner.sent) > 3 * k * (size - 1) for some, owner in zip(forwarded, owners, strict=True)
    )


def _is_stale(owners: Sequence[Owner]) -> bool:
    """Is a region fuller than random supports explain, or were more than a few entries not sent?"""
    arrived = sum(owner.load for owner in owners)
    fullest = max(owner.load for owner in owners) - math.isqrt(arrived)
    behind = sum(owner.behind for owner in owners)
    return fullest * len(owners) > FULL * arrived or behind * BEHIND > arrived


def _dealt_out(
    rank: int, size: int, mine: SparseVector, kept: Sequence[int], expected: Expected
) -> Steps[SparseVector]:
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
    received = yield [*sends, *(Recv(peer, expected) for peer in holders)]
    by_holder = {rank: parts[rank]} | dict(zip(holders, received, strict=True))
    return _in_a_row(sorted(by_holder.items()))


def cost(figures: CostFigures, shape: Shape) -> Cost:
    """The cost of a call that reuses its regions, if no owner has far more than its share."""
    size, k = shape.size, shape.nnz
    if size == 1:
        return figures.cost([])
    share = (size - 1) * shape.frame_bytes(k / size, shape.length / size)
    adding = Work(entries=k, values=2 * k)
    return figures.cost(
        [
            RoundCost(size - 1, share, work=adding),
            *gather_rounds(figures, size, _told_bytes(size, shape.length)),
            *gather_rounds(figures, size, _kept_bytes(shape), Work(entries=k, values=k)),
        ]
    )


def _shape(size: int, vec: SparseVector, k: int, figures: CostFigures) -> Shape:
    return Shape(size, vec.length, min(k, vec.length), vec.dtype.itemsize, index_price=figures.index_price)


def _told_bytes(size: int, length: int) -> Callable[[int], int]:
    """At most how many bytes so many owners tell."""
    row_bytes = _number_dtype(length).itemsize * (1 + Owner.most_numbers(size))
    return lambda owners: HEADER_BYTES + owners * row_bytes


def _kept_bytes(shape: Shape) -> Callable[[int], int]:
    """About how many bytes so many owners keep."""
    entries, span = shape.nnz / shape.size, shape.length / shape.size
    return lambda owners: shape.frame_bytes(owners * entries, owners * span)
