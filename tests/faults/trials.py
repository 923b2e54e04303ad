"""A trial: what the ranks of a job call, and which fault happens to whom, drawn from a seed and a number.

The same seed and number draw the same trial again.  Trials ``0 .. len(FAULTS) - 1`` have every fault once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS

# Each fault, and where it is injected: a driver that is named twice is drawn twice as often.  "network" is
# TCP in an emulated network; "tags" and "tls" are TCP with messages that are authenticated or encrypted.
MPI = ("mpich", "openmpi")
TCP = ("tcp", "tcp", "tcp", "tcp", "tcp", "tags", "tls", "aggregators", "aggregators")
FAULTS: dict[str, tuple[str, ...]] = {
    "kill": (*TCP, *TCP, *MPI, "ddp", "linear"),
    "two kills": TCP,
    "kill while joining": ("tcp",),
    "stop": (*TCP, "ddp", "linear"),
    "pause": (*TCP, "mpich", "ddp", "linear"),
    "continue too late": TCP,
    "link down": ("network", "network", "network aggregators"),
    "link interrupted": ("network", "network aggregators"),
    "pair drop": ("network",),
    "garbage to a port": TCP,
    "junk on a link": TCP,
    "bit flip": TCP,
    "truncation": TCP,
    "slow rank": (*TCP, *MPI, "ddp", "linear"),
    "slow link": TCP,
    "exception": (*TCP, *TCP, *MPI, "ddp", "linear"),
    "exit": (*TCP, *TCP, *MPI, "ddp"),
    "close": (*TCP, *MPI),
    "mismatch": (*TCP, *TCP, *MPI),
    "bad input": (*TCP, *TCP, *MPI, "ddp", "linear"),
    "descriptors": TCP,
    "fork": TCP,
    "disk full": ("linear",),
}
# With these the time-out of a call decides when it fails, so it is short.
BY_TIME_OUT = {
    "kill while joining",
    "stop",
    "continue too late",
    "link down",
    "pair drop",
    "junk on a link",
    "bit flip",
    "truncation",
    "descriptors",
}
THEN_KILL = ("bad input", "mismatch", "garbage to a port", "slow rank")  # a second fault may follow
LONG_TIMEOUT_S = 20.0  # so long that no fault can be taken for another one
IN_CALL_S = 0.01  # most faults happen so many seconds after a call began, or earlier
MISMATCHES = ("length", "dtype", "op", "algorithm", "operation")
BAD_INPUTS = ("unsorted", "text", "op", "timeout")
EXITS = ("sys.exit(0)", "sys.exit(3)", "os._exit(4)", "return")
LEAST_CALLS_AFTER = 4  # the fault: every rank needs every other one again


@dataclass(frozen=True)
class Call:
    """One collective.  Calls of one burst are in flight together; the blocking one is its last."""

    number: int
    burst: int
    blocking: bool
    operation: str
    algorithm: str = ""
    dtype: str = "float64"
    length: int = 0
    nnz: int = 0  # entries per rank; as many as the length: a dense array
    op: str = "sum"
    root: int = 0
    name: str | None = None
    precision: str | None = None


@dataclass(frozen=True)
class Fault:
    """What happens to the rank ``victim`` when its call ``at`` begins, or ``delay`` seconds later."""

    kind: str
    victim: int
    at: int
    delay: float = 0.0
    other: int = 0  # the rank at the other end, where the fault is that of a pair
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    seed: int
    number: int
    kind: str  # that of the table's row
    driver: str
    size: int  # with aggregators
    aggregators: int
    timeout: float
    linger: float  # seconds that a rank lives on after it failed
    skew: float  # seconds that a rank computes before its calls, at most: ranks are not in step
    calls: tuple[Call, ...]
    faults: tuple[Fault, ...]

    @property
    def workers(self) -> int:
        return self.size - self.aggregators

    @property
    def victims(self) -> set[int]:
        return {fault.victim for fault in self.faults}

    @property
    def joins_within(self) -> float:
        """The time-out of joining, which a busy machine must not reach.

        It also says when a silent link is noticed, by aggregators too, so in some trials it is that of calls.
        """
        silent_to_aggregators = self.aggregators and self.kind in ("stop", "continue too late")
        by_silence = self.networked or silent_to_aggregators or self.kind == "kill while joining"
        return self.timeout if by_silence else LONG_TIMEOUT_S

    @property
    def networked(self) -> bool:
        return self.driver.startswith("network")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Trial:
        calls = tuple(Call(**call) for call in fields["calls"])
        faults = tuple(Fault(**fault) for fault in fields["faults"])
        return cls(**{**fields, "calls": calls, "faults": faults})


def draw(seed: int, number: int, drivers: Sequence[str] | None = None) -> Trial:
    """The trial with this number; ``drivers`` are those that this machine has, by default all."""
    chance = random.Random(f"{seed}/{number}")
    kinds = [kind for kind, found in FAULTS.items() if drivers is None or {*found} & {*drivers}]
    kind = kinds[number % len(kinds)]
    driver = chance.choice([name for name in FAULTS[kind] if drivers is None or name in drivers])
    aggregators = chance.choice([1, 1, 2]) if driver.endswith("aggregators") else 0
    size = _workers(chance, kind, driver) + aggregators
    timeout = chance.choice([2.0, 3.0, 4.0]) if kind in BY_TIME_OUT else LONG_TIMEOUT_S
    calls = _calls(chance, driver, size - aggregators)
    faults = _faults(chance, kind, driver, size, aggregators, calls, timeout)
    if kind in ("mismatch", "bad input"):
        calls = _with_allreduce(chance, calls, {fault.at for fault in faults}, aggregators)
    linger, skew = chance.choice([0.0, 0.0, 0.02, 0.3]), chance.choice([0.0, 0.0, 0.005, 0.05])
    return Trial(
        seed, number, kind, driver, size, aggregators, timeout, linger, skew, tuple(calls), tuple(faults)
    )


def _workers(chance: random.Random, kind: str, driver: str) -> int:
    if driver == "ddp":
        return chance.choice([2, 4])  # their means are exact
    if driver in (*MPI, "linear"):
        return chance.choice([2, 3])
    least = 3 if kind in ("two kills", "pair drop") else 2
    most = 4 if driver.endswith("aggregators") else 6
    return chance.randint(least, most)


# -- calls ---------------------------------------------------------------------------------------


def _calls(chance: random.Random, driver: str, size: int) -> list[Call]:
    bursts = [chance.choice([1, 1, 1, 2, 3, 5]) for _ in range(chance.randint(5, 8))]
    calls: list[Call] = []
    for burst, length in enumerate(bursts):
        blocks = chance.random() < 0.6
        for place in range(length):
            last = place == length - 1
            calls.append(_call(chance, driver, size, len(calls), burst, blocks and last))
    for burst in (len(bursts), len(bursts) + 1):  # whoever has still to be told of a failure is told here
        calls.append(Call(len(calls), burst, True, "barrier"))
    return calls


def _call(chance: random.Random, driver: str, size: int, number: int, burst: int, blocking: bool) -> Call:
    operations = ["allreduce"] * 8 + ["allreduce_topk", "allgather", "reduce_scatter", "broadcast"]
    operations += ["reduce", "barrier"] if blocking else []  # these two have no non-blocking form
    operation = chance.choice(operations)
    length = chance.choice([1, 17, 1000, 30_000, 400_000])
    nnz = chance.choice([length, length // 2, length // 20, min(length, 3), 0])
    call = Call(
        number,
        burst,
        blocking,
        operation,
        dtype=chance.choice(["float32", "float64", "int64"]),
        length=length,
        nnz=nnz,
        op=chance.choice(["sum", "sum", "sum", "max", "min"]),
        root=chance.randrange(size),
    )
    if operation == "allreduce":
        preferred = ["omnireduce"] * 6 if driver.endswith("aggregators") else []
        algorithm = chance.choice([*ALGORITHMS, "auto", "auto", *preferred])
        rounds = algorithm == "auto" or ALGORITHMS[algorithm].supports_precision
        rounds = rounds and call.op == "sum" and call.dtype != "int64" and chance.random() < 0.2
        return replace(
            call,
            algorithm=algorithm,
            name=chance.choice([None, "weights", "bias"]) if algorithm == "auto" else None,
            precision=chance.choice(["float16", "bfloat16"]) if rounds else None,
        )
    if operation == "allreduce_topk":
        return replace(call, algorithm=chance.choice([*TOPK_ALGORITHMS]), op="sum", dtype="float64")
    return call


def _with_allreduce(chance: random.Random, calls: list[Call], at: set[int], aggregators: int) -> list[Call]:
    """The same calls, with an allreduce in the places where a rank calls something else."""
    return [
        replace(
            call,
            operation="allreduce",
            algorithm="omnireduce" if aggregators else chance.choice([*ALGORITHMS, "auto"]),
            length=chance.choice([17, 1000, 30_000]),
            nnz=3,
            dtype="float64",
            op="sum",
            precision=None,
        )
        if call.number in at
        else call
        for call in calls
    ]


# -- faults --------------------------------------------------------------------------------------


def _faults(
    chance: random.Random,
    kind: str,
    driver: str,
    size: int,
    aggregators: int,
    calls: Sequence[Call],
    timeout: float,
) -> list[Fault]:
    workers = size - aggregators
    # What only a rank that makes calls can do is done by a worker; the rest also by an aggregator.
    may_aggregate = kind in ("kill", "stop", "pause", "continue too late", "link down", "link interrupted")
    victim = chance.randrange(size if may_aggregate else workers)
    other = chance.choice([rank for rank in range(workers) if rank != victim])
    at = chance.randrange(len(calls) - LEAST_CALLS_AFTER)
    if kind == "descriptors" and chance.random() < 0.5:
        at = 0  # most connections are still to be made
    delay = chance.choice([0.0, chance.uniform(0, IN_CALL_S)])
    detail = _detail(chance, kind, timeout, victim)
    faults = [Fault(kind, victim, at, delay, other, detail)]
    if kind == "two kills":
        faults = [Fault("kill", rank, at, chance.uniform(0, IN_CALL_S)) for rank in (victim, other)]
    elif kind == "fork" and detail["dies"]:
        faults.append(Fault("kill", victim, at, delay))
    elif driver in TCP and kind in THEN_KILL and chance.random() < 0.2:
        later = range(at + 1, len(calls) - LEAST_CALLS_AFTER)
        faults += [Fault("kill", victim, chance.choice(later), delay)] if later else []
    return faults


def _detail(chance: random.Random, kind: str, timeout: float, victim: int) -> dict[str, Any]:
    details: dict[str, dict[str, Any]] = {
        "pause": {"seconds": chance.uniform(0.05, 0.8)},
        "continue too late": {"seconds": timeout + chance.uniform(0.2, 1.5)},
        "link interrupted": {"seconds": chance.uniform(0.05, 0.6)},
        "pair drop": {"both_ways": chance.random() < 0.5},
        "garbage to a port": {
            "what": chance.choice(["bytes", "http", "silence", "many", "reset"]),
            "chance": chance.random(),
        },
        "junk on a link": {"bytes": chance.choice([1, 8, 64, 5000]), "chance": chance.random()},
        "bit flip": {"bits": chance.choice([1, 1, 2, 16]), "chance": chance.random()},
        "truncation": {"bytes": chance.choice([1, 4, 8, 64]), "chance": chance.random()},
        "slow rank": {"seconds": chance.uniform(0.05, 0.8)},
        "slow link": {"seconds": chance.uniform(0.0005, 0.003)},
        "exit": {"how": chance.choice(EXITS)},
        "close": {"seconds": chance.choice([0.0, 0.3, 2.0])},
        "mismatch": {"what": chance.choice(MISMATCHES)},
        "bad input": {"what": chance.choice(BAD_INPUTS)},
        "descriptors": {"spare": chance.choice([0, 0, 1, 2])},
        "fork": {"dies": chance.random() < 0.6, "seconds": 3.0},
        "disk full": {"what": chance.choice(["model", "predictions"])},
    }
    return details.get(kind, {})
