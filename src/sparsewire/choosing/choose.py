"""Which algorithm a call takes.

``choose`` is the choice itself: the lowest predicted time for known figures and a known problem.
``choose_topk`` is that among sums of the largest entries.  ``Chooser`` is what "auto" remembers from call to
call, so that ranks have to ask each other only in the first.

All ranks must choose alike, so a choice follows from facts that all ranks hold: what they agreed on in one
tiny round, and the number of entries in the sums since then, which is the same everywhere.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sparsewire.algorithms import TOPK_ALGORITHMS, suited
from sparsewire.algorithms.largest import largest
from sparsewire.coding.values import Precision
from sparsewire.cost import BLOCK, CostFigures, Shape
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector, index_dtype

__all__ = ["Choice", "Chooser", "Fullness", "Key", "choose", "choose_topk", "fullness"]

TIE = 1.05  # predicted times that differ by less count as equal: predictions are no better than that
UNSEEN_CALLS = 16  # after so many sums in a row without a count of entries, the ranks agree anew
DRIFT = 2  # if the entries of the sum change by more than this factor, the ranks agree anew
FORGOTTEN_CALLS = 1 << 10  # a key that so many calls have not used is forgotten, or names fill the memory
SIGNIFICANT_BITS = 4  # of the counts that are chosen from: nearly equal shapes need no new prediction


@dataclass(frozen=True)
class Choice:
    """An algorithm's name, and its options (``Algorithm.tune``) if it has any."""

    algorithm: str
    options: Any = None
    shape: Shape | None = field(default=None, compare=False)  # the problem that it was chosen for


@functools.lru_cache(maxsize=256)
def choose(figures: CostFigures, shape: Shape) -> Choice:
    """The algorithm with the lowest predicted time, of those that are suited to the problem.

    Of several whose times are equal, the first dense one of the table is taken, because every choice is
    compared with the dense baseline; if none is dense, the first of the table.
    """
    able = suited(shape)
    seconds = {name: row.cost(figures, shape).seconds for name, row in able.items()}
    equal = [name for name in able if seconds[name] <= TIE * min(seconds.values())]
    name = next((name for name in equal if able[name].dense), equal[0])
    tune = able[name].tune
    return Choice(name, None if tune is None else tune(figures, shape), shape)


@functools.lru_cache(maxsize=256)
def choose_topk(figures: CostFigures, shape: Shape) -> str:
    """The sum of the largest entries with the lowest predicted time; the shape's nnz is k.

    Of several whose times are equal, the first of the table is taken.  All ranks choose alike without asking
    each other, because all give the same k.
    """
    seconds = {name: row.cost(figures, shape).seconds for name, row in TOPK_ALGORITHMS.items()}
    return next(name for name in seconds if seconds[name] <= TIE * min(seconds.values()))


class Fullness(NamedTuple):
    """Where a vector has entries, if it is stored in the form that takes fewer bytes."""

    nnz: int  # the whole length if that form is dense
    fullest: int  # entries in the fullest of as many even ranges as there are ranks
    blocks: int  # blocks of ``BLOCK`` positions that have an entry


def fullness(vec: SparseVector, size: int) -> Fullness:
    """A vector's fullness among ``size`` ranks.  A dense vector is counted, and no entries are made of it.

    >>> fullness(SparseVector(1000, [3, 4, 700], np.ones(3)), size=2)
    Fullness(nnz=3, fullest=2, blocks=2)
    """
    pieces = vec.split_evenly(size)
    counts = [int(np.count_nonzero(p.values)) if p.is_dense else p.nnz for p in pieces]
    nnz, dense_bytes = sum(counts), vec.length * vec.dtype.itemsize
    entry_bytes = nnz * (index_dtype(vec.length).itemsize + vec.dtype.itemsize)
    if entry_bytes > dense_bytes or (vec.is_dense and entry_bytes == dense_bytes):
        nnz, counts = vec.length, [p.span for p in pieces]
    return Fullness(nnz, max(counts), vec.count_blocks(BLOCK))


class Key(NamedTuple):
    """Calls that are alike: the caller's name for them, the length, and what values are."""

    name: str | None  # None: a call is like no other
    length: int
    value_bytes: int
    precision: Precision | None = None  # how values travel
    in_rank_order: bool = False  # whether they must be added up in rank order


@dataclass(slots=True)
class _Facts:
    """What all ranks know about the calls of a key."""

    nnz: int  # of the rank that had most when they agreed
    skew: float = 1.0
    blocks: int | None = None  # of the rank that had entries in most; None if they were never counted
    first: int | None = None  # entries in the first sum after the agreement
    last: int | None = None  # entries in the latest sum whose entries were counted
    unseen: int = 0  # sums stored densely since then: nobody counted their entries
    is_outdated: bool = False
    choice: Choice | None = None  # what follows from all this and from ``promised``
    promised: int | None = None  # the number of entries that the caller promised when it was made
    place: int = 0  # of the latest call of the key, among all calls

    def see(self, nnz: int) -> None:
        """Note that the latest sum has so many entries."""
        self.unseen = 0
        if nnz == self.last:
            return
        self.last = nnz
        if self.first is None:
            self.first = nnz
        self.is_outdated = not self.first <= DRIFT * nnz <= DRIFT * DRIFT * self.first
        self.choice = None

    def see_nothing(self) -> None:
        """Note that the latest sum is stored densely."""
        self.unseen += 1
        self.is_outdated = self.is_outdated or self.unseen >= UNSEEN_CALLS

    def shape(self, size: int, key: Key, promised: int | None, index_price: float, aggregators: int) -> Shape:
        """The problem, in round numbers.  Each rank's entries are assumed to change like the sum's."""
        nnz, blocks = self.nnz, self.blocks
        if promised is not None:
            nnz, blocks = promised, None
        elif self.first and self.last:
            nnz = nnz * self.last // self.first
            blocks = None if blocks is None else blocks * self.last // self.first
        nnz = min(_coarse(nnz), key.length)
        union = None if self.last is None else min(_coarse(self.last), key.length)
        return Shape(
            size,
            key.length,
            nnz,
            key.value_bytes,
            union_nnz=union,
            skew=self.skew,
            precision=key.precision,
            index_price=index_price,
            blocks=None if blocks is None else _coarse(blocks),
            aggregators=aggregators,
            in_rank_order=key.in_rank_order,
        )


class Chooser:
    """The choice of each call, for one rank of a communicator; no I/O.

    Every rank makes the same calls, for each key in the same order, and has the same figures:

        choice = chooser.known(key, place)                                   # None if nothing is known:
        choice = yield from chooser.agree(key, rank, fullness(vec, size))    # then the script asks all ranks
        total = yield from ALGORITHMS[choice.algorithm].run(rank, size, vec)
        chooser.saw(key, total, place)

    What a call learns counts from ``saw`` on.  A sum needs all ranks, so it ends well on all of them or on
    none: a call that fails leaves no trace on any rank, also on one that refused it and knows no key.

    Calls of one key that are in flight together have to decide one after the other, each after ``saw`` of
    the one before.  Different keys are independent, and calls without a name leave nothing behind.

    ``place`` is the number of the call among all calls.  All ranks have to forget the same, and calls of
    different keys end in another order on every rank, so what is forgotten follows from places alone.
    """

    def __init__(self, size: int, figures: CostFigures, aggregators: int = 0) -> None:
        self.figures = figures
        self._size, self._aggregators = size, aggregators
        self._facts: dict[Key, _Facts] = {}  # the key whose call ended last is the last one
        self._learnt: dict[Key, _Facts] = {}  # by calls that have not ended; it counts if they end well

    def known(self, key: Key, place: int = 0, nnz: int | None = None) -> Choice | None:
        """The choice from what all ranks know, or None.

        ``nnz`` is the caller's promise that no rank has more entries; all ranks give the same.
        """
        facts = self._facts.get(key)
        if facts is not None and place - facts.place > FORGOTTEN_CALLS:
            facts = None
        if nnz is not None:
            return self._choice(key, facts or self._learn(key, _Facts(nnz)), nnz)
        return None if facts is None or facts.is_outdated else self._choice(key, facts)

    def agree(self, key: Key, rank: int, mine: Fullness) -> Steps[Choice]:
        """The choice from the largest numbers of all ranks; one tiny round."""
        nnz, fullest, blocks = yield from largest(rank, self._size, mine, key.length)
        skew = max(1.0, fullest * self._size / nnz) if nnz else 1.0
        facts = _Facts(nnz, _coarse(round(64 * skew)) / 64, blocks)
        return self._choice(key, self._learn(key, facts))

    def saw(self, key: Key, total: SparseVector, place: int = 0) -> None:
        """Note that a call of this key has ended with this sum."""
        before = self._facts.pop(key, None)  # and it becomes the last one
        facts = self._learnt.pop(key, before)
        if facts is None:
            return
        self._facts[key] = facts
        facts.place = place
        if total.is_dense:
            facts.see_nothing()
        else:
            facts.see(total.nnz)

    def failed(self, key: Key) -> None:
        """Note that a call of this key has failed: what it has learnt is dropped."""
        self._learnt.pop(key, None)

    def tidy(self, place: int) -> None:
        """Drop what no call from this place on goes by; earlier ones must have decided."""
        while self._facts:
            key = next(iter(self._facts))
            if place - self._facts[key].place <= FORGOTTEN_CALLS:
                break
            del self._facts[key]

    def _learn(self, key: Key, facts: _Facts) -> _Facts:
        if key.name is not None:
            self._learnt[key] = facts
        return facts

    def _choice(self, key: Key, facts: _Facts, promised: int | None = None) -> Choice:
        if facts.choice is None or facts.promised != promised:
            shape = facts.shape(self._size, key, promised, self.figures.index_price, self._aggregators)
            facts.choice, facts.promised = choose(self.figures, shape), promised
        return facts.choice


def _coarse(count: int) -> int:
    """The count to a few significant bits.

    >>> _coarse(15), _coarse(1000)
    (15, 1024)
    """
    dropped = max(0, count.bit_length() - SIGNIFICANT_BITS)
    half = 1 << dropped >> 1
    return (count + half) >> dropped << dropped
