"""scikit-learn as contender of ``bench linear``, in a process of its own.

sklearn-sgd     SGDClassifier: a step for every row
sklearn-lbfgs   LogisticRegression: a step for every pass.  A pass is an iteration of L-BFGS, which evaluates
                loss and gradient of all rows once, and seldom more often
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sparsewire.bench.harness.clock import seconds_of
from sparsewire.bench.harness.worker import OnStep
from sparsewire.bench.linear.plan import SKLEARN_LBFGS, SKLEARN_SGD, LinearPlan, LinearRecord
from sparsewire.bench.linear.rank import ALPHA, data_facts, evaluate, load_problem
from sparsewire.communicator import Communicator
from sparsewire.linear.losses import HINGE, LOGISTIC, SQUARED_HINGE
from sparsewire.linear.problem import Coefficients, Problem

# Our losses by SGDClassifier's names.
LOSSES = {LOGISTIC.name: "log_loss", HINGE.name: "hinge", SQUARED_HINGE.name: "squared_hinge"}


def train(comm: Communicator, plan: LinearPlan, on_step: OnStep) -> dict[str, Any]:
    """What this process, which is alone, recorded about each contender of the plan."""
    problem = load_problem(plan)
    records = []
    for number, name in enumerate(plan.contenders):
        on_step(number, len(plan.contenders))
        records.append(CONTENDERS[name](plan, problem))
    return found(problem, records)


def _sgd(plan: LinearPlan, problem: Problem) -> LinearRecord:
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(loss=LOSSES[plan.loss], alpha=ALPHA, random_state=plan.seed)
    seconds = [
        seconds_of(model.partial_fit, problem.rows, problem.targets, classes=[0, 1])
        for _ in range(1 + plan.passes)
    ]
    return make_record(SKLEARN_SGD, 1, seconds, problem, _coefficients(model))


def _lbfgs(plan: LinearPlan, problem: Problem) -> LinearRecord:
    """A longer fit less a short one, because what is done once is not part of a pass."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    count = problem.rows.shape[0]
    models = [
        LogisticRegression(C=1 / (ALPHA * count), max_iter=iterations, tol=0.0)
        for iterations in (1, 1 + plan.passes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so few iterations are intended
        first, all_of_them = (seconds_of(model.fit, problem.rows, problem.targets) for model in models)
    seconds = [first, seconds_per_iteration(first, all_of_them, int(models[1].n_iter_[0]))]
    return make_record(SKLEARN_LBFGS, count, seconds, problem, _coefficients(models[1]))


CONTENDERS: dict[str, Callable[[LinearPlan, Problem], LinearRecord]] = {
    SKLEARN_SGD: _sgd,
    SKLEARN_LBFGS: _lbfgs,
}


def seconds_per_iteration(first: float, all_of_them: float, iterations: int) -> float:
    """The time of an iteration after the first, in which everything is done that is done once.

    Where later iterations take no measurable time it is the mean of all.

    >>> seconds_per_iteration(2.0, 5.0, 4), seconds_per_iteration(2.0, 2.0, 4)
    (1.0, 0.5)
    """
    if iterations > 1 and all_of_them > first:
        return (all_of_them - first) / (iterations - 1)
    return all_of_them / iterations


def _coefficients(model: Any) -> Coefficients:
    return model.coef_.T, model.intercept_


def make_record(
    name: str, batch: int, seconds: list[float], problem: Problem, coefficients: Coefficients
) -> LinearRecord:
    """The record of a process that is alone; it does not communicate."""
    loss, accuracy = evaluate(problem, coefficients)
    return LinearRecord(name, batch, [0.0] * len(seconds), loss, accuracy, seconds=seconds)


def found(problem: Problem, records: Sequence[LinearRecord]) -> dict[str, Any]:
    """The same mapping that a rank returns."""
    return {"data": data_facts(problem), "records": [asdict(record) for record in records]}
