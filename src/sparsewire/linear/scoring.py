"""Scores of a model on the rows of one process or of many, computed some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from sparsewire.communicator import Communicator
from sparsewire.linear.estimators import Ridge
from sparsewire.linear.model import LinearModel
from sparsewire.linear.problem import Array
from sparsewire.linear.training import ROWS_AT_A_TIME, over_ranks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["in_portions", "score", "score_name"]


def in_portions(predict: Callable[[csr_array], Array], rows: csr_array) -> Iterator[Array]:
    """The predictions for the rows in portions, so that only one portion is in memory at a time."""
    for first in range(0, rows.shape[0], ROWS_AT_A_TIME):
        yield predict(rows[first : first + ROWS_AT_A_TIME])


def score_name(model: LinearModel) -> str:
    return "R^2" if isinstance(model, Ridge) else "accuracy"


def score(
    model: LinearModel, portions: Iterable[Array], targets: Array, comm: Communicator | None = None
) -> float | None:
    """The score of scikit-learn's ``score``, but over the rows of all ranks; None if it is not defined.

    ``portions`` are the predictions for this rank's rows.  The score of no rows is not defined.
    """
    predicted = np.concatenate([targets[:0], *portions])
    if not isinstance(model, Ridge):
        right, count = over_ranks(comm, [int(np.sum(predicted == targets)), len(targets)])
        return right / count if count else None
    total, count = over_ranks(comm, [targets.sum(), len(targets)])
    mean = total / max(1.0, count)
    squares = [np.square(targets - guess).sum() for guess in (predicted, mean)]
    error, spread = over_ranks(comm, squares)
    return 1.0 - error / spread if spread else None
