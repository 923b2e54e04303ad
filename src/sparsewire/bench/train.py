"""One rank of ``bench train``, as a process: ``python -m sparsewire.bench.train PLAN``.

Every contender has a model of its own.  They take turns, some steps at a time, on the same batches: what a
rank draws follows from the seed, the rank and the number of the step.
"""

from __future__ import annotations

import random
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

import sparsewire as sw
from sparsewire.bench.contenders import Together
from sparsewire.bench.tasks import TASKS, Examples, Task
from sparsewire.bench.train_methods import Compression, Trainer
from sparsewire.bench.worker import gloo_group, teller
from sparsewire.launch.emulation import interface_bytes
from sparsewire.launch.events import JobSpec, say

__all__ = ["TrainPlan", "TrainRecord", "main", "train"]

STEPS_OF_A_TURN = 5
REFERENCE = "dense-float64"


@dataclass(frozen=True)
class TrainPlan(JobSpec):
    """What all ranks do, as one command-line argument."""

    worker: ClassVar[str] = "sparsewire.bench.train"

    ranks: int
    task: str
    methods: tuple[str, ...]
    steps: int
    seed: int
    width: int
    density: float
    warmup_steps: int = 0
    data: str | None = None
    peer_port: int = 0
    in_namespace: bool = False
    timeout_s: float = 300.0


@dataclass
class TrainRecord:
    """What one rank knows about one contender; lists have an entry for each step."""

    method: str
    parameters: int
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    bytes_sent: list[float] = field(default_factory=list)  # of its turn's last step; none if nobody counts
    interface_sent: list[float] = field(default_factory=list)  # its share of the turn; none likewise
    digest: int = 0  # of the parameters at the end
    distance_to_float64: float | None = None  # of the parameters, in units of their norm


def main() -> None:
    plan = TrainPlan.from_json(sys.argv[1])
    with ExitStack() as stack:
        comm = stack.enter_context(sw.init(timeout=plan.timeout_s))
        stack.enter_context(gloo_group(comm, plan.peer_port, plan.in_namespace, plan.timeout_s))
        records = train(comm, plan, teller(comm))
        of_ranks = Together(comm).gather([asdict(record) for record in records])
        if comm.rank == 0:
            say({"found": of_ranks})
        comm.barrier()  # nobody takes the group down while somebody still uses it


def train(comm: sw.Communicator, plan: TrainPlan, tell: Callable[[int, int], None]) -> list[TrainRecord]:
    """What this rank found about each contender."""
    task = TASKS[plan.task]
    run = _Run(comm, plan, task, task.load(Path(plan.data) if plan.data else None))
    compression = Compression(plan.density, plan.warmup_steps)
    trainers = [Trainer(method, task, plan.width, plan.seed, compression) for method in plan.methods]
    pairs = [(trainer, TrainRecord(trainer.method, len(trainer.parameters()))) for trainer in trainers]
    order = random.Random(plan.seed)  # the same on every rank
    for first in range(0, plan.steps, STEPS_OF_A_TURN):
        tell(first, plan.steps)
        steps = range(first, min(first + STEPS_OF_A_TURN, plan.steps))
        for trainer, record in order.sample(pairs, len(pairs)):
            run.take_turn(trainer, record, steps)
    _compare_parameters(pairs)
    return [record for _, record in pairs]


@dataclass(frozen=True)
class _Run:
    comm: sw.Communicator
    plan: TrainPlan
    task: Task
    examples: Examples

    def take_turn(self, trainer: Trainer, record: TrainRecord, steps: range) -> None:
        before = self._interface_sent()
        for step in steps:
            chance = np.random.default_rng([self.plan.seed, self.comm.rank, step])
            inputs, classes = trainer.batch(self.examples.draw(chance, self.task.batch))
            self.comm.barrier()
            start = time.perf_counter()
            loss = trainer.step(inputs, classes)
            record.seconds.append(time.perf_counter() - start)
            record.losses.append(loss.item())
        self.comm.barrier()  # behind it, all that was sent has arrived somewhere and is counted
        after, sent = self._interface_sent(), trainer.bytes_sent()
        if before is not None and after is not None:
            record.interface_sent += [(after - before) / len(steps)] * len(steps)
        if sent is not None:
            record.bytes_sent += [sent] * len(steps)

    def _interface_sent(self) -> int | None:
        """Bytes so far, where this rank has an interface of its own."""
        return interface_bytes()[0] if self.plan.in_namespace else None


def _compare_parameters(pairs: Sequence[tuple[Trainer, TrainRecord]]) -> None:
    """At the end: with other ranks', by digest, and with those of the reference if it ran."""
    reference = next((trainer.parameters() for trainer, _ in pairs if trainer.method == REFERENCE), None)
    for trainer, record in pairs:
        parameters = trainer.parameters()
        record.digest = zlib.crc32(parameters.view(np.uint8).data)
        if reference is not None:
            distance = np.linalg.norm(parameters - reference) / np.linalg.norm(reference)
            record.distance_to_float64 = float(distance)


if __name__ == "__main__":
    main()
