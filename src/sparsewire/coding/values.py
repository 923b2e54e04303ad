"""Values in fewer bits than they were computed in: float16 and bfloat16, and QSGD with 2, 4 or 8 bits.

QSGD: a bucket of values shares a scale, and each value becomes a whole number of levels of it.  The lower or
the upper neighbour is taken by chance, so that the mean is right.  The chance comes from a counter-based
generator: the same seed, call, rank and position always give the same bits.

D. Alistarh et al., QSGD, NeurIPS 2017.  J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11.
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

# Where chance comes from: the number of the call, the rank, and which of its roundings it is.
Place: TypeAlias = tuple[int, int, int]

BITS = (2, 4, 8)
NORMS = ("max", "2")


class Precision(Protocol):
    """How values are written."""

    @property
    def name(self) -> str:
        """One of ``PRECISIONS``."""

    def nbytes(self, count: int) -> int:
        """Bytes of so many values."""

    def pack(self, values: Array, positions: Array | int, place: Place | None) -> Array:
        """Round float32 values to bytes; a number as ``positions`` is that of the first of a row.

        Without a place there is no chance, and the nearest level is taken.
        """

    def unpack(self, data: Array, count: int) -> Array:
        """The rounded values as float32; any bytes can be unpacked."""


@dataclass(frozen=True)
class HalfFloat:
    """Sixteen bits: "float16" has 11 significant ones, "bfloat16" 8 and the range of float32.

    What is larger than the largest number, which is 65504 in float16, becomes infinite.
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
    more variance.  What is not finite becomes NaN and does not disturb its bucket.

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
        key = None if place is None else zlib.crc32(struct.pack("<QQII", self.seed, *place))
        scales, codes = kernels.quantize(
            values, self.bits, positions=positions, key=key, bucket=self.bucket, norm=self.norm
        )
        return np.concatenate([scales.view(np.uint8), codes])

    def unpack(self, data: Array, count: int) -> Array:
        scales = 4 * -(-count // self.bucket)
        numbers, codes = data[:scales].view(np.float32), data[scales:]
        return kernels.dequantize(numbers, codes, count, self.bits, self.bucket)


# By name, in the order in which the wire format numbers them.
PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (HalfFloat("float16"), HalfFloat("bfloat16"), QSGD(2), QSGD(4), QSGD(8))
}


def precision_of(given: str | Precision | None, dtype: np.dtype[Any], op: str) -> Precision | None:
    """What the caller asks for, if these values and this operation allow it; None: as they are."""
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
