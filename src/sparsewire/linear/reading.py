"""LIBSVM files for a model: with the number of columns that it has, and labels that are its classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.communicator import Communicator
from sparsewire.errors import InputError
from sparsewire.linear.estimators import Ridge
from sparsewire.linear.libsvm import load_libsvm
from sparsewire.linear.losses import SQUARED
from sparsewire.linear.model import LinearModel
from sparsewire.linear.problem import Array
from sparsewire.linear.training import over_ranks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["read_for_model", "targets_of", "unknown_entries"]

Labels: TypeAlias = npt.NDArray[np.float64]
PathLike: TypeAlias = str | os.PathLike[str]

LARGEST_CLASS = 2**53  # above, every float64 is a whole number, so it says nothing about being a class


def read_for_model(
    path: PathLike, *, features: int, zero_based: bool | str, dtype: str, comm: Communicator | None = None
) -> tuple[csr_array, Labels, int]:
    """This rank's rows and labels, and how many entries of all ranks are left out.

    Entries are left out if the model has no weight for their feature.
    """
    rows, labels = load_libsvm(path, zero_based=zero_based, dtype=dtype, comm=comm)
    known = rows[:, :features] if rows.shape[1] > features else _of_width(rows, features)
    [left_out] = over_ranks(comm, [rows.nnz - known.nnz])
    return known, labels, int(left_out)


def unknown_entries(path: PathLike, left_out: int, features: int) -> str:
    """The message for the user about entries that were left out."""
    return f"{path} has features beyond the model's {features:,}; entries that are ignored: {left_out:,}"


def targets_of(model: LinearModel, labels: Labels, positive: Sequence[float] | None, path: PathLike) -> Array:
    """The labels as the model learns them; with ``positive``, 1 for these labels and -1 for all others."""
    if isinstance(model, Ridge):
        return labels
    if positive is not None:
        return np.where(np.isin(labels, positive), 1, -1)
    is_class = (labels == np.rint(labels)) & (np.abs(labels) <= LARGEST_CLASS)
    if not is_class.all():
        raise InputError(
            f"{path} has the label {labels[~is_class][0]:g}, and classes are whole numbers; "
            f"to learn values, the loss is {SQUARED.name}"
        )
    return labels.astype(np.int64)


def _of_width(rows: csr_array, features: int) -> csr_array:
    """The same entries in more columns, or without empty columns at the end."""
    from scipy.sparse import csr_array

    return csr_array((rows.data, rows.indices, rows.indptr), shape=(rows.shape[0], features))
