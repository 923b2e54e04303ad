"""What every kernel requires of its arguments, with the messages that users see.

Arrays are one-dimensional, contiguous and aligned.  Nothing is ever copied silently, so a strided array or
another dtype is a TypeError.  The conditions are cheap, because collectives of few entries consist of many
short calls; what explains a refusal is worked out only when there is one.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

__all__ = [
    "FLOAT32",
    "UINT32",
    "UINT64",
    "Entries",
    "Indices",
    "Values",
    "Words",
    "accumulation",
    "array",
    "at_least_one",
    "entries",
    "exact_dtype",
    "index_dtype_for",
    "indices",
    "not_negative",
    "same_dtype",
    "values",
    "writeable",
]

Indices = npt.NDArray[Any]
Values = npt.NDArray[Any]
Entries = tuple[Indices, Values]
Words = npt.NDArray[np.uint64]

FLOAT32 = np.dtype(np.float32)
UINT32 = np.dtype(np.uint32)
UINT64 = np.dtype(np.uint64)
# bfloat16 joins when the first array of it comes, so that ml_dtypes is not imported for nothing.
_VALUE_DTYPES: set[np.dtype[Any]] = {
    np.dtype(t) for t in (np.float32, np.float64, np.float16, np.int32, np.int64)
}
# With what callers usually write for an index dtype: np.dtype() takes as long as a short kernel.
_INDEX_DTYPES: dict[Any, np.dtype[Any]] = {
    np.uint32: UINT32,
    np.uint64: UINT64,
    UINT32: UINT32,
    UINT64: UINT64,
}


def values(x: Values, name: str) -> None:
    """Refuse what is not an array of values."""
    if not (isinstance(x, np.ndarray) and x.ndim == 1 and (flags := x.flags).c_contiguous and flags.aligned):
        _refuse_array(x, name)
    if x.dtype not in _VALUE_DTYPES:
        if x.dtype.name != "bfloat16":
            known = "float32, float64, float16, bfloat16, int32 or int64"
            raise TypeError(f"{name} must be {known}, not {x.dtype}")
        _VALUE_DTYPES.add(x.dtype)


def indices(x: Indices, name: str) -> None:
    """Refuse what is not an array of indices."""
    if not (isinstance(x, np.ndarray) and x.ndim == 1 and (flags := x.flags).c_contiguous and flags.aligned):
        _refuse_array(x, name)
    if x.dtype not in _INDEX_DTYPES:
        raise TypeError(f"{name} must be uint32 or uint64, not {x.dtype}")


def entries(run_indices: Indices, run_values: Values) -> None:
    """Refuse what is not a run of entries; whether its indices increase is not looked at."""
    indices(run_indices, "indices")
    values(run_values, "values")
    if len(run_indices) != len(run_values):
        raise ValueError(f"indices and values differ in length: {len(run_indices)} and {len(run_values)}")


def accumulation(residual: Values, gradient: Values) -> None:
    """Refuse a residual to which the gradient cannot be added."""
    values(residual, "residual")
    values(gradient, "gradient")
    same_dtype(residual, gradient, "residual and gradient")
    if len(residual) != len(gradient):
        raise ValueError(f"residual and gradient differ in length: {len(residual)} and {len(gradient)}")
    writeable(residual, "residual")


def array(x: npt.NDArray[Any], name: str) -> None:
    """Refuse what is not an array that kernels take, of whatever dtype."""
    if not (isinstance(x, np.ndarray) and x.ndim == 1 and (flags := x.flags).c_contiguous and flags.aligned):
        _refuse_array(x, name)


def _refuse_array(x: Any, name: str) -> NoReturn:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, not {type(x).__name__}")
    raise TypeError(
        f"{name} must be one-dimensional, contiguous and aligned: "
        f"shape {x.shape}, strides {x.strides}, address {x.ctypes.data:#x}"
    )


def exact_dtype(x: npt.NDArray[Any], dtype: npt.DTypeLike, name: str) -> None:
    """Refuse what is not an array of this dtype."""
    array(x, name)
    if x.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype)}, not {x.dtype}")


def same_dtype(a: npt.NDArray[Any], b: npt.NDArray[Any], names: str) -> None:
    """Refuse two arrays of different dtypes."""
    if a.dtype != b.dtype:
        raise TypeError(f"the {names} must have one dtype, got {a.dtype} and {b.dtype}")


def writeable(x: npt.NDArray[Any], name: str) -> None:
    """Refuse an array that may not be written to."""
    if not x.flags.writeable:
        raise ValueError(f"{name} is read-only")


def index_dtype_for(index_dtype: npt.DTypeLike, stop: int) -> np.dtype[Any]:
    """The dtype, which must hold every index below ``stop``."""
    try:
        dtype = _INDEX_DTYPES[index_dtype]
    except (KeyError, TypeError):
        dtype = np.dtype(index_dtype)
        if dtype not in _INDEX_DTYPES:
            raise TypeError(f"index_dtype must be uint32 or uint64, not {dtype}") from None
    if stop > 2 ** (8 * dtype.itemsize):
        raise ValueError(f"{dtype} cannot hold indices up to {stop - 1}")
    return dtype


def not_negative(number: int, name: str) -> int:
    """The number as an int."""
    number = operator.index(number)
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {number}")
    return number


def at_least_one(number: int, what: str) -> int:
    """The number as an int; the message says that ``what`` must be at least one.

    >>> at_least_one(0, "a block holds at least one value")
    Traceback (most recent call last):
    ValueError: a block holds at least one value, got 0
    """
    number = operator.index(number)
    if number < 1:
        raise ValueError(f"{what}, got {number}")
    return number
