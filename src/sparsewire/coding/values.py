"""Values in fewer bits than they were computed in: float16 and bfloat16, and QSGD with 2, 4 or 8 bits.

QSGD: the values of a bucket share a scale, and each becomes a whole number of levels of it.  Whether that is
the level below or the level above is drawn at random, so that the mean is right.  The random numbers come
from a counter-based generator: the same seed, call, rank and position always give the same bits.

With feedback the nearest level is taken.  QSGD with two bits has only the levels -1, 0 and 1, and nearly all
values of a heavy-tailed vector are nearest to 0: their indices would travel for nothing.  So two bits to the
nearest are another code, a sign and one of two magnitudes that each bucket has of its own.

D. Alistarh et al., QSGD, NeurIPS 2017.  J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from sparsewire import kernels
from sparsewire.errors import InputError
from sparsewire.vector import Array, value_dtype

__all__ = ["PRECISIONS", "QSGD", "HalfFloat", "Place", "Precision", "TwoLevels", "precision_of"]

# What random numbers depend on: the number of the call, the rank, and which of the rank's roundings it is.
Place: TypeAlias = tuple[int, int, int]

BITS = (2, 4, 8)
NORMS = ("max", "2")
SORTED_VALUES = 1 << 15  # are sorted at a time, so that they stay in the cache
# The four codes of two bits in each byte, the lowest first, as the bytes of one number.
FOUR_CODES = (np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3).astype(np.uint8).view(np.uint32)[:, 0]


class Precision(Protocol):
    """How values are written in fewer bits."""

    @property
    def name(self) -> str:
        """One of ``PRECISIONS``, or that of ``TwoLevels``."""

    @property
    def nearest(self) -> Precision:
        """The precision that is used where nothing is random; it may write values in another way."""

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

    @property
    def nearest(self) -> HalfFloat:
        return self

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
    more variance.  A value that is not finite becomes NaN and has no part in its bucket's scale.

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

    @property
    def nearest(self) -> Precision:
        return TwoLevels(self.bucket) if self.bits == 2 else self

    def nbytes(self, count: int) -> int:
        return 4 * -(-count // self.bucket) + -(-count * self.bits // 8)

    def pack(self, values: Array, positions: Array | int, place: Place | None) -> Array:
        key = None if place is None else zlib.crc32(struct.pack("<QQII", self.seed, *place))
        scales, codes = kernels.quantize(
            values, self.bits, positions=positions, key=key, bucket=self.bucket, norm=self.norm
        )
        return np.concatenate([scales.view(np.uint8), codes])

    def unpack(self, data: Array, count: int) -> Array:
        scales = 4 * -(-count // self.bucket)
        numbers, codes = data[:scales].view(np.float32), data[scales:]
        return kernels.dequantize(numbers, codes, count, self.bits, self.bucket)


@dataclass(frozen=True)
class TwoLevels:
    """Two bits: a sign, and which of the two magnitudes of the value's bucket is nearest.

    These have the least squared error.  So no entry becomes zero, however heavy the tails are.  A bucket that
    has a zero is different: its smaller magnitude is zero, so that nothing appears where nobody gave a value.
    A value that is not finite becomes NaN: then the larger magnitude is NaN, and the finite values of the
    bucket share the other one.

    >>> TwoLevels().nbytes(1024)
    264
    """

    bucket: int = 1024

    @property
    def name(self) -> str:
        return "two_levels"

    @property
    def nearest(self) -> TwoLevels:
        return self

    def nbytes(self, count: int) -> int:
        return 8 * -(-count // self.bucket) + -(-count * 2 // 8)

    def pack(self, values: Array, positions: Array | int, place: Place | None) -> Array:
        levels, bits = [], np.empty((len(values), 2), bool)
        with np.errstate(invalid="ignore"):  # what is not finite, or a signalling NaN
            for where, rows in _buckets(values, self.bucket):
                magnitudes, border = _best_levels(rows)
                levels.append(magnitudes.reshape(-1))
                is_upper = ~(np.abs(rows) < border)  # NaN is above every border
                is_negative = (rows < 0) & (is_upper | (magnitudes[:, :1] > 0))
                bits[where, 0], bits[where, 1] = is_upper.reshape(-1), is_negative.reshape(-1)
        codes = np.packbits(bits.reshape(-1), bitorder="little")
        return np.concatenate([*(some.view(np.uint8) for some in levels), codes])

    def unpack(self, data: Array, count: int) -> Array:
        split = 8 * -(-count // self.bucket)
        levels = data[:split].view(np.float32).reshape(-1, 2)
        meanings = np.concatenate([levels, -levels], axis=1)  # of the four codes, in each bucket
        codes = FOUR_CODES.take(data[split:]).view(np.uint8)[:count]
        places = np.arange(0, meanings.size, 4).repeat(min(self.bucket, count))[:count]
        places += codes
        return meanings.reshape(-1).take(places)


def _buckets(values: Array, bucket: int) -> Iterator[tuple[slice, Array]]:
    """The values as rows, one for each bucket, and where they are; a last, shorter bucket comes by itself."""
    full = len(values) // bucket * bucket
    step = max(1, SORTED_VALUES // bucket) * bucket
    for first in range(0, full, step):
        where = slice(first, min(first + step, full))
        yield where, values[where].reshape(-1, bucket)
    if full < len(values):
        yield slice(full, len(values)), values[None, full:]


def _best_levels(rows: Array) -> tuple[Array, Array]:
    """The two magnitudes of each row, and the smallest magnitude that becomes the upper one.

    Of the sorted magnitudes, the first n become their mean, and the others theirs.  The squared error is the
    sum of all squares minus (sum of the first)^2 / n and (sum of the others)^2 / (number of the others).  If
    the first n become zero instead, only the second term is subtracted.
    """
    width, each = rows.shape[1], np.arange(len(rows))
    sizes = np.sort(np.abs(rows), axis=1)  # infinities behind the finite ones, then NaN
    has_zero, is_finite = sizes[:, 0] == 0, np.isfinite(sizes[:, -1])
    sums = np.cumsum(sizes, axis=1, dtype=np.float64)
    total = sums[:, -1:]
    lower = np.arange(1, width + 1)
    upper = np.maximum(width - lower, 1)  # of none the sum is 0
    gain = sums**2 * (1 / lower)
    gain[has_zero] = 0
    gain += (total - sums) ** 2 * (1 / upper)
    best = gain.argmax(axis=1) + 1
    n = np.where(is_finite, best, np.isfinite(sizes).sum(axis=1))
    below = np.where(n > 0, sums[each, n - 1], 0)
    low = np.where(has_zero, 0, below / np.maximum(n, 1))
    high = np.where(is_finite, (total[:, 0] - below) / np.maximum(width - n, 1), np.nan)
    border = np.where(is_finite & (n < width), sizes[each, n % width], np.inf)
    return np.stack([low, high], axis=1).astype(np.float32), border[:, None].astype(np.float32)


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
