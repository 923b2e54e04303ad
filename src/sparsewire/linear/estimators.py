"""Linear models with the interface of scikit-learn, for the rows of one process or of many.

With a communicator every rank gives its own rows, and every rank ends with the same model.  Then ``fit``,
``iter_fit`` and ``partial_fit`` are collective: all ranks call them, with the same parameters.  Methods that
predict are not collective.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from sparsewire.communicator.agreement import refused_by_all
from sparsewire.errors import InputError
from sparsewire.linear.losses import HINGE, LOGISTIC, SQUARED, SQUARED_HINGE, Loss
from sparsewire.linear.model import LinearModel
from sparsewire.linear.problem import REGRESSION, Array, Coefficients

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LinearSVC", "LogisticRegression", "Ridge"]


@dataclass(kw_only=True, eq=False, repr=False)
class LinearClassifier(ClassifierMixin, LinearModel):  # type: ignore[misc]
    """The base of the classifiers.  With more than two classes, each has an output of its own."""

    class_weight: Any = None

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803
        """Do one pass over these rows, starting from the model of the last call.

        The first call must name all ``classes``, unless some rank has rows of each of them.
        """
        with refused_by_all(self.comm):
            if self.class_weight == "balanced":
                raise InputError(
                    "class_weight 'balanced' needs all rows at once, and partial_fit has only some of them: "
                    "give a dict of weights"
                )
        return self._partial_fit(X, y, sample_weight, classes)

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """The margins by row and class; with two classes, by row alone, positive for the second class."""
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
        self, y: Array, of_all_ranks: list[dict[str, Any]], is_first: bool
    ) -> tuple[Array, int, Array | None]:
        counts: Counter[Any] = Counter()
        for facts in of_all_ranks:
            counts.update(dict(zip(facts["labels"], facts["counts"], strict=True)))
        if is_first:
            self.classes_ = _all_classes(of_all_ranks)
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
        """The weight of each class; ``counts`` has the rows of each, on all ranks."""
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

    def _as_public(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        return coef.T, intercept

    def _coefficients(self) -> Coefficients:
        return self.coef_.T, self.intercept_


@dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegression(LinearClassifier):
    """Logistic regression for sparse rows on one process or many.

    >>> from sparsewire.linear import LogisticRegression, url_like
    >>> rows, labels = url_like(2000, features=5000, nonzeros=20)
    >>> model = LogisticRegression(tol=0.01).fit(rows, labels)
    >>> model.gap_ <= 0.01, model.score(rows, labels) > 0.9
    (True, True)
    """

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probabilities by row and class.

        With more than two classes they are those of each class against the rest, scaled to add up to 1.
        """
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

    ``loss`` is "squared_hinge" or "hinge".  Coordinate descent ("cd") cannot minimise "hinge", which is not
    differentiable everywhere.
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
        """Do one pass over these rows, starting from the model of the last call."""
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The value of each row."""
        return self._margins(X)[:, 0]

    def _loss(self) -> Loss:
        return SQUARED

    def _facts(self, y: Array, classes: Any) -> dict[str, Any]:
        return {}

    def _targets(
        self, y: Array, of_all_ranks: list[dict[str, Any]], is_first: bool
    ) -> tuple[Array, int, Array | None]:
        return y, REGRESSION, None

    def _as_public(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        return coef[:, 0], intercept[0]

    def _coefficients(self) -> Coefficients:
        return self.coef_[:, None], np.atleast_1d(self.intercept_)


def _all_classes(of_all_ranks: list[dict[str, Any]]) -> Array:
    """The classes that any rank has named, in increasing order."""
    named = [
        np.array(facts["expected"], facts["label_dtype"]) for facts in of_all_ranks if facts["label_dtype"]
    ]
    return np.unique(np.concatenate(named)) if named else np.array([])
