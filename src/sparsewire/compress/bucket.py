"""The k largest of every bucket of neighbours (SparCML, Renggli et al., SC'19: k of 512)."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from sparsewire.compress.compressor import Stateless
from sparsewire.compress.source import Source
from sparsewire.compress.state import State
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector

__all__ = ["BucketTopK"]


@dataclass(frozen=True)
class BucketTopK(Stateless):
    """The k largest magnitudes of every `bucket` values, the lowest index first among equals.

    It takes one pass and needs no state.  Every part of the vector has its share, so small values are sent
    where all are small.  The last bucket may be shorter; it has k entries too, if it has so many values.

    >>> import numpy as np
    >>> top = BucketTopK(k=1, bucket=2)
    >>> entries, _ = top.step(np.array([1, -3, 2, 2, 0], np.float32), top.init(5))
    >>> entries.indices, entries.values
    (array([1, 2], dtype=uint32), array([-3.,  2.], dtype=float32))
    """

    k: int = 4
    bucket: int = 512

    def __post_init__(self) -> None:
        if not 1 <= operator.index(self.k) < operator.index(self.bucket):
            raise InputError(
                f"k is {self.k} of {self.bucket} values; it must be at least 1 and less than all"
            )

    def take(self, source: Source, state: State) -> tuple[SparseVector, State]:
        return source.vector(*source.take_buckets(self.k, self.bucket)), state
