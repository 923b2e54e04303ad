"""Predictions of a saved model for the rows of a file."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsewire.errors import InputError
from sparsewire.files import replaced_file, require_writable
from sparsewire.linear.estimators import LogisticRegression, Ridge
from sparsewire.linear.model import LinearModel
from sparsewire.linear.model_file import load_model, model_facts
from sparsewire.linear.problem import Array
from sparsewire.linear.reading import read_for_model, targets_of, unknown_entries
from sparsewire.linear.scoring import in_portions, score, score_name

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Predicted", "predict_file"]


@dataclass(frozen=True)
class Predicted:
    """The score and the times; as text, one line for the user."""

    rows: int
    score_name: str
    score: float | None  # None if it is not defined, or if the classes are no numbers as labels are
    reading_s: float
    predicting_s: float

    def __str__(self) -> str:
        score = "" if self.score is None else f", {self.score_name} {self.score:.4f}"
        speed = self.rows / self.predicting_s if self.predicting_s else 0.0
        return f"{self.rows:,} rows{score}; read in {self.reading_s:.2f} s, predicted at {speed:,.0f} rows/s"


def predict_file(
    path: str | os.PathLike[str],
    data: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    probabilities: bool = False,
) -> Predicted:
    """Write a line for every row of ``data``: its class or value, or the probabilities of all classes.

    Lines are written to ``output``, which is replaced when all are there, or by default to standard output.
    """
    if output is not None:
        require_writable(output)
    model, facts = load_model(path), model_facts(path)
    if probabilities and not isinstance(model, LogisticRegression):
        raise InputError(
            f"{path} is a {type(model).__name__}, which has no probabilities: leave out --probabilities, "
            "or train with --loss logistic"
        )
    begin = time.perf_counter()
    rows, labels, left_out = read_for_model(
        data,
        features=model.n_features_in_,
        zero_based=facts.get("zero_based", "auto"),
        dtype=model.coef_.dtype.name,
    )
    if left_out:
        warnings.warn(unknown_entries(data, left_out, model.n_features_in_), UserWarning, stacklevel=2)
    has_numbers = isinstance(model, Ridge) or model.classes_.dtype.kind in "iuf"
    targets = targets_of(model, labels, facts.get("positive"), data) if has_numbers else None
    reading_s, begin = time.perf_counter() - begin, time.perf_counter()
    with replaced_file(output) if output else nullcontext(sys.stdout) as file:
        portions = list(_written(model, rows, file.write, probabilities))
    predicting_s = time.perf_counter() - begin
    found = None if targets is None else score(model, portions, targets)
    return Predicted(rows.shape[0], score_name(model), found, reading_s, predicting_s)


def _written(
    model: LinearModel, rows: csr_array, write: Callable[[str], object], probabilities: bool
) -> Iterator[Array]:
    """The classes or values that the model predicts, portion by portion, each after it was written."""
    for portion in in_portions(model.predict_proba if probabilities else model.predict, rows):
        if probabilities:
            write("".join(" ".join(map(str, row)) + "\n" for row in portion))
            yield model.classes_[portion.argmax(axis=1)]
        else:
            write("".join(f"{prediction}\n" for prediction in portion))
            yield portion
