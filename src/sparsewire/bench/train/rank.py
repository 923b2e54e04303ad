"""One rank of ``bench train``.

Every method has a model of its own.  Methods take turns, some steps at a time, on the same batches: what a
rank draws follows from the seed, the rank and the number of the step.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import sparsewire as sw
from sparsewire.bench.harness.records import TrainingRecord
from sparsewire.bench.harness.worker import Found, OnStep, RankPlan
from sparsewire.bench.train.methods import Compression, Trainer
from sparsewire.bench.train.tasks import TASKS, Examples
from sparsewire.launch.emulation import interface_bytes

STEPS_OF_A_TURN = 5
REFERENCE = "dense-float64"


@dataclass
class TrainRecord(TrainingRecord):
    """One method, step by step; bytes of a step are those of its turn, or the turn's share."""

    method: str
    parameters: int
    losses: list[float] = field(default_factory=list)
    distance_to_float64: float | None = None  # of the parameters at the end, in units of their norm


@dataclass(frozen=True)
class TrainPlan(RankPlan):
    """What every rank trains."""

    uses_gloo = True

    ranks: int
    task: str
    methods: tuple[str, ...]
    steps: int
    seed: int
    width: int
    density: float
    warmup_steps: int = 0
    data: str | None = None
    timeout_s: float = field(default=300.0, kw_only=True)

    @property
    def processes(self) -> int:
        return self.ranks

    def measure(self, comm: sw.Communicator, on_step: OnStep) -> Iterator[Found]:
        """What this rank recorded about each method."""
        task = TASKS[self.task]
        examples = task.load(Path(self.data) if self.data else None)
        compression = Compression(self.density, self.warmup_steps)
        trainers = [Trainer(method, task, self.width, self.seed, compression) for method in self.methods]
        pairs = [(trainer, TrainRecord(trainer.method, len(trainer.parameters()))) for trainer in trainers]
        order = random.Random(self.seed)  # the same on every rank
        for first in range(0, self.steps, STEPS_OF_A_TURN):
            on_step(first, self.steps)
            steps = range(first, min(first + STEPS_OF_A_TURN, self.steps))
            for trainer, record in order.sample(pairs, len(pairs)):
                self._take_turn(comm, examples, trainer, record, steps)
        _compare_parameters(pairs)
        yield [asdict(record) for _, record in pairs], {}

    def _take_turn(
        self, comm: sw.Communicator, examples: Examples, trainer: Trainer, record: TrainRecord, steps: range
    ) -> None:
        before = self._interface_sent()
        for step in steps:
            chance = np.random.default_rng([self.seed, comm.rank, step])
            inputs, classes = trainer.batch(examples.draw(chance, TASKS[self.task].batch))
            comm.barrier()
            start = time.perf_counter()
            loss = trainer.step(inputs, classes)
            record.seconds.append(time.perf_counter() - start)
            record.losses.append(loss.item())
        comm.barrier()  # after it, everything that was sent has arrived and is counted
        after, sent = self._interface_sent(), trainer.bytes_sent()
        if before is not None and after is not None:
            record.interface_sent += [(after - before) / len(steps)] * len(steps)
        if sent is not None:
            record.bytes_sent += [sent] * len(steps)

    def _interface_sent(self) -> int | None:
        """Bytes so far, where this rank has an interface of its own."""
        return interface_bytes()[0] if self.in_namespace else None


def _compare_parameters(pairs: Sequence[tuple[Trainer, TrainRecord]]) -> None:
    """Record a digest of the parameters at the end, and their distance to the reference if it ran."""
    reference = next((trainer.parameters() for trainer, _ in pairs if trainer.method == REFERENCE), None)
    for trainer, record in pairs:
        parameters = trainer.parameters()
        record.digest = zlib.crc32(parameters.view(np.uint8).data)
        if reference is not None:
            distance = np.linalg.norm(parameters - reference) / np.linalg.norm(reference)
            record.distance_to_float64 = float(distance)
