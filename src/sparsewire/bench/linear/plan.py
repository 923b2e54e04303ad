"""What the processes of ``bench linear`` do, and what they record.

Plans import what they need when they are carried out: the command line needs neither scipy nor scikit-learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module

from sparsewire.bench.harness.peers import PEERS
from sparsewire.bench.harness.records import TrainingRecord
from sparsewire.bench.harness.worker import Found, OnStep, RankPlan
from sparsewire.communicator import Communicator

DATA = ("url", "webspam")  # that can be generated
DENSE = "dense"  # our contender that sums gradients with all their zeros
# In one process, by one of two solvers: mini-batches (scikit-learn's of one row), and all rows in every step.
SKLEARN_SGD, SKLEARN_LBFGS = "sklearn-sgd", "sklearn-lbfgs"
SPARK_SGD, SPARK_LBFGS = "spark-sgd", "spark-lbfgs"
SPARK = (SPARK_SGD, SPARK_LBFGS)
# What processes do: a module of this folder and its function.
TIME, MEMORY = "rank:compare", "rank:measure_memory"
ALONE = {"alone:train": (SKLEARN_SGD, SKLEARN_LBFGS), "spark:train": SPARK}


@dataclass(frozen=True)
class LinearPlan(RankPlan):
    """Processes that train a model for every contender, and measure what ``work`` says."""

    ranks: int
    data: str  # a name of DATA, or the path of a LIBSVM file, which has rows of its own
    rows: int | None
    features: int | None  # None: as many as the data set has
    contenders: tuple[str, ...]
    passes: int  # that are timed; one more comes before
    batch: int = 1000  # rows of a rank and step
    loss: str = "logistic"
    density: float = 0.01
    seed: int = 0
    work: str = TIME
    timeout_s: float = field(default=300.0, kw_only=True)

    @property
    def processes(self) -> int:
        return self.ranks

    @property
    def uses_gloo(self) -> bool:
        return bool(set(self.contenders) & set(PEERS["tcp"]))

    def measure(self, comm: Communicator, on_step: OnStep) -> Iterator[Found]:
        module, _, function = self.work.partition(":")
        work = getattr(import_module(f"sparsewire.bench.linear.{module}"), function)
        yield work(comm, self, on_step), {}


@dataclass
class LinearRecord(TrainingRecord):
    """One contender, pass by pass; the first pass is a warm-up."""

    contender: str
    batch: int
    communicating: list[float] = field(default_factory=list)
    loss: float = 0.0  # this and all that follows: at the end
    accuracy: float = 0.0
    distance: float | None = None  # to the model of ``DENSE``, in units of its norm
