"""What `auto` remembers from call to call, so that only the first has to ask around.

All ranks must choose alike, so a choice follows from facts that all ranks hold: what they agreed on in one
tiny round, and the number of entries in the sums since then, which is the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sparsewire.algorithms.largest import largest
from sparsewire.algorithms.omnireduce import best_block
from sparsewire.choosing.auto import cheapest, fullness
from sparsewire.coding.values import Precision
from sparsewire.cost import CostFigures, Shape
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector

__all__ = ["Choice", "Chooser", "Key"]

UNSEEN_CALLS = 16  # after so many sums in a row without a count of entries, the ranks agree anew
DRIFT = 2  # ... and when the sum has so many times more or fewer entries than after the last agreement
MOST_KEYS = 1 << 12  # a program whose every call has another length must not fill the memory
SIGNIFICANT_BITS = 4  # of the counts that are chosen from: nearly equal shapes need no new prediction


class Key(NamedTuple):
    """Calls that are alike: the caller's name for them, the length, and what values are."""

    name: str | None  # None: nothing is alike
    length: int
    value_bytes: int
    precision: Precision | None = None  # how they travel
    in_rank_order: bool = False  # ... and are to be added up in rank order


class Choice(NamedTuple):
    """What a call does; OmniReduce takes blocks of so many positions, or entries if there are none."""

    algorithm: str
    block: int | None = None


@dataclass
class _Facts:
    """What all ranks know about the calls of a key."""

    nnz: int  # of the rank that had most when they agreed
    skew: float = 1.0
    blocks: int | None = None  # of the rank that had entries in most; None if they were never counted
    first: int | None = None  # entries in the first sum after the agreement
    last: int | None = None  # ... and in the latest
    unseen: int = 0  # sums stored densely since the latest: nobody counted their entries
    is_outdated: bool = False
    choice: Choice | None = None  # what follows from all this and from a promise of so many entries
    promised: int | None = None

    def see(self, nnz: int) -> None:
        """The latest sum has so many entries."""
        self.unseen = 0
        if nnz == self.last:
            return
        self.last = nnz
        if self.first is None:
            self.first = nnz
        self.is_outdated = not self.first <= DRIFT * nnz <= DRIFT * DRIFT * self.first
        self.choice = None

    def see_nothing(self) -> None:
        """The latest sum is stored densely."""
        self.unseen += 1
        self.is_outdated = self.is_outdated or self.unseen >= UNSEEN_CALLS

    def shape(self, size: int, key: Key, promised: int | None, index_price: float, aggregators: int) -> Shape:
        """The problem, in round numbers; entries are taken to have moved in proportion to the sum's."""
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
    """The algorithm of each call, for one rank of a communicator; no I/O.

    Every rank makes the same calls, for each key in the same order, and has the same figures:

        choice = chooser.known(key)                          # None: nothing is known,
        choice = yield from chooser.agree(key, rank, vec)    # so ask, in the script of the call
        total = yield from ALGORITHMS[choice.algorithm].run(rank, size, vec)
        chooser.saw(key, total)

    When a call fails, some ranks may have seen it end and others not: every rank then forgets everything.

    Calls of one key that are in flight together have to decide one after the other, each after ``saw`` of
    the one before.  Different keys have nothing to do with each other, and of calls without a name nothing is
    remembered.
    """

    def __init__(self, size: int, network: CostFigures, aggregators: int = 0) -> None:
        self.network = network
        self._size, self._aggregators = size, aggregators
        self._facts: dict[Key, _Facts] = {}

    def known(self, key: Key, nnz: int | None = None) -> Choice | None:
        """The choice from what all ranks know, or None.

        ``nnz`` is the caller's promise that no rank has more entries; all ranks give the same.
        """
        facts = self._facts.get(key)
        if nnz is not None:
            return self._choice(key, facts or self._learn(key, _Facts(nnz)), nnz)
        return None if facts is None or facts.is_outdated else self._choice(key, facts)

    def agree(self, key: Key, rank: int, vec: SparseVector) -> Steps[Choice]:
        """Learn every rank's entries; then choose."""
        nnz, fullest, blocks = yield from largest(rank, self._size, fullness(vec, self._size))
        skew = max(1.0, fullest * self._size / nnz) if nnz else 1.0
        facts = _Facts(int(nnz), _coarse(round(64 * skew)) / 64, int(blocks))
        return self._choice(key, self._learn(key, facts))

    def saw(self, key: Key, total: SparseVector) -> None:
        """A call of this key has ended with this sum."""
        facts = self._facts.get(key)
        if facts is None:
            return
        if total.is_dense:
            facts.see_nothing()
        else:
            facts.see(total.nnz)

    def forget(self) -> None:
        """Start over: the ranks may no longer know the same."""
        self._facts.clear()

    def _learn(self, key: Key, facts: _Facts) -> _Facts:
        if key.name is not None:
            if len(self._facts) >= MOST_KEYS:
                self._facts.clear()
            self._facts[key] = facts
        return facts

    def _choice(self, key: Key, facts: _Facts, promised: int | None = None) -> Choice:
        if facts.choice is None or facts.promised != promised:
            shape = facts.shape(self._size, key, promised, self.network.index_price, self._aggregators)
            name = cheapest(self.network, shape)
            facts.choice = Choice(name, best_block(self.network, shape) if name == "omnireduce" else None)
            facts.promised = promised
        return facts.choice


def _coarse(count: int) -> int:
    """The count to a few significant bits.

    >>> _coarse(15), _coarse(1000)
    (15, 1024)
    """
    dropped = max(0, count.bit_length() - SIGNIFICANT_BITS)
    half = 1 << dropped >> 1
    return (count + half) >> dropped << dropped
