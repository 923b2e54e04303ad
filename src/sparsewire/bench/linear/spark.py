"""Spark MLlib as contender of ``bench linear``, in a process of its own.

spark-sgd     LogisticRegressionWithSGD: mini-batches as large as those of all ranks together
spark-lbfgs   LogisticRegression, which Spark recommends: a step for every pass.  A pass is an iteration of
              L-BFGS, which evaluates loss and gradient of all rows once, and seldom more often

Both work inside one JVM, with two threads, on rows that are cached there; Python only says what to do.
Starting, reading and the first pass are not in the time.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire.bench.harness.worker import OnStep
from sparsewire.bench.linear.alone import found, make_record, seconds_per_iteration
from sparsewire.bench.linear.plan import SPARK_LBFGS, SPARK_SGD, LinearPlan, LinearRecord
from sparsewire.bench.linear.rank import ALPHA, load_problem
from sparsewire.communicator import Communicator
from sparsewire.files import replaced_file
from sparsewire.linear.problem import Problem

THREADS = 2
STEP = 1.0  # LogisticRegressionWithSGD's default; it divides by the square root of the step's number
# LogisticRegression makes a dense vector for every block of rows.  With blocks of this size it takes half the
# time that it takes with its own, of 1 MB.
BLOCK_MB = 256.0
SHARE_OF_MEMORY = 0.4


def reason_to_skip_spark() -> str | None:
    """Why Spark cannot run here, or None; Spark is not started to find out."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'sparsewire[spark]'"
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        return "there is no Java: install one that Spark supports, such as version 17"
    return None


def train(comm: Communicator, plan: LinearPlan, on_step: OnStep) -> dict[str, Any]:
    """What this process recorded about each contender of the plan."""
    problem = load_problem(plan)
    with _spark() as spark, tempfile.TemporaryDirectory() as folder:
        path = _write(problem, Path(folder))
        records = []
        for number, name in enumerate(plan.contenders):
            on_step(number, len(plan.contenders))
            records.append(CONTENDERS[name](spark, path, plan, problem))
    return found(problem, records)


@contextmanager
def _spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the host's name may have no address
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    builder = SparkSession.builder.master(f"local[{THREADS}]")
    settings = {
        "spark.driver.memory": f"{int(SHARE_OF_MEMORY * memory) >> 20}m",
        "spark.driver.maxResultSize": "0",  # dense gradients are large; 0 means no limit
        "spark.ui.enabled": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _write(problem: Problem, folder: Path) -> str:
    """Write the rows to a file with the labels 0 and 1, as Spark expects them."""
    from sklearn.datasets import dump_svmlight_file

    path = str(folder / "rows.svm")
    with replaced_file(path, "wb") as file:
        dump_svmlight_file(problem.rows, problem.targets, file, zero_based=False)
    return path


def _sgd(spark: Any, path: str, plan: LinearPlan, problem: Problem) -> LinearRecord:
    from pyspark.mllib.common import _java2py

    # The JVM's own classes are used, because pyspark's send all rows through Python.
    mllib, context = spark.sparkContext._jvm.org.apache.spark.mllib, spark.sparkContext._jsc.sc()
    rows = mllib.util.MLUtils.loadLibSVMFile(context, path, problem.features, THREADS)
    rows = rows.toJavaRDD().coalesce(THREADS).rdd().cache()
    count = rows.count()
    batch = min(count, plan.batch)
    sgd = mllib.classification.LogisticRegressionWithSGD(STEP, math.ceil(count / batch), ALPHA, batch / count)
    sgd.setValidateData(False)
    sgd.optimizer().setConvergenceTol(0.0)
    weights: list[Any] = []
    seconds = []
    for _ in range(1 + plan.passes):
        start = time.perf_counter()
        model = sgd.run(rows, *weights)
        seconds.append(time.perf_counter() - start)
        weights = [model.weights()]
    coef = _java2py(spark.sparkContext, weights[0]).toArray()
    rows.unpersist(True)
    return make_record(SPARK_SGD, batch, seconds, problem, (coef[:, None], np.array([model.intercept()])))


def _lbfgs(spark: Any, path: str, plan: LinearPlan, problem: Problem) -> LinearRecord:
    """A longer fit less a short one, because what is done once is not part of a pass."""
    from pyspark.ml.classification import LogisticRegression

    rows = spark.read.format("libsvm").option("numFeatures", str(problem.features)).load(path)
    rows = rows.coalesce(THREADS).cache()
    count = rows.count()

    def fit(iterations: int) -> tuple[float, Any]:
        trainer = LogisticRegression(
            maxIter=iterations, regParam=ALPHA, tol=0.0, standardization=False, maxBlockSizeInMB=BLOCK_MB
        )
        start = time.perf_counter()
        model = trainer.fit(rows)
        return time.perf_counter() - start, model

    fit(1 + plan.passes)  # the JVM compiles what is used often
    first, _ = fit(1)
    all_of_them, model = fit(1 + plan.passes)
    seconds = [first, seconds_per_iteration(first, all_of_them, model.summary.totalIterations)]
    coefficients = model.coefficients.toArray()[:, None], np.array([model.intercept])
    return make_record(SPARK_LBFGS, count, seconds, problem, coefficients)


CONTENDERS: dict[str, Callable[[Any, str, LinearPlan, Problem], LinearRecord]] = {
    SPARK_SGD: _sgd,
    SPARK_LBFGS: _lbfgs,
}
