"""Small facts as vectors: what ranks tell each other that is not a vector, and too mixed for a header."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from sparsewire.errors import WireError
from sparsewire.expected import Expected
from sparsewire.vector import SparseVector

__all__ = ["NOTE", "from_vector", "to_vector"]

WORD = 8  # bytes of an int64
NOTE = Expected(dtype=np.dtype(np.int64), is_dense=True, most=1 << 20)


def to_vector(said: Any) -> SparseVector:
    """Anything that JSON can carry, as a vector.

    >>> from_vector(0, to_vector({"rows": [3, 4]}))
    {'rows': [3, 4]}
    """
    text = json.dumps(said).encode()
    return SparseVector.from_dense(np.frombuffer(text.ljust(-(-len(text) // WORD) * WORD), np.int64))


def from_vector(source: int, payload: Any) -> Any:
    """What the source gave to ``to_vector``; anything else that it sent raises WireError."""
    NOTE.check(source, payload)
    try:
        return json.loads(payload.values.tobytes())
    except (ValueError, RecursionError):
        raise WireError(f"rank {source} sent {payload.values.nbytes:,} bytes that are no JSON") from None
