"""Who keeps how many of the k largest, if each of several owners has some of them.

An owner tells a few numbers about the magnitudes of its sums, and all owners compute the same quotas from
them.  The quotas are k in all; each owner keeps its largest, and all stop at about the same magnitude.
Everything is computed in integers, which are the same on every machine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sparsewire.algorithms.balanced import Integers
from sparsewire.errors import WireError
from sparsewire.kernels import magnitude

__all__ = ["Ladder", "Owner", "quotas"]


class Ladder(NamedTuple):
    """How many sums are in a class of magnitude or above, for the classes with about 1, 2, 4, ... of them.

    Between two of these classes, the number is assumed to change evenly.
    """

    classes: tuple[int, ...]  # rising
    counts: tuple[int, ...]  # all sums for the first class, none for the last

    @classmethod
    def of(cls, histogram: Integers, size: int) -> Ladder:
        """The ladder of a histogram, down to a quarter of an owner's even part.

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

    @property
    def is_possible(self) -> bool:
        """Whether classes rise and counts fall to zero."""
        rising = all(a < b for a, b in pairwise(self.classes)) and self.classes[-1] <= magnitude.CLASSES
        return rising and all(a >= b for a, b in pairwise(self.counts)) and self.counts[-1] == 0

    def at_least(self, number: int) -> int:
        """How many sums are in this class or above."""
        at = bisect_right(self.classes, number) - 1
        if at < 0:
            return self.counts[0]
        if at == len(self.classes) - 1:
            return 0
        (first, second), (count, fewer) = self.classes[at : at + 2], self.counts[at : at + 2]
        return count - (count - fewer) * (number - first) // (second - first)


class Owner(NamedTuple):
    """What a rank tells: entries received, sent to others and not sent, and how its sums are spread."""

    load: int
    sent: int
    behind: int
    ladder: Ladder

    def to_numbers(self) -> list[int]:
        return [self.load, self.sent, self.behind, *self.ladder.classes, *self.ladder.counts]

    @classmethod
    def from_numbers(cls, source: int, numbers: list[int], k: int) -> Owner:
        """What rank ``source`` tells; raises WireError if that cannot be."""
        told, rungs = numbers[:3], numbers[3:]
        half, odd = divmod(len(rungs), 2)
        ladder = Ladder(tuple(rungs[:half]), tuple(rungs[half:]))
        if odd or not half or min(numbers) < 0 or max(told[1:]) > k or not ladder.is_possible:
            raise WireError(f"rank {source} tells what no owner of {k} entries can: {numbers}")
        load, sent, behind = told
        return cls(load, sent, behind, ladder)

    @staticmethod
    def most_numbers(size: int) -> int:
        """How many numbers a rank tells at most."""
        return 3 + 2 * ((4 * size).bit_length() + 1)


def quotas(owners: Sequence[Owner], k: int) -> list[int]:
    """How many of its largest sums each owner keeps: k in all, if there are that many.

    There are fewer only where an owner has nearly all of them and has sent so much already that it may not
    send them all: what it keeps is dealt out, and it sends at most 6k(P-1)/P words.
    """
    size = len(owners)
    wanted = _shares([owner.ladder for owner in owners], k)
    return [
        min(some, k * (2 * size - 1) // size - owner.sent) for some, owner in zip(wanted, owners, strict=True)
    ]


def _shares(ladders: Sequence[Ladder], k: int) -> list[int]:
    """How many of the k largest each owner has, as far as the ladders tell.

    >>> _shares([Ladder((0, 1, 2), (11, 2, 0)), Ladder((0, 1, 2, 3), (10, 7, 1, 0))], 5)
    [1, 4]
    """
    if sum(ladder.counts[0] for ladder in ladders) <= k:
        return [ladder.counts[0] for ladder in ladders]
    # ``last`` is the first class with fewer than k sums above it.  Owners keep all above it, and some in it.
    classes = range(max(ladder.classes[-1] for ladder in ladders))
    last = bisect_left(
        classes, True, key=lambda number: sum(ladder.at_least(number + 1) for ladder in ladders) < k
    )
    kept = [ladder.at_least(last + 1) for ladder in ladders]
    candidates = [ladder.at_least(last) - above for ladder, above in zip(ladders, kept, strict=True)]
    missing = k - sum(kept)
    share = [missing * mine // sum(candidates) for mine in candidates]
    # Rounding down leaves a few: one each for the first owners that have more.
    able = [owner for owner, mine in enumerate(candidates) if share[owner] < mine]
    for owner in able[: missing - sum(share)]:
        share[owner] += 1
    return [above + some for above, some in zip(kept, share, strict=True)]
