"""Whom to name when time is up.

A rank whose time is up asks all ranks whom they wait for.  Those that are in a collective answer at once, for
each of theirs.  Whoever is waited for, directly or by way of others, and does not answer is late.  If all
answer, a rank is late that has waited for less than half as long as those that wait for it: it has just come,
or was stopped.  That may be the rank that asks.  Otherwise a connection is at fault, and both of its ends are
named.  They wait for each other; or, in a ring, the rank that was stopped in the earliest round waits for the
other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias

__all__ = ["Answer", "Answers", "culprits"]


class Answer(NamedTuple):
    """What a rank says of a collective in which it is."""

    awaited: AbstractSet[int]
    waited: float  # seconds
    rounds: int = 0  # that it has begun


Answers: TypeAlias = Mapping[int, Answer]  # by the number of the collective


def culprits(rank: int, number: int, mine: Answer, answers: Mapping[int, Answers]) -> tuple[list[int], bool]:
    """The ranks that keep ``rank`` waiting in a collective, and whether they answer.

    >>> mine = Answer({1}, 9.0)
    >>> culprits(0, 7, mine, {1: {6: Answer({2}, 9.0)}})  # rank 1 is one collective behind
    ([2], False)
    >>> culprits(0, 7, mine, {1: {7: Answer({2}, 9.0)}, 2: {7: Answer({1}, 9.0)}})
    ([1, 2], True)
    >>> culprits(0, 7, mine, {1: {7: Answer({2}, 9.0)}, 2: {7: Answer({1}, 0.1)}})  # rank 2 has just come
    ([2], False)
    >>> culprits(2, 7, Answer({1}, 0.1), {1: {7: Answer({2}, 9.0)}})  # as rank 2 sees it
    ([2], False)
    >>> ring = {1: {7: Answer({0}, 9.0, 4)}, 2: {7: Answer({1}, 9.0, 2)}, 3: {7: Answer({2}, 9.0, 3)}}
    >>> culprits(0, 7, Answer({3}, 9.0, 4), ring)
    ([1, 2], True)
    """
    silent: set[int] = set()
    late: set[int] = set()
    waits: dict[tuple[int, int], tuple[int, int]] = {}  # (a rank, one that it waits for) -> in which round
    seen: set[tuple[int, int]] = set()
    open_ends = [(rank, number, mine, peer) for peer in mine.awaited]
    while open_ends:
        waiting, number, own, peer = open_ends.pop()
        waits[waiting, peer] = number, own.rounds
        said = {number: mine} if peer == rank else answers.get(peer)
        if not said:
            silent.add(peer)
            continue
        if all(answer.waited < own.waited / 2 for answer in said.values()):
            late.add(peer)
        if peer == rank or (number, peer) in seen:
            continue
        seen.add((number, peer))
        # A rank that is not in this collective has not come to it, and is kept by an earlier one.
        relevant = {number: said[number]} if number in said else _until(number, said)
        open_ends += [
            (peer, place, answer, other) for place, answer in relevant.items() for other in answer.awaited
        ]
    if silent or late:
        return sorted(silent or late), False
    mutual = {one for one, other in waits if (other, one) in waits} - {rank}
    earliest = min(waits.values())
    ends = {end for pair, place in waits.items() if place == earliest for end in pair} - {rank}
    return sorted(mutual or ends), True


def _until(number: int, said: Answers) -> Answers:
    return {place: answer for place, answer in said.items() if place <= number} or said
