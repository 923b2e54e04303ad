"""What the processes of ``bench linear`` are told, and what they record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sparsewire.launch.events import JobSpec

__all__ = [
    "DATA",
    "DENSE",
    "SKLEARN_LBFGS",
    "SKLEARN_SGD",
    "SPARK_LBFGS",
    "SPARK_SGD",
    "AlonePlan",
    "LinearPlan",
    "LinearRecord",
    "SparkPlan",
]

DATA = ("url", "webspam")  # that can be generated
DENSE = "dense"  # the contender of ours that sums gradients with all their zeros
# In one process, by one of two solvers: mini-batches (scikit-learn's of one row), and all rows in every step.
SKLEARN_SGD, SKLEARN_LBFGS = "sklearn-sgd", "sklearn-lbfgs"
SPARK_SGD, SPARK_LBFGS = "spark-sgd", "spark-lbfgs"


@dataclass(frozen=True)
class LinearPlan(JobSpec):
    """What all ranks do, as one command-line argument."""

    worker: ClassVar[str] = "sparsewire.bench.linear"

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
    measure: str = "time"  # or "memory", of the one contender
    peer_port: int = 0
    in_namespace: bool = False
    timeout_s: float = 300.0


@dataclass
class LinearRecord:
    """What one rank knows about one contender; lists have an entry for each pass, the first is a warm-up."""

    contender: str
    batch: int
    seconds: list[float] = field(default_factory=list)
    communicating: list[float] = field(default_factory=list)
    bytes_sent: list[float] = field(default_factory=list)  # none if nobody counts
    interface_sent: list[float] = field(default_factory=list)  # none likewise
    loss: float = 0.0  # this and all that follows: at the end
    accuracy: float = 0.0
    digest: int = 0
    distance: float | None = None  # to the model of ``DENSE``, in units of its norm


class AlonePlan(LinearPlan):
    """What scikit-learn does."""

    worker = "sparsewire.bench.linear_alone"


class SparkPlan(LinearPlan):
    """What Spark does."""

    worker = "sparsewire.bench.linear_spark"
