"""Magnitudes as unsigned integers, so that every instruction set compares them alike.

A float's magnitude is its bits without the sign: the order is the order of |x|, infinity stands above every
finite number, and NaN above infinity.  All NaN count as one magnitude, just above infinity, whatever their
payload; a NaN is therefore selected like a very large value, and never lost.  An integer's magnitude is |x|
as unsigned, which holds the most negative number too.
"""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["CLASSES", "Number", "class_floor", "classes", "from_bits", "magnitudes", "to_bits"]

Number: TypeAlias = "float | np.floating[Any] | np.integer[Any]"

# Of a float32's bits without the sign, the first 12 are its class: exponent and four bits of mantissa.
CLASSES = 4096
_CLASS_SHIFT = 19


def magnitudes(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    unsigned = _unsigned(x.dtype)
    if x.dtype.kind == "i":
        bits: npt.NDArray[Any] = np.abs(x).view(unsigned)
    else:
        without_sign = x.view(unsigned) & unsigned.type((1 << (8 * x.itemsize - 1)) - 1)
        bits = np.minimum(without_sign, unsigned.type(_infinity(x.dtype) + 1))
    return bits


def to_bits(threshold: Number, ties: int, dtype: np.dtype[Any]) -> tuple[int, int]:
    """The largest magnitude of `dtype` not above the threshold, and how many ties with it to take.

    Rounding down keeps `magnitude > threshold` true for exactly the same entries.  A threshold that the
    dtype cannot hold has no ties.
    """
    if ties < 0:
        raise ValueError(f"ties must not be negative, got {ties}")
    is_nan = threshold != threshold
    if threshold < 0 or (is_nan and dtype.kind == "i"):
        raise ValueError(f"the threshold of {dtype} values must be a magnitude, got {threshold}")
    bits, exact = _integer_bits(threshold, dtype) if dtype.kind == "i" else _float_bits(threshold, dtype)
    return bits, ties if exact else 0


def from_bits(bits: int, dtype: np.dtype[Any]) -> float | int:
    """The number that `to_bits` turns back into these bits."""
    if dtype.kind == "i":
        return bits
    return math.nan if bits > _infinity(dtype) else float(np.array(bits, _unsigned(dtype)).view(dtype))


def classes(x: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The class of each value, which is first rounded to float32; a NaN's is the last one."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = x.astype(np.float32)
    return np.where(np.isnan(rounded), np.uint32(CLASSES - 1), magnitudes(rounded) >> np.uint32(_CLASS_SHIFT))


def class_floor(number: int) -> float:
    """The smallest magnitude in a class.

    >>> class_floor(int(classes(np.array([1.99]))[0]))
    1.9375
    """
    return float(np.array(number << _CLASS_SHIFT, np.uint32).view(np.float32))


def _integer_bits(threshold: Any, dtype: np.dtype[Any]) -> tuple[int, bool]:
    largest = 1 << (8 * dtype.itemsize - 1)
    if threshold > largest:
        return largest, False
    floor = (
        math.floor(threshold) if isinstance(threshold, (float, np.floating)) else operator.index(threshold)
    )
    return floor, floor == threshold


@lru_cache(maxsize=64)  # a threshold often serves many calls, and zero always does
def _float_bits(threshold: Any, dtype: np.dtype[Any]) -> tuple[int, bool]:
    if threshold != threshold:
        return _infinity(dtype) + 1, True
    wanted = float(threshold)
    with np.errstate(over="ignore", under="ignore"):
        nearest = np.abs(np.array(wanted).astype(dtype))
    bits = int(nearest.view(_unsigned(dtype)))
    return bits - (float(nearest) > wanted), float(nearest) == wanted


def _infinity(dtype: np.dtype[Any]) -> int:
    return int(np.array(math.inf).astype(dtype).view(_unsigned(dtype)))


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")
