"""Linear models as scikit-learn has them, on the rows of one process or of many.

With a communicator every rank gives its own rows, and every rank ends with the same model.  ``fit``,
``iter_fit`` and ``partial_fit`` are then collective: all ranks call them, with the same parameters.  What
predicts is not.
"""

from __future__ import annotations

import warnings
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import expit, log_expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsewire.coding.values import Precision
from sparsewire.communicator import Communicator
from sparsewire.communicator.agreement import check_alike, gather, refused_by_all
from sparsewire.errors import InputError
from sparsewire.linear.coordinate_descent import CoordinateDescent
from sparsewire.linear.exchange import EXACT, Exact, Exchange, Lossy
from sparsewire.linear.losses import HINGE, LOGISTIC, SQUARED, SQUARED_HINGE, Loss
from sparsewire.linear.parameters import check_parameters
from sparsewire.linear.problem import REGRESSION, Array, Coefficients, Problem
from sparsewire.linear.schedule import Schedule
from sparsewire.linear.sgd import SGD, Options
from sparsewire.linear.training import Progress, Solver, Stopping, mean_loss, over_ranks, train

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LinearSVC", "LogisticRegression", "Ridge"]


@dataclass(kw_only=True, eq=False, repr=False)
class LinearModel(BaseEstimator):  # type: ignore[misc]
    """What the models have in common; docs/linear.md describes the parameters."""

    solver: str = "sgd"
    penalty: str | None = "l2"
    alpha: float = 1e-4
    l1_ratio: float = 0.15
    fit_intercept: bool = True
    max_iter: int = 1000
    tol: float | None = 1e-4
    n_iter_no_change: int = 5
    early_stopping: bool = False
    validation_fraction: float = 0.1
    batch_size: int = 1000
    learning_rate: str = "constant"
    eta0: float | None = None
    power_t: float = 0.5
    decay: float = 0.8
    momentum: float = 0.0
    average: bool = False
    shuffle: bool = True
    block_size: int = 100
    warm_start: bool = False
    random_state: Any = None
    comm: Communicator | None = None
    method: str = EXACT
    algorithm: str = "auto"
    precision: str | Precision | None = None
    density: float = 0.01

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Learn from these rows until further passes over them are of no use."""
        for _ in self.iter_fit(X, y, sample_weight):
            pass
        if self.tol is not None and self.n_iter_ == self.max_iter > self.n_iter_no_change:
            warnings.warn(
                f"the loss still fell after {self.max_iter} passes: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def iter_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Iterator[Progress]:  # noqa: N803
        """``fit``, pass by pass: yields what each has brought, with the model as it is after it.

        Whoever stops asking keeps the model of the last pass; with a communicator all ranks stop together.
        The next pass writes to the model's arrays: copy what you want to keep.
        """
        self.__dict__.pop("_sgd", None)  # of calls of partial_fit before
        before = self._coefficients() if self.warm_start and hasattr(self, "coef_") else None
        problem, seed = self._problem("fit", X, y, sample_weight, is_first=True, start=before)
        kept = None
        if self.early_stopping:
            problem, kept = self._hold_out(problem, seed)
            [weight] = over_ranks(self.comm, [problem.weights_of(problem.numbers()).sum()])
            if not weight:
                raise InputError(
                    f"a validation_fraction of {self.validation_fraction} leaves no rows to learn from"
                )
        solver = self._solver(problem, seed, before)
        stopping = Stopping(self.max_iter, self.tol, self.n_iter_no_change)
        self.loss_curve_: list[float] = []
        held_out = partial(self._held_out_loss, kept, solver) if kept is not None else None
        for progress in train(solver, stopping, held_out):
            self._take(solver, progress)
            yield progress

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:  # noqa: N803
        is_first = not hasattr(self, "coef_")
        before = None if is_first else self._coefficients()
        problem, seed = self._problem(
            "partial_fit", X, y, sample_weight, is_first=is_first, start=before, classes=classes
        )
        asked = repr((self._parameters(), problem.dtype))
        known, sgd = getattr(self, "_sgd", ("", None))
        solver: Solver
        if sgd is not None and known == asked:
            sgd.show(problem, self.comm, self._exchange())
            solver = sgd
        else:
            solver = self._solver(problem, seed, before)
        if is_first:
            self.loss_curve_ = []
        self._take(solver, next(train(solver, Stopping(1, None, 1))))
        if isinstance(solver, SGD):  # it has velocities, and counts steps
            solver.release()
            self._sgd = asked, solver
        return self

    def _take(self, solver: Solver, progress: Progress) -> None:
        coef, intercept = solver.coefficients()
        self.coef_, self.intercept_ = self._public(coef, intercept)
        self.loss_curve_.append(progress.loss)
        self.n_iter_ = len(self.loss_curve_)

    def _solver(self, problem: Problem, seed: int, start: Coefficients | None) -> Solver:
        if start is not None and start[0].shape != (problem.features, problem.outputs):
            start = None
        if start is not None:
            coef, intercept = start
            start = coef.astype(problem.dtype, copy=False), intercept.astype(problem.dtype, copy=False)
        if self.solver == "cd":
            return CoordinateDescent(problem, self.comm, block=self.block_size, seed=seed, start=start)
        # What waited in the old one was for another model.
        self._exchanged: tuple[Communicator, Exchange] | None = None
        return SGD(problem, self._options(seed), self.comm, self._exchange(), start)

    def _options(self, seed: int) -> Options:
        schedule = Schedule(self.learning_rate, self.power_t, self.decay)
        moving = self.momentum, self.average
        return Options(self.batch_size, self.eta0, schedule, *moving, shuffle=self.shuffle, seed=seed)

    def _exchange(self) -> Exchange | None:
        """The one of calls before, in which gradients may wait, or a new one."""
        if self.comm is None:
            return None
        comm, exchange = getattr(self, "_exchanged", None) or (None, None)
        if comm is not self.comm:
            if self.method == EXACT:
                exchange = Exact(self.comm, self.algorithm, self.precision)
            else:
                exchange = Lossy(self.comm, self.method, self.density, self.precision)
            self._exchanged = self.comm, exchange
        return exchange

    def _problem(
        self,
        call: str,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any,
        *,
        is_first: bool,
        start: Coefficients | None,
        classes: Any = None,
    ) -> tuple[Problem, int]:
        """What all ranks' rows together ask for, and a seed that they share."""
        with refused_by_all(self.comm):
            check_parameters(self)
            rows, y, sample_weight = self._validated(X, y, sample_weight, is_first)
            facts = {
                "alike": {
                    "call": f"{type(self).__name__}.{call}",
                    "number of features": rows.shape[1],
                    "dtype": rows.dtype.name,
                    "model to start from": _digest(start) if self.comm and start else None,
                    **{name: repr(value) for name, value in self._parameters().items()},
                },
                "rows": rows.shape[0],
                "seed": int(check_random_state(self.random_state).randint(2**31)),
                **self._facts(y, classes),
            }
        everybody = gather(self.comm, facts) if self.comm else [facts]
        check_alike([said["alike"] for said in everybody])
        if not any(said["rows"] for said in everybody):
            raise InputError("there are no rows to learn from, on any rank")
        targets, outputs, factors = self._targets(y, everybody, is_first)
        if factors is not None:
            sample_weight = factors if sample_weight is None else factors * sample_weight
        [weight] = over_ranks(self.comm, [rows.shape[0] if sample_weight is None else sample_weight.sum()])
        if not 0 < weight < np.inf:
            found = "they are all zero" if weight == 0 else f"they add up to {weight}"
            raise InputError(f"the weights of rows must add up to a positive number, and {found}")
        l1_ratio = {"l2": 0.0, "l1": 1.0, "elasticnet": self.l1_ratio, None: 0.0}[self.penalty]
        alpha = self.alpha if self.penalty else 0.0
        problem = Problem(
            rows,
            targets,
            self._loss(),
            outputs,
            sample_weight,
            l1=alpha * l1_ratio,
            l2=alpha * (1.0 - l1_ratio),
            fit_intercept=self.fit_intercept,
        )
        return problem, everybody[0]["seed"]

    def _validated(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any,
        is_first: bool,
    ) -> tuple[csr_array, Array, Array | None]:
        """This rank's rows, targets and weights; another rank may have rows where this one has none."""
        may_be_empty = self.comm is not None and self.comm.size > 1
        X, y = validate_data(  # noqa: N806
            self,
            X,
            y,
            reset=is_first,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_min_samples=0 if may_be_empty else 1,
            y_numeric=self._loss() is SQUARED,
        )
        rows = X if isinstance(X, csr_array) else csr_array(X)
        rows.check_format(full_check=True)  # or a wrong index would be found when other ranks wait
        return rows, y, None if sample_weight is None else _checked_weights(sample_weight, rows.shape[0])

    def _hold_out(self, problem: Problem, seed: int) -> tuple[Problem, Problem]:
        """The problem of the rows to learn from, and that of the others."""
        rank = self.comm.rank if self.comm else 0
        shuffled = np.random.default_rng([seed, rank]).permutation(problem.rows.shape[0])
        count = int(np.ceil(self.validation_fraction * len(shuffled)))
        return problem.only(np.sort(shuffled[count:])), problem.only(np.sort(shuffled[:count]))

    def _held_out_loss(self, kept: Problem, solver: Solver) -> float:
        return mean_loss(kept, solver.coefficients(), self.comm)

    def _parameters(self) -> dict[str, Any]:
        """Those that are to be the same on every rank."""
        own = ("comm", "random_state")
        return {name: value for name, value in self.get_params(deep=False).items() if name not in own}

    def _margins(self, X: Any) -> Array:  # noqa: N803
        check_is_fitted(self)
        X = validate_data(  # noqa: N806
            self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32]
        )
        coef, intercept = self._coefficients()
        margins: Array = X @ coef + intercept
        return margins

    def __getstate__(self) -> dict[str, Any]:
        """Without the communicator: whoever unpickles a model is elsewhere."""
        state: dict[str, Any] = dict(super().__getstate__())
        return state | {"comm": None, "_exchanged": None}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @abstractmethod
    def _loss(self) -> Loss:
        """What a margin costs."""

    @abstractmethod
    def _facts(self, y: Array, classes: Any) -> dict[str, Any]:
        """What other ranks must know of this rank's targets; ``classes`` may occur later."""

    @abstractmethod
    def _targets(
        self, y: Array, everybody: list[dict[str, Any]], is_first: bool
    ) -> tuple[Array, int, Array | None]:
        """As ``Problem`` wants them: targets, how many classes there are, and weights of the rows, if any."""

    @abstractmethod
    def _public(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        """Coefficients in the shape that scikit-learn gives them."""

    @abstractmethod
    def _coefficients(self) -> Coefficients:
        """And back."""


@dataclass(kw_only=True, eq=False, repr=False)
class LinearClassifier(ClassifierMixin, LinearModel):  # type: ignore[misc]
    """What the classifiers have in common: classes, and one model for each against the rest."""

    class_weight: Any = None

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803
        """One pass over these rows, from where the last call has led to.

        The first call names all ``classes``, unless each of them is among its rows, on one rank or another.
        """
        with refused_by_all(self.comm):
            if self.class_weight == "balanced":
                raise InputError(
                    "class_weight 'balanced' needs all rows at once, which partial_fit has not: give weights"
                )
        return self._partial_fit(X, y, sample_weight, classes)

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """How far rows are on the side of each class; if there are two, on that of the second."""
        margins = self._margins(X)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The class of each row."""
        margins = self.decision_function(X)
        numbers = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        labels: Array = self.classes_[numbers]
        return labels

    def _facts(self, y: Array, classes: Any) -> dict[str, Any]:
        if len(y):
            check_classification_targets(y)
        labels, counts = np.unique(y, return_counts=True)
        expected = np.unique(y if classes is None else classes)
        return {
            "labels": labels.tolist(),
            "counts": counts.tolist(),
            "expected": expected.tolist(),
            "label_dtype": expected.dtype.str if len(expected) else None,
        }

    def _targets(
        self, y: Array, everybody: list[dict[str, Any]], is_first: bool
    ) -> tuple[Array, int, Array | None]:
        counts: Counter[Any] = Counter()
        for said in everybody:
            counts.update(dict(zip(said["labels"], said["counts"], strict=True)))
        if is_first:
            self.classes_ = _classes(everybody)
        if unknown := counts.keys() - set(self.classes_.tolist()):
            raise InputError(
                f"there are rows of class {min(unknown)!r}; the classes are {self.classes_.tolist()}"
            )
        if len(self.classes_) < 2:
            only = ", ".join(map(repr, self.classes_.tolist())) or "none"
            raise InputError(f"a classifier needs rows of at least two classes; here is one class: {only}")
        targets = np.searchsorted(self.classes_, y)
        factors = None
        if self.class_weight is not None:
            factors = self._class_weights([counts[label] for label in self.classes_.tolist()])[targets]
        return targets, len(self.classes_), factors

    def _class_weights(self, counts: list[int]) -> npt.NDArray[np.float64]:
        """By class."""
        if self.class_weight == "balanced":
            return sum(counts) / (len(counts) * np.maximum(counts, 1.0))
        if not isinstance(self.class_weight, dict):
            raise InputError(
                f"class_weight must be None, 'balanced' or a dict of weights, got {self.class_weight!r}"
            )
        if unknown := [label for label in self.class_weight if label not in self.classes_]:
            known = self.classes_.tolist()
            raise InputError(f"class_weight has class {unknown[0]!r}; the classes are {known}")
        weights = np.array([float(self.class_weight.get(label, 1.0)) for label in self.classes_.tolist()])
        if not (weights >= 0).all() or not weights.any():
            raise InputError(f"class_weight must have weights that are not negative, got {self.class_weight}")
        return weights

    def _public(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        return coef.T, intercept

    def _coefficients(self) -> Coefficients:
        return self.coef_.T, self.intercept_


@dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegression(LinearClassifier):
    """Logistic regression for sparse rows on one process or many.

    >>> from sparsewire.linear import LogisticRegression, url_like
    >>> rows, labels = url_like(2000, features=5000, nonzeros=20)
    >>> model = LogisticRegression(max_iter=20, tol=None, momentum=0.9).fit(rows, labels)
    >>> model.score(rows, labels) > 0.9
    True
    """

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """By row and class; of more than two classes, what each model says, scaled to add up to 1."""
        positive = expit(self._margins(X))
        if positive.shape[1] == 1:
            return np.hstack([1.0 - positive, positive])
        total = positive.sum(axis=1, keepdims=True)
        uniform = np.full_like(positive, 1.0 / positive.shape[1])
        probabilities: Array = np.divide(positive, total, out=uniform, where=total > 0)
        return probabilities

    def predict_log_proba(self, X: Any) -> Array:  # noqa: N803
        """The logarithm of ``predict_proba``."""
        margins = self._margins(X)
        if margins.shape[1] == 1:
            return np.hstack([log_expit(-margins), log_expit(margins)])
        return np.log(self.predict_proba(X))

    def _loss(self) -> Loss:
        return LOGISTIC


@dataclass(kw_only=True, eq=False, repr=False)
class LinearSVC(LinearClassifier):
    """Support vector machine for sparse rows on one process or many.

    ``loss`` is "squared_hinge" or "hinge", which has no derivative everywhere and so no coordinate descent.
    """

    loss: str = SQUARED_HINGE.name

    def _loss(self) -> Loss:
        known = {loss.name: loss for loss in (SQUARED_HINGE, HINGE)}
        if self.loss not in known:
            raise InputError(f"unknown loss {self.loss!r}; known are {', '.join(known)}")
        return known[self.loss]


@dataclass(kw_only=True, eq=False, repr=False)
class Ridge(RegressorMixin, LinearModel):  # type: ignore[misc]
    """Least squares for sparse rows on one process or many; with the penalty "l1" it is the lasso."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """One pass over these rows, from where the last call has led to."""
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The value of each row."""
        return self._margins(X)[:, 0]

    def _loss(self) -> Loss:
        return SQUARED

    def _facts(self, y: Array, classes: Any) -> dict[str, Any]:
        return {}

    def _targets(
        self, y: Array, everybody: list[dict[str, Any]], is_first: bool
    ) -> tuple[Array, int, Array | None]:
        return y, REGRESSION, None

    def _public(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        return coef[:, 0], intercept[0]

    def _coefficients(self) -> Coefficients:
        return self.coef_[:, None], np.atleast_1d(self.intercept_)


def _checked_weights(given: Any, rows: int) -> npt.NDArray[np.float64]:
    """One for each row; on one rank they may all be zero, unlike scikit-learn's."""
    weights = np.full(rows, given, np.float64) if np.isscalar(given) else np.asarray(given, np.float64)
    if weights.shape != (rows,):
        raise InputError(
            f"sample_weight must have one weight for each of {rows} rows, got shape {weights.shape}"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        worst = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise InputError(f"sample_weight must not be negative, that of row {worst} is {weights[worst]}")
    return weights


def _digest(coefficients: Coefficients) -> list[int]:
    return [zlib.crc32(np.ascontiguousarray(part).data) for part in coefficients]


def _classes(everybody: list[dict[str, Any]]) -> Array:
    """All that any rank has named, in order."""
    named = [np.array(said["expected"], said["label_dtype"]) for said in everybody if said["label_dtype"]]
    return np.unique(np.concatenate(named)) if named else np.array([])
