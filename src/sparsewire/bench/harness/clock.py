"""The clock: contenders take turns, and each turn starts at a barrier that is not in the time.

Runs inside the ranks and prints nothing.  Every rank keeps its own times, so that measuring needs no
communication.  The time of an iteration is that of its slowest rank, which ``records`` finds afterwards.
"""

from __future__ import annotations

import random
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sparsewire.bench.harness.problem import Values, count_wrong

WARM_UP_ROUNDS = 2  # the first connects, the second says how long a turn takes
FEWEST_ITERATIONS = 7
MOST_ITERATIONS = 200  # enough for a median
NOISE_S = 1e-3  # what a busy machine may add to a turn


@dataclass(frozen=True)
class Moved:
    """What one call moved at one rank, as far as the contender can tell."""

    bytes_sent: int | None = None
    bytes_received: int | None = None
    messages: int | None = None
    algorithm: str | None = None  # what "auto" chose


class Contender(ABC):
    """Something that can be timed, usually the sum of every rank's vector."""

    name: str
    precision: str = "exact"  # how vectors travel; a rounded sum may differ from the exact one by a bound

    def prepare(self) -> None:  # noqa: B027  # most have nothing to restore
        """Restore the input; not timed."""

    @abstractmethod
    def run(self) -> None:
        """The call that is timed."""

    def moved(self) -> Moved:
        """What the last call moved."""
        return Moved()

    def results(self) -> Iterable[Values]:
        """The dense results of the last call that can be compared with the exact sum."""
        return ()


class Ranks(Protocol):
    """What the clock needs from the other ranks."""

    def barrier(self) -> None: ...

    def agree(self, numbers: Sequence[int]) -> list[int]:
        """Rank 0's numbers, on every rank."""


@dataclass
class Record:
    """What one rank recorded about one contender."""

    name: str
    precision: str = "exact"
    seconds: list[float] = field(default_factory=list)
    moved: Moved = field(default_factory=Moved)
    interface_sent: int | None = None
    interface_received: int | None = None
    wrong: int = 0
    digests: list[int] = field(default_factory=list)  # of the last results, if they are rounded
    warm_up_seconds: list[float] = field(default_factory=list)


def measure(
    contenders: Sequence[Contender],
    ranks: Ranks,
    expected: Values,
    *,
    budget_s: float,
    bound: Callable[[str], Values | None] = lambda precision: None,
    iterations: int | None = None,
    drop_above: float | None = None,
    interface_bytes: Callable[[], tuple[int, int]] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """One record per contender, measured in turns and checked against ``expected``.

    ``bound`` returns how far a sum in a precision may be from it; None means not at all.
    A contender that takes ``drop_above`` times as long as the fastest has no turns after the warm-up, except
    `auto`.  ``on_progress`` is called with how many of how many iterations are done.
    """
    records = [Record(contender.name, contender.precision) for contender in contenders]
    pairs = list(zip(contenders, records, strict=True))
    for _ in range(WARM_UP_ROUNDS):
        for contender, record in pairs:
            record.warm_up_seconds.append(_turn(contender, record, ranks, interface_bytes))
    _check(pairs, expected, bound)

    warm_up = drop_slow([(record.name, min(record.warm_up_seconds)) for record in records], drop_above)
    counts = [iterations] * len(pairs) if iterations else iteration_counts(warm_up, budget_s)
    counts = ranks.agree(counts)
    order = random.Random(0)  # the same on every rank
    for iteration in range(max(counts)):
        on_progress(iteration, max(counts))
        # The order changes, so that no contender always profits from what another leaves in the caches.
        for (contender, record), count in order.sample(list(zip(pairs, counts, strict=True)), len(pairs)):
            if takes_part(iteration, count, max(counts)):
                record.seconds.append(_turn(contender, record, ranks, interface_bytes))
    _check(pairs, expected, bound)
    return records


def seconds_of(call: Callable[..., object], *arguments: Any, **more: Any) -> float:
    """The time of one call."""
    start = time.perf_counter()
    call(*arguments, **more)
    return time.perf_counter() - start


def iteration_counts(seconds: Sequence[float | None], budget_s: float) -> list[int]:
    """How many iterations each contender has if all get the same share of the time; None gets none."""
    share_s = budget_s / sum(s is not None for s in seconds)
    return [
        max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, int(share_s / max(s, 1e-9)))) if s is not None else 0
        for s in seconds
    ]


def drop_slow(seconds: Sequence[tuple[str, float]], times_fastest: float | None) -> list[float | None]:
    """The times, with None for those above so many times the fastest; `auto` always stays."""
    fastest = min(s for _, s in seconds)
    limit = times_fastest * (fastest + NOISE_S) if times_fastest else float("inf")
    return [s if s <= limit or name == "auto" else None for name, s in seconds]


def takes_part(iteration: int, count: int, total: int) -> bool:
    """Whether a contender has a turn now, if its ``count`` turns are spread evenly over ``total``."""
    return (iteration + 1) * count // total > iteration * count // total


def _turn(
    contender: Contender, record: Record, ranks: Ranks, interface_bytes: Callable[[], tuple[int, int]] | None
) -> float:
    contender.prepare()
    before = interface_bytes() if interface_bytes else None
    ranks.barrier()
    seconds = seconds_of(contender.run)
    record.moved = contender.moved()
    if interface_bytes and before:
        ranks.barrier()  # after it, everything that was sent has arrived and is counted
        sent, received = interface_bytes()
        record.interface_sent, record.interface_received = sent - before[0], received - before[1]
    return seconds


def _check(
    pairs: Iterable[tuple[Contender, Record]], expected: Values, bound: Callable[[str], Values | None]
) -> None:
    for contender, record in pairs:
        limit, wrong, digests = bound(contender.precision), 0, []
        for result in contender.results():
            wrong += count_wrong(result, expected, limit)
            if limit is not None:  # ranks may differ although each is within the bound
                digests.append(zlib.crc32(result.view(np.uint8).data))
        record.wrong = max(record.wrong, wrong)
        record.digests = digests
