"""Sets of positions, drawn at random: sorted, no position twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

ROW = 64  # positions of a row of an embedding
# Above this density most draws repeat earlier ones, and one pass over all positions is faster.
DRAW_ALL_DENSITY = 0.1


def uniform(chance: np.random.Generator, length: int, count: int) -> Indices:
    """``count`` positions; every set of them is equally likely."""
    if count > DRAW_ALL_DENSITY * length:
        return _smallest(chance.random(length), count)
    return _distinct(lambda draws: chance.integers(0, length, draws), count, chance)


def disjoint(chance: np.random.Generator, length: int, count: int, rank: int, ranks: int) -> Indices:
    """Positions that no other rank has: rank r owns r, r + ranks, r + 2 ranks, ..."""
    owned = len(range(rank, length, ranks))
    return uniform(chance, owned, count) * ranks + rank


def zipf(chance: np.random.Generator, length: int, count: int) -> Indices:
    """Positions with a weight of 1 / (i + 1) each, like words in a text or rows of an embedding."""
    if count > DRAW_ALL_DENSITY * length:
        return weighted(chance, np.arange(1.0, length + 1), count)
    # The inverse of the cumulated weights, log(i + 1) / log(length + 1).
    return _distinct(
        lambda draws: ((length + 1.0) ** chance.random(draws)).astype(np.int64) - 1, count, chance
    )


def weighted(chance: np.random.Generator, rarity: npt.NDArray[np.float64], count: int) -> Indices:
    """The first ``count`` different positions that come up when i is drawn with a weight of 1 / rarity[i]."""
    # They come up for the first time in the order of exponential keys / weight.
    return _smallest(chance.standard_exponential(len(rarity)) * rarity, count)


def rows(chance: np.random.Generator, length: int, count: int) -> Indices:
    """Positions of whole rows, any of them equally likely; the last row that is drawn may be cut."""
    drawn = chance.permutation(-(-length // ROW))[
        : -(-count // ROW) + 1
    ]  # one more, because the last may be short
    positions = (drawn[:, np.newaxis] * ROW + np.arange(ROW)).ravel()
    return np.sort(positions[positions < length][:count])


def _smallest(keys: npt.NDArray[np.float64], count: int) -> Indices:
    chosen = np.zeros(len(keys), np.bool_)
    chosen[np.argpartition(keys, count - 1)[:count]] = True
    return np.flatnonzero(chosen)  # sorted, and faster than sorting


def _distinct(draw: Callable[[int], Indices], count: int, chance: np.random.Generator) -> Indices:
    """``count`` different positions: draws until there are enough, then drops the surplus at random."""
    found = np.unique(draw(count + count // 8 + 8))
    while len(found) < count:
        found = np.union1d(found, draw(count))
    keep = np.sort(chance.permutation(len(found))[:count])
    return found[keep]
