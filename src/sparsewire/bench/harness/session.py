"""A benchmark from the outside: start the ranks, follow their progress, collect what they found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparsewire.bench.harness.problem import Case
from sparsewire.bench.harness.worker import OnStep, RankPlan
from sparsewire.errors import SparsewireError
from sparsewire.launch.emulation import parse_rate
from sparsewire.launch.events import EventReader
from sparsewire.launch.job import run_job
from sparsewire.launch.local import free_port


class BenchmarkError(SparsewireError):
    """A rank failed while it was measured; the message ends with what it printed last."""


def run_ranks(
    plan: RankPlan,
    driver: str,
    network: str | None,
    on_step: OnStep = lambda done, total: None,
    on_found: Callable[[dict[str, Any]], None] = lambda event: None,
) -> list[dict[str, Any]]:
    """What the ranks found, one event for each case; ``on_found`` is called with each event at once."""
    rate = parse_rate(network) if network else None
    on_step(0, 1)
    found = []

    def on_event(event: dict[str, Any]) -> None:
        if "found" in event:
            found.append(event)
            on_found(event)
        else:
            on_step(event["done"], event["total"])

    reader = EventReader(on_event)
    plan = replace(plan, peer_port=free_port(), in_namespace=rate is not None)
    kind = f"{type(plan).__module__}:{type(plan).__qualname__}"
    worker = ["-m", "sparsewire.bench.harness.worker", kind, plan.to_json()]
    outcome = run_job(worker, plan.processes, driver=driver, bits_per_second=rate, on_line=reader.hear)
    if outcome.code != 0:
        raise BenchmarkError(f"{outcome}; its last words:\n{reader.tail(outcome.rank)}")
    return found


def timeout_s(case: Case, network: str | None) -> float:
    """Far more than any contender needs, so that only a call that hangs is interrupted."""
    # Every rank's dense vector of 8-byte values through one link.
    slowest_bits = 8 * 8 * case.length * case.ranks
    return 60.0 + (4 * slowest_bits / parse_rate(network) if network else 0.0)
