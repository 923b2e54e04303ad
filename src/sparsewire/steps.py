"""The whole vocabulary between an algorithm and the driver that runs it.

An algorithm is a generator, a *script*.  It yields rounds and receives payloads; it never sees a
socket, a clock, a thread or a byte.

Contract of ``yield``:

- A yielded list is one round.  All of it is started together; the script resumes when its ``Recv`` and
  ``RecvAny`` steps are answered, with their payloads in the order listed.  Sends go on by themselves,
  and are complete before the collective ends: a script can compute while messages are being sent.
- Messages from one rank to another arrive in the order sent.  Collectives in flight together are kept
  apart by the driver, so scripts have no tags.
- A payload is one piece (a ``SparseVector``) or a list of pieces, and a value: nobody writes to it
  after a ``Send``.
- A script says what it expects of a payload, as far as it knows.  It never sees anything else: the driver
  raises ``WireError`` instead, on every rank.
- Nobody sends to itself.  With one rank the lists are empty and nothing special happens.
- Every rank returns the same bits, and the same inputs give the same bits on the next run.

>>> def swap(rank, size, mine):
...     [theirs] = yield [Send(1 - rank, mine), Recv(1 - rank)]
...     return theirs
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

__all__ = ["Expectation", "Recv", "RecvAny", "Round", "Send", "Steps"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Give ``payload`` to ``peer``."""

    peer: int
    payload: Any


class Expectation(Protocol):
    """What a payload has to be; see ``expected``."""

    def check(self, source: int, payload: Any) -> None:
        """Raise WireError, which names the source, unless its payload is that."""


@dataclass(frozen=True, slots=True)
class Recv:
    """The next payload from ``peer``."""

    peer: int
    expected: Expectation | None = None


@dataclass(frozen=True, slots=True)
class RecvAny:
    """The next payload from any of ``peers``, or of all ranks, as ``(rank, payload)``."""

    peers: tuple[int, ...] = ()
    expected: Expectation | None = None


Round: TypeAlias = Sequence[Send | Recv | RecvAny]
Steps: TypeAlias = Generator[Round, list[Any], T]
