"""A benchmark from the outside: start the ranks, follow their progress, collect their records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from sparsewire.bench.cases import Case, exact_sum
from sparsewire.bench.contenders import Alone, LocalAllreduce, input_vector
from sparsewire.bench.peers import PEERS, reason_to_skip
from sparsewire.bench.rows import MemoryRow, Row, make_memory_row, make_rows
from sparsewire.bench.timing import measure
from sparsewire.bench.worker import EVENT, Plan
from sparsewire.errors import InputError, SparsewireError
from sparsewire.launch import free_port, launch
from sparsewire.network import emulated_network, parse_rate

__all__ = ["BenchmarkError", "Options", "Result", "run_allreduce", "run_memory"]

# Hears what is going on, and how many of how many steps are done.
Tell: TypeAlias = Callable[[str, int, int], None]

LAST_WORDS = 15  # lines of a failed rank that are worth showing


class BenchmarkError(SparsewireError):
    """A rank failed while it was measured; the message ends with its last words."""


@dataclass(frozen=True)
class Options:
    """How to run a case."""

    algorithms: tuple[str, ...]
    driver: str = "tcp"
    network: str | None = None
    peers: bool = True
    iterations: int | None = None
    budget_s: float = 20.0


@dataclass(frozen=True)
class Result:
    """Rows, fastest first, and which peers did not run and why."""

    rows: list[Row]
    skipped: dict[str, str]


def run_allreduce(case: Case, options: Options, tell: Tell) -> Result:
    """Every contender on the case, interleaved in one run."""
    if options.driver == "local":
        return _run_in_this_process(case, options, tell)
    if options.driver != "tcp":
        raise InputError(f"unknown driver {options.driver!r}; known are tcp, local")
    wanted = PEERS if options.peers else ()
    skipped = {peer: reason for peer in wanted if (reason := reason_to_skip(peer, case.dtype))}
    rate = parse_rate(options.network) if options.network else None
    plan = Plan(
        case,
        options.algorithms,
        peers=tuple(peer for peer in wanted if peer not in skipped),
        iterations=options.iterations,
        budget_s=options.budget_s,
        timeout_s=_timeout_s(case, rate),
    )
    events = _run_ranks(plan, rate, tell)
    rows = make_rows(
        case,
        [event["records"] for event in events],
        nnz_out=events[0]["nnz_out"],
        driver="tcp",
        network=options.network,
        bits_per_second=rate,
    )
    return Result(rows, skipped)


def run_memory(case: Case, algorithms: Sequence[str], tell: Tell) -> list[MemoryRow]:
    """Peak memory of each algorithm, in fresh processes: one algorithm's heap must not serve the next."""
    rows = []
    for done, name in enumerate(algorithms):
        tell(f"memory of {name}", done, len(algorithms))
        events = _run_ranks(Plan(case, (name,), measure="memory"), None, lambda *_: None)
        rows.append(make_memory_row(case, [event["records"][0] for event in events]))
    return rows


def _run_in_this_process(case: Case, options: Options, tell: Tell) -> Result:
    if options.network:
        raise InputError("--network needs real ranks: use --driver tcp")
    inputs = [input_vector(case, rank) for rank in range(case.ranks)]
    expected = exact_sum(case)
    records = measure(
        [LocalAllreduce(name, inputs) for name in options.algorithms],
        Alone(),
        expected,
        budget_s=options.budget_s,
        iterations=options.iterations,
        tell=lambda done, total: tell("measuring", done, total),
    )
    nnz_out = int(np.count_nonzero(expected))
    rows = make_rows(case, [[asdict(record) for record in records]], nnz_out=nnz_out, driver="local")
    return Result(rows, {})


def _run_ranks(plan: Plan, rate: int | None, tell: Tell) -> list[dict[str, Any]]:
    """What each rank said at its end, in rank order."""
    tell("starting ranks", 0, 1)
    ears = _Ears(tell)
    with ExitStack() as stack:
        network = stack.enter_context(emulated_network(plan.case.ranks, rate)) if rate else None
        plan = replace(plan, peer_port=free_port(), in_namespace=network is not None)
        outcome = launch(
            [sys.executable, "-m", "sparsewire.bench.worker", plan.to_json()],
            plan.case.ranks,
            master_addr=network.hosts[0].address if network else "127.0.0.1",
            namespaces=network.namespaces if network else (),
            on_line=ears.hear,
        )
    if outcome.code != 0:
        words = "\n".join(ears.words.get(outcome.rank, [])[-LAST_WORDS:])
        raise BenchmarkError(f"{outcome}; its last words:\n{words}")
    return [ears.records[rank] for rank in range(plan.case.ranks)]


@dataclass
class _Ears:
    """Sorts what ranks print into events and words."""

    tell: Tell
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    words: dict[int | None, list[str]] = field(default_factory=dict)

    def hear(self, rank: int, stream: str, line: bytes) -> None:
        if not line.startswith(EVENT):
            self.words.setdefault(rank, []).append(line.decode(errors="replace"))
            return
        event = json.loads(line[len(EVENT) :])
        if "records" in event:
            self.records[rank] = event
        else:
            self.tell("measuring", event["done"], event["total"])


def _timeout_s(case: Case, bits_per_second: int | None) -> float:
    """Far more than any contender needs, so that only what hangs runs into it."""
    slowest_bits = (
        8 * 8 * case.length * case.ranks
    )  # every rank's dense vector of 8-byte values through one link
    return 60.0 + (4 * slowest_bits / bits_per_second if bits_per_second else 0.0)
