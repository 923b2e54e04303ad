"""Whether data is what it should be.

first_invalid  the first index that is out of order or out of range
checksum       CRC-64/NVME
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.kernels import backend, checks
from sparsewire.kernels.checks import Indices

__all__ = [
    "checksum",
    "first_invalid",
]


# Arrays of these dtypes are taken as they are; a view of bytes would take longer than the checksum of a short
# one.
_KNOWN = frozenset(np.dtype(t) for t in ("u1", "u4", "u8", "f2", "f4", "f8", "i4", "i8"))


def first_invalid(indices: Indices, start: int, stop: int) -> int:
    """The position of the first index not above its predecessor or not in [start, stop); -1 if there is none.

    >>> first_invalid(np.array([1, 5, 5], np.uint32), 0, 10)
    2
    """
    checks.indices(indices, "indices")
    first, last = checks.not_negative(start, "start"), min(checks.not_negative(stop, "stop"), 2**64) - 1
    if first > last:  # no index is in an empty range
        return 0 if len(indices) else -1
    return backend.active.first_invalid(indices, first, last)


def checksum(data: npt.NDArray[Any], seed: int = 0) -> int:
    """The CRC-64/NVME of the bytes of a contiguous array.  The seed is the CRC of the bytes before them.

    >>> text = np.frombuffer(b"123456789", np.uint8)
    >>> hex(checksum(text)), hex(checksum(text[4:], checksum(text[:4])))
    ('0xae8b14860a799888', '0xae8b14860a799888')
    """
    if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
        raise TypeError("data must be a contiguous numpy array")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must fit 64 bits, got {seed}")
    if data.ndim != 1 or data.dtype not in _KNOWN:
        data = data.reshape(-1).view(np.uint8)
    return backend.active.checksum(data, seed)
