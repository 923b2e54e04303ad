"""float32 values in fewer bits.

narrow      as float16 or bfloat16
widen       float16 or bfloat16 values as float32
quantize    in 2, 4 or 8 bits, rounded at random (QSGD)
dequantize  the values that `quantize` chose
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import backend, checks, memory
from sparsewire.kernels.checks import FLOAT32, Indices, Values

__all__ = [
    "dequantize",
    "narrow",
    "quantize",
    "widen",
]

# bfloat16 joins when it first comes: to ask a dtype for its name takes as long as a short kernel.
_HALF_DTYPES: set[np.dtype[Any]] = {np.dtype(np.float16)}


def narrow(values: Values, dtype: npt.DTypeLike) -> Values:
    """float32 values as float16 or bfloat16, rounded to nearest, ties to even.

    What is too large becomes infinity, and NaN stays NaN.

    >>> narrow(np.array([1.5, 1 / 3, 1e6], np.float32), np.float16)
    array([1.5   , 0.3333,    inf], dtype=float16)
    """
    checks.exact_dtype(values, FLOAT32, "values")
    out = memory.empty(len(values), _half_dtype(np.dtype(dtype)))
    backend.active.narrow(values, out)
    return out


def widen(values: Values) -> npt.NDArray[np.float32]:
    """float16 or bfloat16 values as float32, which holds them all.

    >>> widen(np.array([1.5, -2], np.float16))
    array([ 1.5, -2. ], dtype=float32)
    """
    checks.array(values, "values")
    _half_dtype(values.dtype)
    wide = memory.empty(len(values), FLOAT32)
    backend.active.widen(values, wide)
    return wide


def quantize(
    values: Values,
    bits: int,
    *,
    positions: Indices | int = 0,
    key: int | None = 0,
    bucket: int = 1024,
    norm: str = "max",
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Scales of buckets, and codes of `bits` bits that stand for float32 values in units of their scale.

    This is QSGD (Alistarh et al., NeurIPS 2017, section 3.1).  Every `bucket` consecutive values share a
    scale, which is their largest magnitude, or their 2-norm.  With 2, 4 or 8 bits there are s = 1, 7 or 127
    levels of each sign.  A value becomes one of the two levels around it, at random, so that its expectation
    is the value.  Zeros stay zeros.  A value that is not finite becomes NaN, and changes no other value.

    The random number of a value depends only on `key` and on its position.  `positions` are these positions,
    or the first of consecutive ones.  Without a key the nearest level is taken, and the smaller one of two
    that are equally near.  Codes are packed, with the first value in the lowest bits.

    >>> quantize(np.array([7, 0, -3, np.inf], np.float32), 4)
    (array([7.], dtype=float32), array([  7, 141], dtype=uint8))
    """
    checks.exact_dtype(values, np.float32, "values")
    bits, bucket = _check_format(bits, bucket)
    if norm not in ("max", "2"):
        raise ValueError(f"norm must be 'max' or '2', not {norm!r}")
    if key is not None and not 0 <= operator.index(key) < 2**32:
        raise ValueError(f"key must fit 32 bits, got {key}")
    count, bucket = len(values), min(bucket, len(values) or 1)
    scales = memory.empty(-(-count // bucket), np.float32)
    codes = memory.empty(-(-count * bits // 8), np.uint8)
    places = _check_positions(positions, count)
    backend.active.quantize(values, places, key, bits, bucket, norm, scales, codes)
    return scales, codes


def dequantize(
    scales: Values,
    codes: npt.NDArray[np.uint8],
    count: int,
    bits: int,
    bucket: int = 1024,
) -> npt.NDArray[np.float32]:
    """The values that `quantize` chose: scale * (level / s).  Any numbers are valid scales and codes.

    >>> dequantize(np.array([7], np.float32), np.array([7, 141], np.uint8), 4, 4)
    array([ 7.,  0., -3., nan], dtype=float32)
    """
    checks.exact_dtype(scales, np.float32, "scales")
    checks.exact_dtype(codes, np.uint8, "codes")
    bits, bucket = _check_format(bits, bucket)
    count = checks.not_negative(count, "count")
    expected, got = (-(-count // bucket), -(-count * bits // 8)), (len(scales), len(codes))
    if got != expected:
        raise ValueError(
            f"{count} values of {bits} bits in buckets of {bucket} have {expected[0]} scales and "
            f"{expected[1]} bytes of codes, got {got[0]} and {got[1]}"
        )
    values = memory.empty(count, FLOAT32)
    backend.active.dequantize(scales, codes, bits, min(bucket, count or 1), values)
    return values


def _half_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype not in _HALF_DTYPES:
        if dtype.name != "bfloat16":
            raise TypeError(f"narrow values are float16 or bfloat16, not {dtype}")
        _HALF_DTYPES.add(dtype)
    return dtype


def _check_format(bits: int, bucket: int) -> tuple[int, int]:
    bits = operator.index(bits)
    if bits not in (2, 4, 8):
        raise ValueError(f"bits must be 2, 4 or 8, got {bits}")
    return bits, checks.at_least_one(bucket, "a bucket holds at least one value")


def _check_positions(positions: Indices | int, count: int) -> Indices | int:
    if isinstance(positions, np.ndarray):
        checks.indices(positions, "positions")
        if len(positions) != count:
            raise ValueError(f"positions and values differ in length: {len(positions)} and {count}")
        return positions
    first = checks.not_negative(positions, "positions")
    if first + max(count, 1) > 2**64:
        raise ValueError(f"positions must fit 64 bits: there are {count} from {first} on")
    return first
