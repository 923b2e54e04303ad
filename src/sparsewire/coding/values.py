"""Values in fewer bits than they were computed in: float16 and bfloat16, and QSGD with 2, 4 or 8 bits.

QSGD: the values of a bucket share a scale, and each becomes a whole number of levels of it.  Whether that is
the level below or the level above is drawn at random, so that the mean is right.  The random numbers come
from a counter-based generator: the same seed, call, rank and position always give the same bits.

With feedback the nearest level is taken.  Two bits have only the levels -1, 0 and 1.  If 1 stood for the
largest magnitude of a bucket, nearly all values of a heavy-tailed vector would be nearest to 0, and their
indices would travel for nothing.  So the scale is the one with the least squared error, and larger values are
cut off.

D. Alistarh et al., QSGD, NeurIPS 2017.  J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11.
F. Li et al., Ternary weight networks, 2016.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from sparsewire import kernels
from sparsewire.errors import InputError
from sparsewire.vector import Array, value_dtype

__all__ = ["PRECISIONS", "QSGD", "HalfFloat", "Place", "Precision", "precision_of"]

# What random numbers depend on: the number of the call, the rank, and which of the rank's roundings it is.
Place: TypeAlias = tuple[int, int, int]

BITS = (2, 4, 8)
NORMS = ("max", "2")
SORTED_VALUES = 1 << 15  # are sorted at a time, so that they stay in the cache


class Precision(Protocol):
    """How values are written in fewer bits."""

    @property
    def name(self) -> str:
        """One of ``PRECISIONS``."""

    def nbytes(self, count: int) -> int:
        """Bytes of ``count`` values."""

    def pack(self, values: Array, positions: Array | int, place: Place | None) -> Array:
        """Float32 values rounded to bytes.

        ``positions`` are the values' indices; a number is the index of the first of consecutive values.
        Without a place nothing is random: each value becomes the nearest level.
        """

    def unpack(self, data: Array, count: int) -> Array:
        """The rounded values as float32; any bytes can be unpacked."""


@dataclass(frozen=True)
class HalfFloat:
    """Sixteen bits: "float16" has 11 significant ones, "bfloat16" 8 and the range of float32.

    Values above the largest number, which is 65504 in float16, become infinite.
    """

    name: str

    def nbytes(self, count: int) -> int:
        return 2 * count

    def pack(self, values: Array, positions: Array | int, place: Place | None) -> Array:
        return kernels.narrow(values, value_dtype(self.name)).view(np.uint8)

    def unpack(self, data: Array, count: int) -> Array:
        return kernels.widen(data.view(value_dtype(self.name)))


@dataclass(frozen=True)
class QSGD:
    """Values as levels of a bucket's scale, each in ``bits`` bits; the mean over seeds is the value itself.

    The scale is the largest magnitude of a bucket (``norm="max"``) or its Euclidean norm (``"2"``), which has
    more variance.  With feedback, two bits have the scale of least squared error instead.  A value that is
    not finite becomes NaN and has no part in its bucket's scale.

    >>> QSGD(bits=4).nbytes(1024)
    516
    """

    bits: int = 4
    bucket: int = 1024
    norm: str = "max"
    seed: int = 0

    def __post_init__(self) -> None:
        for what, given, known in (("bits", self.bits, BITS), ("norm", self.norm, NORMS)):
            if given not in known:
                raise InputError(f"QSGD with {what}={given!r}; known are {', '.join(map(repr, known))}")
        if not isinstance(self.bucket, int) or not 0 < self.bucket < 2**32:
            raise InputError(f"QSGD with bucket={self.bucket!r}; it must be between 1 and 2^32 - 1 values")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise InputError(f"QSGD with seed={self.seed!r}; it must be between 0 and 2^64 - 1")

    @property
    def name(self) -> str:
        return f"qsgd{self.bits}"

    def nbytes(self, count: int) -> int:
        return 4 * -(-count // self.bucket) + -(-count * self.bits // 8)

    def pack(self, values: Array, positions: Array | int, place: Place | None) -> Array:
        key, norm = None, self.norm
        if place is not None:
            key = zlib.crc32(struct.pack("<QQII", self.seed, *place))
        elif self.bits == 2:
            # The largest magnitude of what is left is the scale that was chosen.
            values, norm = _cut_off_for_three_levels(values, self.bucket), "max"
        scales, codes = kernels.quantize(
            values, self.bits, positions=positions, key=key, bucket=self.bucket, norm=norm
        )
        return np.concatenate([scales.view(np.uint8), codes])

    def unpack(self, data: Array, count: int) -> Array:
        scales = 4 * -(-count // self.bucket)
        numbers, codes = data[:scales].view(np.float32), data[scales:]
        return kernels.dequantize(numbers, codes, count, self.bits, self.bucket)


def _cut_off_for_three_levels(values: Array, bucket: int) -> Array:
    """The values, those above the best scale of their bucket cut off to it; levels are -scale, 0 and scale.

    If the t largest magnitudes become the scale and all others zero, the best scale is the mean of those t.
    The squared error is then the sum of all squares minus (sum of the t largest)^2 / t.
    """
    bucket = min(bucket, len(values) or 1)
    step = max(1, SORTED_VALUES // bucket) * bucket
    weights = 1 / np.sqrt(np.arange(1, bucket + 1))
    cut_off = np.empty_like(values)
    for first in range(0, len(values), step):
        some = values[first : first + step]
        odd = ~np.isfinite(some)
        rows = np.zeros((-(-len(some) // bucket), bucket), np.float32)
        rows.reshape(-1)[: len(some)] = np.where(odd, np.float32(0), -np.abs(some))
        rows.sort(axis=1)  # the largest magnitudes first
        sums = rows.astype(np.float64)
        np.cumsum(sums, axis=1, out=sums)
        last = (sums * weights).argmin(axis=1)
        best = -sums[np.arange(len(rows)), last] / (last + 1)
        scales = np.repeat(best.astype(np.float32), bucket)[: len(some)]
        cut_off[first : first + step] = np.where(odd, np.float32(np.nan), np.clip(some, -scales, scales))
    return cut_off


# By name, in the order in which the wire format numbers them.
PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (HalfFloat("float16"), HalfFloat("bfloat16"), QSGD(2), QSGD(4), QSGD(8))
}


def precision_of(given: str | Precision | None, dtype: np.dtype[Any], op: str) -> Precision | None:
    """The precision that the caller asks for; None if values travel as they are.

    Raises InputError if these values or this operation cannot have it.
    """
    if given is None or given == dtype.name:
        return None
    precision = PRECISIONS.get(given) if isinstance(given, str) else given
    if not isinstance(precision, HalfFloat | QSGD):
        raise InputError(f"unknown precision {given!r}; known are {', '.join(PRECISIONS)} and QSGD(...)")
    if dtype.name not in ("float32", "float64"):
        raise InputError(
            f"precision {precision.name} rounds float32 and float64 values, and these are {dtype.name}"
        )
    if isinstance(precision, QSGD) and op not in ("sum", "avg"):
        raise InputError(
            f"precision {precision.name} is right on average, and op={op!r} takes one value: use float16"
        )
    return precision
