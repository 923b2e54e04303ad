"""Who keeps how many of the k largest, if each of several owners has some of them.

An owner tells few numbers about the magnitudes it has, and all owners find the same quotas from them: k in
all, each owner its largest, and all stop at about the same magnitude.  Everything is in integers, which are
the same on every machine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparsewire.algorithms.balanced import Integers

__all__ = ["Ladder", "Owner", "quotas"]


class Ladder(NamedTuple):
    """How many sums are in a class of magnitude or above, for few classes: where about 1, 2, 4, ... are.

    Between two rungs a number is taken to change evenly.
    """

    classes: tuple[int, ...]  # rising
    counts: tuple[int, ...]  # of the first class all, above the last one none

    @classmethod
    def of(cls, histogram: Integers, size: int) -> Ladder:
        """Rungs down to a fourth of an owner's even part.

        >>> Ladder.of(np.array([0, 5, 2, 0, 1, 0]), size=2)
        Ladder(classes=(1, 2, 4, 5), counts=(8, 3, 1, 0))
        """
        at_least = histogram[::-1].cumsum()[::-1]
        total = int(at_least[0])
        wanted = [total >> halvings for halvings in range((4 * size).bit_length()) if total >> halvings]
        rungs = {int(np.searchsorted(-at_least, -count, side="right")) - 1 for count in wanted}
        top = int(np.searchsorted(-at_least, 0))
        classes = tuple(sorted(rungs | {top}))
        return cls(classes, (*(int(at_least[number]) for number in classes[:-1]), 0))

    def at_least(self, number: int) -> int:
        """Sums in a class or above."""
        at = bisect_right(self.classes, number) - 1
        if at < 0:
            return self.counts[0]
        if at == len(self.classes) - 1:
            return 0
        (first, second), (count, fewer) = self.classes[at : at + 2], self.counts[at : at + 2]
        return count - (count - fewer) * (number - first) // (second - first)


class Owner(NamedTuple):
    """What a rank tells: how many entries it got, sent to others and had to keep, and about its sums."""

    load: int
    sent: int
    behind: int
    ladder: Ladder

    def to_numbers(self) -> list[int]:
        return [self.load, self.sent, self.behind, *self.ladder.classes, *self.ladder.counts]

    @classmethod
    def from_numbers(cls, numbers: list[int]) -> Owner:
        load, sent, behind, *rungs = numbers
        half = len(rungs) // 2
        return cls(load, sent, behind, Ladder(tuple(rungs[:half]), tuple(rungs[half:])))


def quotas(owners: Sequence[Owner], k: int) -> list[int]:
    """How many of its largest sums each owner keeps: k in all, if there are that many.

    There are fewer only where an owner has nearly all of them, and has sent so much that it cannot pass them
    on: it sends 6k(P-1)/P words at most, if what it keeps is dealt out.
    """
    size = len(owners)
    wanted = _shares([owner.ladder for owner in owners], k)
    return [
        min(some, k * (2 * size - 1) // size - owner.sent) for some, owner in zip(wanted, owners, strict=True)
    ]


def _shares(ladders: Sequence[Ladder], k: int) -> list[int]:
    """How many each has of the k largest; all have as small ones, as far as ladders tell.

    >>> _shares([Ladder((0, 1, 2), (11, 2, 0)), Ladder((0, 1, 2, 3), (10, 7, 1, 0))], 5)
    [1, 4]
    """
    if sum(ladder.counts[0] for ladder in ladders) <= k:
        return [ladder.counts[0] for ladder in ladders]
    # The first class above which there are fewer than k: owners keep all above it, and some of its own.
    classes = range(max(ladder.classes[-1] for ladder in ladders))
    last = bisect_left(
        classes, True, key=lambda number: sum(ladder.at_least(number + 1) for ladder in ladders) < k
    )
    kept = [ladder.at_least(last + 1) for ladder in ladders]
    candidates = [ladder.at_least(last) - above for ladder, above in zip(ladders, kept, strict=True)]
    missing = k - sum(kept)
    share = [missing * mine // sum(candidates) for mine in candidates]
    # What rounding down left over: one each to the first owners that have more.
    able = [owner for owner, mine in enumerate(candidates) if share[owner] < mine]
    for owner in able[: missing - sum(share)]:
        share[owner] += 1
    return [above + some for above, some in zip(kept, share, strict=True)]
