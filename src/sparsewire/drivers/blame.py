"""Whom to name when time is up.

A rank whose time is up asks all ranks whom they wait for.  Those that are in a collective answer at once, for
each of theirs, and say how many messages they have sent to each rank and received from it.  Whoever is waited
for, directly or by way of others, and does not answer is late.  If all answer, a rank is late that has waited
for less than half as long as those that wait for it: it has just come, or was stopped.  That may be the rank
that asks.  Otherwise a connection is at fault: a rank waits, and less has arrived than the other end has
sent.  Both of its ends are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias

__all__ = ["Answer", "Answers", "culprits"]


class Answer(NamedTuple):
    """What a rank says of a collective in which it is, and of the messages of all its collectives."""

    awaited: AbstractSet[int]
    waited: float  # seconds
    sent: tuple[int, ...]  # messages to each rank
    received: tuple[int, ...]  # messages from each rank


Answers: TypeAlias = Mapping[int, Answer]  # by the number of the collective


def culprits(rank: int, number: int, mine: Answer, answers: Mapping[int, Answers]) -> tuple[list[int], bool]:
    """The ranks that keep ``rank`` waiting in a collective, and whether they answer.

    >>> nothing = (0, 0, 0)
    >>> mine = Answer({1}, 9.0, nothing, nothing)
    >>> culprits(0, 7, mine, {1: {6: Answer({2}, 9.0, nothing, nothing)}})  # rank 1 is one collective behind
    ([2], False)
    >>> lost = {1: {7: Answer({2}, 9.0, nothing, nothing)}, 2: {7: Answer({1}, 9.0, (0, 3, 0), nothing)}}
    >>> culprits(0, 7, mine, lost)  # nothing of what rank 2 has sent has come to rank 1
    ([1, 2], True)
    >>> culprits(0, 7, mine, lost | {2: {7: Answer({1}, 0.1, nothing, nothing)}})  # rank 2 has just come
    ([2], False)
    >>> culprits(2, 7, Answer({1}, 0.1, nothing, nothing), {1: {7: Answer({2}, 9.0, nothing, nothing)}})
    ([2], False)
    """
    silent: set[int] = set()
    late: set[int] = set()
    broken: set[int] = set()  # the ends of connections on which messages are missing
    seen: set[tuple[int, int]] = set()
    open_ends = [(rank, number, mine, peer) for peer in mine.awaited]
    while open_ends:
        waiting, number, own, peer = open_ends.pop()
        said = {number: mine} if peer == rank else answers.get(peer)
        if not said:
            silent.add(peer)
            continue
        is_missing = any(answer.sent[waiting] > own.received[peer] for answer in said.values())
        if min(said) > number and not is_missing:
            continue  # it has done its part of this collective, and somebody else has not
        if is_missing:
            broken |= {waiting, peer}
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
    return sorted(broken or mine.awaited), True


def _until(number: int, said: Answers) -> Answers:
    return {place: answer for place, answer in said.items() if place <= number}
