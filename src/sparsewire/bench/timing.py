"""The clock: contenders take turns, and each turn starts at a barrier that is not in the time.

Runs inside the ranks and prints nothing.  Every rank keeps its own times; the slowest rank's is the
iteration's time, and ``rows`` finds it, so no communication happens for the sake of measuring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparsewire.bench.cases import Values, count_wrong

__all__ = ["Contender", "Moved", "Ranks", "Record", "iteration_counts", "measure", "takes_part"]

WARM_UP_ROUNDS = 2  # the first connects, the second says how long a turn takes
FEWEST_ITERATIONS = 5
MOST_ITERATIONS = 200  # enough for a median; more would only repeat it


@dataclass(frozen=True)
class Moved:
    """What one call moved at one rank, as far as the contender knows."""

    bytes_sent: int | None = None
    bytes_received: int | None = None
    messages: int | None = None
    algorithm: str | None = None  # what "auto" chose


class Contender(Protocol):
    """Something that can add up every rank's vector."""

    @property
    def name(self) -> str: ...

    def prepare(self) -> None:
        """Restore the input; not timed."""

    def run(self) -> None:
        """The call that is timed."""

    def moved(self) -> Moved:
        """What the last call moved."""

    def results(self) -> Iterable[Values]:
        """The last call's dense results: one, or one per rank where one process plays them all."""


class Ranks(Protocol):
    """What the clock needs from the others."""

    def barrier(self) -> None: ...

    def agree(self, numbers: Sequence[int]) -> list[int]:
        """Rank 0's numbers, on every rank."""


@dataclass
class Record:
    """What one rank knows about one contender."""

    name: str
    seconds: list[float] = field(default_factory=list)
    moved: Moved = field(default_factory=Moved)
    interface_sent: int | None = None
    interface_received: int | None = None
    wrong: int = 0


def measure(
    contenders: Sequence[Contender],
    ranks: Ranks,
    expected: Values,
    *,
    budget_s: float,
    iterations: int | None = None,
    interface_bytes: Callable[[], tuple[int, int]] | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """One record per contender, measured in turns and checked against ``expected``.

    ``tell`` hears how many of how many iterations are done.
    """
    records = [Record(contender.name) for contender in contenders]
    pairs = list(zip(contenders, records, strict=True))
    for _ in range(WARM_UP_ROUNDS):
        warm_up = [_turn(contender, record, ranks, interface_bytes) for contender, record in pairs]
    _check(pairs, expected)

    counts = [iterations] * len(pairs) if iterations else iteration_counts(warm_up, budget_s)
    counts = ranks.agree(counts)
    for iteration in range(max(counts)):
        tell(iteration, max(counts))
        for (contender, record), count in zip(pairs, counts, strict=True):
            if takes_part(iteration, count, max(counts)):
                record.seconds.append(_turn(contender, record, ranks, interface_bytes))
    _check(pairs, expected)
    return records


def iteration_counts(seconds: Sequence[float], budget_s: float) -> list[int]:
    """As many iterations as fit when all contenders get the same share of the time."""
    share_s = budget_s / len(seconds)
    return [max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, int(share_s / max(s, 1e-9)))) for s in seconds]


def takes_part(iteration: int, count: int, total: int) -> bool:
    """Whether a contender with ``count`` turns has one now, so that its turns are spread over ``total``."""
    return (iteration + 1) * count // total > iteration * count // total


def _turn(
    contender: Contender,
    record: Record,
    ranks: Ranks,
    interface_bytes: Callable[[], tuple[int, int]] | None,
) -> float:
    contender.prepare()
    before = interface_bytes() if interface_bytes else None
    ranks.barrier()
    start = time.perf_counter()
    contender.run()
    seconds = time.perf_counter() - start
    record.moved = contender.moved()
    if interface_bytes and before:
        ranks.barrier()  # behind it, all that was sent has arrived somewhere and is counted
        sent, received = interface_bytes()
        record.interface_sent, record.interface_received = sent - before[0], received - before[1]
    return seconds


def _check(pairs: Iterable[tuple[Contender, Record]], expected: Values) -> None:
    for contender, record in pairs:
        wrong = sum(count_wrong(result, expected) for result in contender.results())
        record.wrong = max(record.wrong, wrong)
