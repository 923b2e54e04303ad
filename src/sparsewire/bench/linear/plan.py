"""What the processes of ``bench linear`` do, and what they record.

Plans import what they need when they are carried out: the command line needs neither scipy nor scikit-learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sparsewire.bench.harness.peers import PEERS
from sparsewire.bench.harness.worker import Found, OnStep, RankPlan
from sparsewire.communicator import Communicator

DATA = ("url", "webspam")  # that can be generated
DENSE = "dense"  # our contender that sums gradients with all their zeros
# In one process, by one of two solvers: mini-batches (scikit-learn's of one row), and all rows in every step.
SKLEARN_SGD, SKLEARN_LBFGS = "sklearn-sgd", "sklearn-lbfgs"
SPARK_SGD, SPARK_LBFGS = "spark-sgd", "spark-lbfgs"


@dataclass(frozen=True)
class LinearPlan(RankPlan):
    """Ranks that train a model for every contender, and time it."""

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
    timeout_s: float = field(default=300.0, kw_only=True)

    @property
    def processes(self) -> int:
        return self.ranks

    @property
    def uses_gloo(self) -> bool:
        return bool(set(self.contenders) & set(PEERS["tcp"]))

    def measure(self, comm: Communicator, on_step: OnStep) -> Iterator[Found]:
        from sparsewire.bench.linear.rank import compare

        yield compare(comm, self, on_step), {}


class LinearMemoryPlan(LinearPlan):
    """Ranks that train the one contender and measure their memory."""

    def measure(self, comm: Communicator, on_step: OnStep) -> Iterator[Found]:
        from sparsewire.bench.linear.rank import measure_memory

        yield measure_memory(comm, self), {}


class SklearnPlan(LinearPlan):
    """One process in which scikit-learn trains."""

    def measure(self, comm: Communicator, on_step: OnStep) -> Iterator[Found]:
        from sparsewire.bench.linear.alone import train

        yield train(self, on_step), {}


class SparkPlan(LinearPlan):
    """One process in which Spark trains."""

    def measure(self, comm: Communicator, on_step: OnStep) -> Iterator[Found]:
        from sparsewire.bench.linear.spark import train

        yield train(self, on_step), {}


@dataclass
class LinearRecord:
    """What one rank recorded about one contender; lists have an entry for each pass, the first a warm-up."""

    contender: str
    batch: int
    seconds: list[float] = field(default_factory=list)
    communicating: list[float] = field(default_factory=list)
    bytes_sent: list[float] = field(default_factory=list)  # empty if nothing counts
    interface_sent: list[float] = field(default_factory=list)  # empty likewise
    loss: float = 0.0  # this and all that follows: at the end
    accuracy: float = 0.0
    digest: int = 0
    distance: float | None = None  # to the model of ``DENSE``, in units of its norm
