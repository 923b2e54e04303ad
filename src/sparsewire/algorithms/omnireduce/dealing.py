"""Blocks or stripes, dealt to aggregators like cards: in turns, each beginning at another hand.

What lies side by side falls to different hands, so a hot region of a vector is everybody's; and because turns
begin anywhere, so is what lies at regular distances.  Every hand gets one card of each whole turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire.algorithms.omnireduce.message import Integers

__all__ = ["Deal", "ranges"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Fibonacci hashing (Knuth, TAOCP 6.4)


@dataclass(frozen=True)
class Deal:
    """So many hands.

    >>> hand, turn = Deal(3).of(np.arange(6))
    >>> hand, turn
    (array([0, 1, 2, 2, 0, 1]), array([0, 0, 0, 1, 1, 1]))
    >>> Deal(3).card(hand, turn)
    array([0, 1, 2, 3, 4, 5])
    """

    hands: int

    def of(self, cards: Integers) -> tuple[Integers, Integers]:
        """Which hand gets each card, and in which turn."""
        turn = cards // self.hands
        hand = cards - turn * self.hands + self._first(turn)
        return np.where(hand < self.hands, hand, hand - self.hands), turn

    def card(self, hand: Integers | int, turn: Integers) -> Integers:
        """The card that a hand gets in a turn."""
        return turn * self.hands + (hand - self._first(turn)) % self.hands

    def _first(self, turn: Integers) -> Integers:
        half = np.uint64(32)
        mixed = turn.astype(np.uint64) * GOLDEN
        mixed = (mixed ^ (mixed >> half)) * GOLDEN  # once is linear, and some distances would meet one hand
        return (((mixed >> half) * np.uint64(self.hands)) >> half).astype(np.int64)


def ranges(begins: Integers, ends: Integers) -> Integers:
    """All numbers from each begin to before its end, one range behind the other.

    >>> ranges(np.array([5, 0]), np.array([7, 3]))
    array([5, 6, 0, 1, 2])
    """
    counts = ends - begins
    total = np.cumsum(counts)
    return np.arange(total[-1] if len(total) else 0) + np.repeat(ends - total, counts)
