"""The entries of a compressor with their values rounded, so that they travel in fewer bits.

Rounding is to the nearest.  Random rounding is right on average, but with few bits its error can be larger
than the value itself, and the residual of error feedback would grow from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import Precision, precision_of
from sparsewire.compress.compressor import Compressor, checked_vector
from sparsewire.compress.feedback import ErrorFeedback
from sparsewire.compress.source import Source
from sparsewire.compress.state import State
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector

__all__ = ["Quantized"]


@dataclass(frozen=True)
class Quantized(Compressor[Any]):
    """What `inner` chooses, rounded: to "float16", "bfloat16", "qsgd2", "qsgd4", "qsgd8" or a QSGD(...).

    In error feedback, ``ErrorFeedback(Quantized(TopK(0.01), "qsgd4"))``, what rounding leaves out stays in
    the residual, as long as it is finite.  The state is that of `inner`.

    >>> from sparsewire.compress.topk import TopK
    >>> rough = Quantized(TopK(k=2), "bfloat16")
    >>> entries, _ = rough.step(np.array([1.001, 0, -3, 0], np.float32), rough.init(4))
    >>> entries.values
    array([ 1., -3.], dtype=float32)
    """

    inner: Compressor[Any]
    precision: str | Precision

    def __post_init__(self) -> None:
        if isinstance(self.inner, ErrorFeedback):
            raise InputError("rounding error would be lost: write ErrorFeedback(Quantized(...)) instead")
        precision_of(self.precision, np.dtype(np.float64), "sum")

    @property
    def shared(self) -> bool:
        return self.inner.shared

    @property
    def block(self) -> int:
        return self.inner.block

    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> State:
        _, kind = checked_vector(length, dtype)
        precision_of(self.precision, kind, "sum")
        state: State = self.inner.init(length, dtype)
        return state

    def take(self, source: Source, state: State) -> tuple[SparseVector, State]:
        entries, state = self.inner.take(source, state)
        precision = precision_of(self.precision, source.dtype, "sum")
        if precision is None or entries.indices is None:
            return entries, state
        sent = rounded(entries, precision, None)
        with np.errstate(over="ignore", invalid="ignore"):
            error = entries.values - sent.values
        source.put_back(entries.indices, np.where(np.isfinite(error), error, 0).astype(entries.dtype))
        return sent, state

    def give_back(self, entries: SparseVector, state: State) -> State:
        given: State = self.inner.give_back(entries, state)
        return given
