"""Who is left: how the ranks that survive a failure agree on one group.  No I/O, no clock, no threads.

Every rank tells all others its *view*: the ranks that it holds for dead, and those for silent.  A view that
comes in is united with the own one, and a view that has grown is told again.  A rank decides when every rank
that is not gone in its view has told exactly this view.  From then on its view is frozen, and it answers
every view with its decision, which the others adopt.

If only dead ranks are held for dead, no two living ranks decide differently.  Let A be the rank that decided
V, and B the one that decided W, before others adopted it.  If neither is gone for the other, A has told W and
B has told V.  Views only grow and are frozen by the decision, so each contains the other.  If A is gone in W,
then A is dead, and whoever is left in W told W, with A in it, before it adopted anything.  A rank ignores the
decision of a rank that it holds for dead, so it did not adopt V from A, nor from anybody else who is left.

A silent rank may be alive, and may go on with others.  So a group that leaves out silent ranks needs more
than half of the ranks that are not dead, or exactly half with the lowest of them.  A group works only if all
its ranks decided for it, and two such groups cannot be disjoint.  Others end with an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparsewire.errors import PeerLostError, TransportError

__all__ = ["Membership", "View"]


class View(NamedTuple):
    """The ranks that do not take part any more, as far as one rank knows."""

    dead: frozenset[int] = frozenset()  # their processes have ended, or have closed the communicator
    silent: frozenset[int] = frozenset()  # they did not answer in time, and may be alive

    @property
    def gone(self) -> frozenset[int]:
        return self.dead | self.silent

    def united(self, other: View) -> View:
        dead = self.dead | other.dead
        return View(dead, (self.silent | other.silent) - dead)


class Membership:
    """One rank's part of the agreement: give it what happens, and tell all others its ``view``.

    >>> one, two = Membership(1, 3), Membership(2, 3)
    >>> one.on_dead([0])
    >>> two.on_view(1, one.view)
    >>> one.on_view(2, two.view)
    >>> one.group
    [1, 2]
    """

    def __init__(self, rank: int, size: int) -> None:
        self.view = View()
        self.decided = False  # is the view the decision?
        self.failure: TransportError | None = None  # why this rank cannot go on
        self._rank, self._size = rank, size
        self._told: dict[int, View] = {}

    @property
    def group(self) -> list[int]:
        """The ranks that are left, in order."""
        return sorted(set(range(self._size)) - self.view.gone)

    @property
    def others(self) -> list[int]:
        return [rank for rank in self.group if rank != self._rank]

    def on_view(self, source: int, view: View, decided: bool = False) -> None:
        """``source`` has told its view, which is its decision if it is ``decided``."""
        if self.decided or self.failure or source in self.view.dead:
            return
        if self._rank in view.gone:
            self.failure = PeerLostError(
                f"the others went on without rank {self._rank}: it was "
                + ("gone" if self._rank in view.dead else "silent for too long")
                + f", says rank {source}. sparsewire.join() takes it in again when they call grow()"
            )
        elif decided:
            self.view = view
            self._decide()
        elif source not in self.view.silent:
            self._told[source] = view
            self._grow(view)

    def on_dead(self, ranks: Iterable[int]) -> None:
        """The processes of these ranks have ended."""
        self._grow(View(dead=frozenset(ranks)))

    def on_silent(self, ranks: Iterable[int]) -> None:
        """These ranks did not answer in time."""
        self._grow(View(silent=frozenset(ranks)))

    def disagreeing(self) -> list[int]:
        """The ranks whose view is not known to be this rank's."""
        return [rank for rank in self.others if self._told.get(rank) != self.view]

    def _grow(self, news: View) -> None:
        if self.decided or self.failure:
            return
        self.view = self.view.united(news)
        if not self.disagreeing():
            self._decide()

    def _decide(self) -> None:
        self.decided = True
        dead, silent = self.view
        candidates = sorted(set(range(self._size)) - dead)
        majority = 2 * len(self.group) - len(candidates)
        if silent and (majority < 0 or (majority == 0 and candidates[0] in silent)):
            names = ", ".join(map(str, sorted(silent)))
            self.failure = TransportError(
                f"{len(self.group)} of {self._size} ranks are left, and rank {names} is silent: "
                "so few cannot tell whether the others go on without them"
            )
