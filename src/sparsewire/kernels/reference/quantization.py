"""float32 values in fewer bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.checks import Indices, Values
from sparsewire.kernels.reference.arithmetic import in_rows, quiet, sums_of_squares

__all__ = [
    "dequantize",
    "narrow",
    "quantize",
    "widen",
]


@quiet
def narrow(values: Values, out: Values) -> None:
    out[:] = values.astype(out.dtype)


@quiet
def widen(values: Values, out: Values) -> None:
    out[:] = values


def quantize(
    values: Values,
    positions: int | Indices,
    key: int | None,
    bits: int,
    bucket: int,
    norm: str,
    scales: Values,
    codes: npt.NDArray[np.uint8],
) -> None:
    """QSGD: each |x| / scale * s becomes one of the two whole numbers around it, so that its mean is right.

    Values that are not finite have no part in a norm, and the code that no level has.
    """
    n, s = len(values), (1 << (bits - 1)) - 1
    is_finite = np.isfinite(values)
    size = np.where(is_finite, np.abs(values), np.float32(0))
    scales[:] = (_max_norms if norm == "max" else _two_norms)(in_rows(size, bucket))
    scale = np.repeat(scales, bucket)[:n]
    # Where the scale is zero, so is every finite value.
    q = size / np.where(scale == 0, np.float32(1), scale) * np.float32(s)
    lower, u = np.floor(q), np.full(n, 0.5, np.float32)
    if key is not None:
        if isinstance(positions, int):
            positions = np.uint64(positions) + np.arange(n, dtype=np.uint64)
        u = (_philox(positions, key) >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
    level = np.copysign(lower + (u < q - lower), values)
    _pack(np.where(is_finite, level, -s - 1).astype(np.int8), bits, codes)


@quiet
def dequantize(scales: Values, codes: npt.NDArray[np.uint8], bits: int, bucket: int, out: Values) -> None:
    n, s = len(out), (1 << (bits - 1)) - 1
    level = _unpack(codes, bits)[:n]
    value = np.repeat(scales, bucket)[:n] * (level.astype(np.float32) / np.float32(s))
    out[:] = np.where(level == -s - 1, np.float32(np.nan), value)


def _max_norms(buckets: Values) -> Values:
    norms: Values = buckets.max(axis=1)
    return norms


def _two_norms(buckets: Values) -> Values:
    return np.minimum(np.sqrt(sums_of_squares(buckets)), np.finfo(np.float32).max)


def _philox(counters: Indices, key: int) -> npt.NDArray[np.uint64]:
    """The first output word of Philox2x32-10 for each counter (Salmon et al., SC'11)."""
    half, lower_half = np.uint64(32), np.uint64(2**32 - 1)
    low, high = counters.astype(np.uint64) & lower_half, counters.astype(np.uint64) >> half
    for round_number in range(10):
        round_key = np.uint64((key + round_number * 0x9E3779B9) % 2**32)
        product = low * np.uint64(0xD256D193)
        low, high = product >> half ^ round_key ^ high, product & lower_half
    return low


def _pack(levels: npt.NDArray[np.int8], bits: int, codes: npt.NDArray[np.uint8]) -> None:
    by_byte = in_rows(levels.view(np.uint8) & np.uint8(2**bits - 1), 8 // bits)
    codes[:] = np.bitwise_or.reduce(by_byte << _shifts(bits), axis=1)


def _unpack(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.int8]:
    # Shifted to the top of a byte and, as signed numbers, down again: that extends the sign.
    by_byte = (codes[:, None] << (np.uint8(8 - bits) - _shifts(bits))).view(np.int8) >> np.int8(8 - bits)
    return by_byte.reshape(-1)


def _shifts(bits: int) -> npt.NDArray[np.uint8]:
    """Where in a byte its codes begin."""
    return np.arange(0, 8, bits, dtype=np.uint8)
