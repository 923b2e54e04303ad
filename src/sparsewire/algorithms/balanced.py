"""Split-allgather with equal load for all owners, wherever the entries lie.

    report     everybody tells where its entries lie: their number, and quantiles of their indices
    deal       all compute from the reports the same ranges and their owners
    split, reduce, allgather    as in split-allgather

All owners add up about as many entries, and send about as many in the end.  With one range each, both
cannot hold where supports overlap in one place and not in another, as in the head and the tail of word
counts; with two ranges each they can.  Per rank: 3(P-1) messages in three rounds, P-1 of them tiny; the first
and the last round take ceil(log2 P) messages along Bruck's tree where that is faster.  Exact; the same bits
on every rank, because each range is added up by its owner alone, in rank order.

After the balanced regions of Li and Hoefler, Ok-Topk, PPoPP'22.  There is always an arc that has its share of
two measures: Stromquist and Woodall, Sets on which several measures agree, JMAA 1985.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sparsewire import work
from sparsewire.algorithms.bruck import gather, gather_rounds
from sparsewire.algorithms.bundles import Lists, Rows
from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.patterns import alltoall
from sparsewire.algorithms.split_allgather import owned_bytes, owner_rounds
from sparsewire.cost import HEADER_BYTES, Cost, CostFigures, Shape
from sparsewire.errors import WireError
from sparsewire.expected import Numbers, Pieces, like
from sparsewire.reduction import concat
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector
from sparsewire.work import Work

__all__ = ["Integers", "balanced", "balanced_ranges", "cost", "entries_at", "report"]

# All ranks' quantiles together say well enough where entries lie; those of one rank take half a kilobyte.
QUANTILES = 64
# An owner gets so many strips of equal load.  A strip is not divided further, so more strips balance better.
STRIPS = 32

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def balanced(rank: int, size: int, vec: SparseVector, context: Context = PLAIN) -> Steps[SparseVector]:
    mine = SparseVector.from_dense(report(vec))
    reports = yield from gather_reports(rank, size, mine, vec.length, context.figures)
    cuts, owners = balanced_ranges(reports, vec.length)
    shares: list[list[SparseVector]] = [[] for _ in range(size)]
    for piece, owner in zip(vec.split_at(cuts), owners, strict=True):
        shares[owner].append(context.rounding.contribution(piece))
    expected = [Pieces([like(piece) for piece in share]) for share in shares]
    shape = context.shape or Shape(
        size, vec.length, max(int(told[0]) for told in reports), vec.dtype.itemsize
    )
    incoming = yield from alltoall(rank, size, shares, [expected[rank]] * size)
    owned = [context.rounding.owned(context.op.merge(pieces)) for pieces in zip(*incoming, strict=True)]
    nbytes = owned_bytes(shape, skew=1.0)
    sums = yield from gather(rank, size, owned, Lists(expected), context.figures, nbytes)
    return concat(sorted((piece for pieces in sums for piece in pieces), key=lambda p: (p.start, p.stop)))


def report(vec: SparseVector) -> Integers:
    """The number of entries, and the indices below which 0, 1/64, 2/64, ... and all of them lie."""
    if not vec.nnz:
        return np.zeros(QUANTILES + 2, np.int64)
    inner = _entries_below(vec.nnz)[:-1]
    indices = inner if vec.indices is None else vec.indices[inner].astype(np.int64)
    last = vec.length - 1 if vec.indices is None else int(vec.indices[-1])
    return np.concatenate([[vec.nnz], indices, [last + 1]]).astype(np.int64)


def gather_reports(
    rank: int, size: int, mine: SparseVector, length: int, figures: CostFigures
) -> Steps[list[Integers]]:
    """The reports of all ranks about vectors of this length; ``mine`` is that of this rank."""
    rows = Rows(Numbers(mine.length, mine.dtype, length), mine.length, mine.dtype)
    nbytes = report_bytes(mine.dtype.itemsize)
    return checked_reports((yield from gather(rank, size, mine, rows, figures, nbytes)))


def report_bytes(number_bytes: int) -> Callable[[int], int]:
    """About how many bytes so many reports take."""
    return lambda reports: HEADER_BYTES + number_bytes * (QUANTILES + 2) * reports


def checked_reports(pieces: Sequence[SparseVector]) -> list[Integers]:
    """The reports of all ranks; raises WireError if the indices of one do not increase."""
    reports = [piece.values.astype(np.int64, copy=False) for piece in pieces]
    for rank, told in enumerate(reports):
        if (told[2:] < told[1:-1]).any():
            raise WireError(f"rank {rank} reports quantiles that do not increase: {told[1:]}")
    return reports


def balanced_ranges(reports: Sequence[Integers], length: int) -> tuple[list[int], list[int]]:
    """The cuts between ranges, and the owner of each range, by what the reports say.

    Only + - * / and comparisons, which give the same bits on every machine: all ranks must find the same.
    """
    borders, entries = _strips(reports, length)
    owners = _deal(entries, len(reports))
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    return [*borders[begins].tolist(), length], owners[begins].tolist()


def _strips(reports: Sequence[Integers], length: int) -> tuple[Integers, Floats]:
    """Where strips of equal load begin, and how many entries of all ranks are in each.

    The load of a position is the number of its entries, because each is received once, and ``size`` more if
    there are any, because the sum is sent to all.  Between two quantiles a rank's entries are assumed to lie
    evenly.
    """
    size = len(reports)
    borders = np.sort(np.concatenate([[0, length], *(told[1:] for told in reports)]))
    widths = np.diff(borders)
    entries, missing = np.zeros(len(widths)), np.ones(len(widths))
    for told in reports:
        mine = np.diff(entries_at(borders, told))
        entries += mine
        density = np.minimum(mine / np.maximum(widths, 1), 1)
        missing *= 1 - density  # share of positions that nobody has so far
    # A little is added for every position, so that the load grows everywhere.
    load = entries + size * widths * (1 - missing) + widths / max(1, length)
    total = np.cumsum(load)
    goals = total[-1] * np.arange(size * STRIPS) / (size * STRIPS)
    at = np.minimum(np.searchsorted(total, goals, side="right"), len(load) - 1)
    inside = np.clip((goals - (total[at] - load[at])) / np.where(load[at] > 0, load[at], 1), 0, 1)
    below = np.cumsum(entries)
    entries_below = (below - entries)[at] + inside * entries[at]
    work.count(entries=_dealing(size))
    return borders[at] + (inside * widths[at]).astype(np.int64), np.diff(entries_below, append=below[-1])


def _deal(entries: Floats, size: int) -> Integers:
    """The owner of each strip: everybody gets as many strips, and about as many entries.

    Strips form a circle.  An owner takes an arc with its share of the entries: the first one that is near
    enough, or else the nearest.  The remaining strips form the next circle.  Where entries lie evenly, the
    arcs follow each other.
    """
    owners = np.zeros(len(entries), np.int64)
    left = np.arange(len(entries))
    for owner in range(size):
        sums = np.cumsum(np.concatenate([[0.0], entries[left], entries[left][: STRIPS - 1]]))
        goal = sums[len(left)] / (size - owner)
        off = np.abs(sums[STRIPS:] - sums[:-STRIPS] - goal)
        first = int(np.argmax(off <= max(off.min(), goal / 16)))
        arc = (first + np.arange(STRIPS)) % len(left)
        owners[left[arc]] = owner
        left = np.delete(left, arc)
    return owners


def _entries_below(nnz: int) -> Integers:
    """How many entries lie below each quantile; computed with Python integers, which do not overflow."""
    return np.array([nnz * part // QUANTILES for part in range(QUANTILES + 1)], np.int64)


def entries_at(borders: Integers, told: Integers) -> Floats:
    """How many of a rank's entries lie below each border."""
    counts, indices = _entries_below(int(told[0])), told[1:]
    left = np.clip(np.searchsorted(indices, borders, side="right") - 1, 0, QUANTILES - 1)
    gap = np.maximum(indices[left + 1] - indices[left], 1)
    inside = np.clip((borders - indices[left]) / gap, 0, 1)
    below: Floats = counts[left] + inside * (counts[left + 1] - counts[left])
    return below


def cost(figures: CostFigures, shape: Shape) -> Cost:
    dealing = Work(entries=_dealing(shape.size))
    if shape.size == 1:
        return figures.cost([], dealing)
    reporting = gather_rounds(figures, shape.size, report_bytes(8), dealing)
    return figures.cost([*reporting, *owner_rounds(figures, shape, skew=1.0)])


def _dealing(size: int) -> int:
    """How many entries could be merged in the time that computing the ranges takes.

    Measured: about twenty calls of numpy for each rank take as long as 8000 entries, and each border and
    strip as long as three.
    """
    return size * (8000 + 3 * size * (QUANTILES + STRIPS))
