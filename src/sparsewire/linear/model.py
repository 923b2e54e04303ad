"""What the linear models have in common: their parameters, and how they learn from the rows of all ranks."""

from __future__ import annotations

import warnings
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsewire.coding.values import Precision
from sparsewire.communicator import Communicator
from sparsewire.communicator.agreement import check_alike, gather, refused_by_all
from sparsewire.errors import InputError
from sparsewire.linear.coordinate_descent import CoordinateDescent
from sparsewire.linear.dual_coordinate_ascent import DualCoordinateAscent
from sparsewire.linear.exchange import EXACT, Exact, Exchange, Lossy
from sparsewire.linear.losses import SQUARED, Loss
from sparsewire.linear.parameters import AUTO, CD, MINI_BATCH, SDCA, check_parameters, choose_solver
from sparsewire.linear.problem import Array, Coefficients, Problem
from sparsewire.linear.schedule import Schedule
from sparsewire.linear.sgd import SGD, Options
from sparsewire.linear.training import (
    Progress,
    Solver,
    Stopping,
    mean_loss,
    over_ranks,
    train,
    within_the_optimum,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LinearModel"]


@dataclass(kw_only=True, eq=False, repr=False)
class LinearModel(BaseEstimator):  # type: ignore[misc]
    """The base of the estimators; docs/linear.md describes the parameters."""

    solver: str = AUTO
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
        """Learn from these rows, pass by pass, until the optimum is near or the loss no longer falls."""
        for _ in self.iter_fit(X, y, sample_weight):
            pass
        if (reached := self._unfinished()) is not None:
            warnings.warn(f"{reached}: raise max_iter or tol", ConvergenceWarning, stacklevel=2)
        return self

    def _unfinished(self) -> str | None:
        """Where training stood when it ran out of passes; None if it ended by itself."""
        if self.tol is None or self.n_iter_ < self.max_iter:
            return None
        if self.gap_ is not None and not self.early_stopping:
            reached = f"after {self.max_iter} passes the loss is {within_the_optimum(self.gap_)}"
            return f"{reached}, and tol is {self.tol:g}" if self.gap_ > self.tol else None
        is_cut_off = self.max_iter > self.n_iter_no_change
        return f"the loss still fell after {self.max_iter} passes" if is_cut_off else None

    def iter_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Iterator[Progress]:  # noqa: N803
        """Do what ``fit`` does, and yield the progress of each pass, after which the model can be used.

        A caller who ends the loop early keeps the model of the last pass; with a communicator all ranks must
        end it after the same pass.  The next pass writes to the model's arrays: copy what you want to keep.
        """
        self.__dict__.pop("_sgd", None)  # the solver of earlier calls of partial_fit
        before = self._coefficients() if self.warm_start and hasattr(self, "coef_") else None
        problem, seed = self._problem("fit", X, y, sample_weight, is_first=True, start=before)
        validation = None
        if self.early_stopping:
            problem, validation = self._hold_out(problem, seed)
            [weight] = over_ranks(self.comm, [problem.weights_of(problem.numbers()).sum()])
            if not weight:
                raise InputError(
                    f"a validation_fraction of {self.validation_fraction} leaves no rows to learn from"
                )
        solver = self._solver(problem, seed, before, self.solver_name())
        stopping = Stopping(self.max_iter, self.tol, self.n_iter_no_change)
        self.loss_curve_: list[float] = []
        held_out = partial(self._held_out_loss, validation, solver) if validation is not None else None
        for progress in train(solver, stopping, held_out):
            self._set_result(solver, progress)
            yield progress

    def solver_name(self) -> str:
        """The solver that ``fit`` uses, which is not "auto"."""
        return choose_solver(self, self._loss())

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:  # noqa: N803
        is_first = not hasattr(self, "coef_")
        before = None if is_first else self._coefficients()
        problem, seed = self._problem(
            "partial_fit", X, y, sample_weight, is_first=is_first, start=before, classes=classes
        )
        settings = repr((self._parameters(), problem.dtype))
        previous_settings, sgd = getattr(self, "_sgd", ("", None))
        solver: Solver
        if sgd is not None and previous_settings == settings:
            sgd.set_problem(problem, self.comm, self._exchange())
            solver = sgd
        else:
            # The variables of dual coordinate ascent belong to rows, and the next call has others.
            solver = self._solver(problem, seed, before, CD if self.solver == CD else MINI_BATCH)
        if is_first:
            self.loss_curve_ = []
        self._set_result(solver, next(train(solver, Stopping(1, None, 1))))
        if isinstance(solver, SGD):  # the next call goes on with its velocities and its number of steps
            solver.release()
            self._sgd = settings, solver
        return self

    def _set_result(self, solver: Solver, progress: Progress) -> None:
        coef, intercept = solver.coefficients()
        self.coef_, self.intercept_ = self._as_public(coef, intercept)
        self.loss_curve_.append(progress.loss)
        self.n_iter_ = len(self.loss_curve_)
        self.gap_ = progress.gap

    def _solver(self, problem: Problem, seed: int, start: Coefficients | None, name: str) -> Solver:
        if start is not None and start[0].shape != (problem.features, problem.outputs):
            start = None
        if start is not None:
            coef, intercept = start
            start = coef.astype(problem.dtype, copy=False), intercept.astype(problem.dtype, copy=False)
        if name == SDCA:
            return DualCoordinateAscent(problem, self.comm, algorithm=self.algorithm, seed=seed, start=start)
        if name == CD:
            return CoordinateDescent(problem, self.comm, block=self.block_size, seed=seed, start=start)
        # The old exchange may hold parts of gradients of another model.
        self._last_exchange: tuple[Communicator, Exchange] | None = None
        return SGD(problem, self._options(seed), self.comm, self._exchange(), start)

    def _options(self, seed: int) -> Options:
        schedule = Schedule(self.learning_rate, self.power_t, self.decay)
        return Options(self.batch_size, self.eta0, schedule, self.momentum, self.average, self.shuffle, seed)

    def _exchange(self) -> Exchange | None:
        """The exchange of earlier calls, which may hold parts of gradients (error feedback), or a new one."""
        if self.comm is None:
            return None
        comm, exchange = getattr(self, "_last_exchange", None) or (None, None)
        if comm is not self.comm:
            if self.method == EXACT:
                exchange = Exact(self.comm, self.algorithm, self.precision)
            else:
                exchange = Lossy(self.comm, self.method, self.density, self.precision)
            self._last_exchange = self.comm, exchange
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
        """The problem of this rank's rows, and a seed that is the same on all ranks.

        Raises on all ranks if one of them has wrong input, or if they differ where they must not.
        """
        with refused_by_all(self.comm):
            check_parameters(self)
            rows, y, sample_weight = self._validated(X, y, sample_weight, is_first)
            facts = {
                "alike": {
                    "call": f"{type(self).__name__}.{call}",
                    "number of features": rows.shape[1],
                    "dtype": rows.dtype.name,
                    "model to start from": _checksums(start) if self.comm and start else None,
                    **{name: repr(value) for name, value in self._parameters().items()},
                },
                "rows": rows.shape[0],
                "seed": int(check_random_state(self.random_state).randint(2**31)),
                **self._facts(y, classes),
            }
        of_all_ranks = gather(self.comm, facts) if self.comm else [facts]
        check_alike([facts["alike"] for facts in of_all_ranks])
        if not any(facts["rows"] for facts in of_all_ranks):
            raise InputError("there are no rows to learn from, on any rank")
        targets, outputs, factors = self._targets(y, of_all_ranks, is_first)
        if factors is not None:
            sample_weight = factors if sample_weight is None else factors * sample_weight
        _check_total_weight(self.comm, rows.shape[0], sample_weight)
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
        return problem, of_all_ranks[0]["seed"]

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
        rows.check_format(full_check=True)  # later, a wrong index would raise while other ranks wait
        return rows, y, None if sample_weight is None else _checked_weights(sample_weight, rows.shape[0])

    def _hold_out(self, problem: Problem, seed: int) -> tuple[Problem, Problem]:
        """The problem of the rows to learn from, and that of the rows for validation."""
        rank = self.comm.rank if self.comm else 0
        shuffled = np.random.default_rng([seed, rank]).permutation(problem.rows.shape[0])
        count = int(np.ceil(self.validation_fraction * len(shuffled)))
        return problem.only(np.sort(shuffled[count:])), problem.only(np.sort(shuffled[:count]))

    def _held_out_loss(self, validation: Problem, solver: Solver) -> float:
        return mean_loss(validation, solver.coefficients(), self.comm)

    def _parameters(self) -> dict[str, Any]:
        """The parameters that must be the same on every rank."""
        may_differ = ("comm", "random_state")
        return {name: value for name, value in self.get_params(deep=False).items() if name not in may_differ}

    def _margins(self, X: Any) -> Array:  # noqa: N803
        check_is_fitted(self)
        X = validate_data(  # noqa: N806
            self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32]
        )
        coef, intercept = self._coefficients()
        margins: Array = X @ coef + intercept
        return margins

    def __getstate__(self) -> dict[str, Any]:
        """The state without the communicator, which belongs to this process."""
        state: dict[str, Any] = dict(super().__getstate__())
        return state | {"comm": None, "_last_exchange": None}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss of a margin."""

    @abstractmethod
    def _facts(self, y: Array, classes: Any) -> dict[str, Any]:
        """What other ranks must know of this rank's targets.

        ``classes`` are all that the rows of this and of later calls may have, if the caller names them.
        """

    @abstractmethod
    def _targets(
        self, y: Array, of_all_ranks: list[dict[str, Any]], is_first: bool
    ) -> tuple[Array, int, Array | None]:
        """Targets and number of classes as ``Problem`` takes them, and the weights of rows by class if any.

        ``of_all_ranks`` has the ``_facts`` of each rank.
        """

    @abstractmethod
    def _as_public(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        """Coefficients and intercepts in the shapes that scikit-learn gives them."""

    @abstractmethod
    def _coefficients(self) -> Coefficients:
        """The inverse of ``_as_public``, for the coefficients that the model has."""


def _checked_weights(given: Any, rows: int) -> npt.NDArray[np.float64]:
    """One weight for each row.  They may all be zero, unlike in scikit-learn: other ranks have rows too."""
    weights = np.full(rows, given, np.float64) if np.isscalar(given) else np.asarray(given, np.float64)
    if weights.shape != (rows,):
        raise InputError(
            f"sample_weight must have one weight for each of {rows} rows, got shape {weights.shape}"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        first = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise InputError(f"sample_weight must not be negative, that of row {first} is {weights[first]}")
    return weights


def _check_total_weight(comm: Communicator | None, rows: int, sample_weight: Array | None) -> None:
    [weight] = over_ranks(comm, [rows if sample_weight is None else sample_weight.sum()])
    if not 0 < weight < np.inf:
        found = "they are all zero" if weight == 0 else f"they add up to {weight}"
        raise InputError(f"the weights of rows must add up to a positive number, and {found}")


def _checksums(coefficients: Coefficients) -> list[int]:
    return [zlib.crc32(np.ascontiguousarray(part).data) for part in coefficients]
