"""Accepted connections that have not proved yet to be from a rank: how many, and for how long.

Strangers may dial too, and hold their connections open.  Where there are too many, the host that has most of
them loses its oldest one.  So strangers on other hosts displace each other and no rank.  On one host, a rank
is displaced only if a whole limit of newer connections comes before its answer; then it dials again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from sparsewire.drivers.tcp.link import Link

__all__ = ["Unproven", "handshake_limit", "handshake_seconds"]

FEWEST = 256
PER_RANK = 2  # a rank may dial again before it is noticed that its first connection is gone
SHORTEST_S = 10.0


def handshake_limit(size: int) -> int:
    """How many connections may be in their handshake at once."""
    return FEWEST + PER_RANK * size


def handshake_seconds(timeout: float) -> float:
    """How long a connection may take to prove that it is from a rank, in a job with this time-out."""
    return max(SHORTEST_S, timeout)


class Unproven:
    """The connections by host, oldest first."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit, self._seconds = limit, seconds
        self._hosts: dict[str, dict[Link, None]] = {}

    def add(self, link: Link) -> None:
        self._hosts.setdefault(link.host, {})[link] = None

    def discard(self, link: Link) -> None:
        links = self._hosts.get(link.host, {})
        links.pop(link, None)
        if not links:
            self._hosts.pop(link.host, None)

    def surplus(self) -> Link | None:
        """The connection that has to go, if there are too many."""
        return self.oldest_of_most() if sum(map(len, self._hosts.values())) > self._limit else None

    def oldest_of_most(self) -> Link | None:
        """The oldest connection of the host that has most of them."""
        most: dict[Link, None] = max(self._hosts.values(), key=len, default={})
        return next(iter(most), None)

    def overdue(self, now: float) -> list[Link]:
        """The connections whose time is over."""
        latest = now - self._seconds
        return [
            link
            for links in self._hosts.values()
            for link in itertools.takewhile(lambda link: link.since < latest, links)
        ]

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def __iter__(self) -> Iterator[Link]:
        for links in self._hosts.values():
            yield from links
