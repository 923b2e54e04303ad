"""Error feedback: what was not sent waits in a residual, and is added to the next gradient.

    residual_after + sent = residual_before + gradient

This is exact for compressors that select; with rounded values, up to the rounding of one subtraction.
Nothing is lost, it is only sent later.  Therefore training with few entries converges (Stich et al., NeurIPS
2018; Karimireddy et al., ICML 2019).

Momentum correction (Lin et al., Deep Gradient Compression, ICLR 2018, sections 3.1 and 3.2): to an optimiser
with momentum, the sum of many gradients that have waited would look like one large gradient.  So momentum is
applied before the selection: the velocity is accumulated instead of the gradient, and the optimiser has none.
Where an entry is sent, its velocity becomes zero (factor masking), or its old direction would be sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsewire import kernels
from sparsewire.coding.rounding import Feedback
from sparsewire.compress.compressor import Compressor, checked_vector
from sparsewire.compress.source import Accumulated, Gradient, Source
from sparsewire.compress.state import State
from sparsewire.errors import InputError
from sparsewire.vector import Array, SparseVector

__all__ = ["ErrorFeedback", "FeedbackState"]


@dataclass(frozen=True, eq=False)
class FeedbackState(State):
    """The residual, the velocity if there is momentum, and the state of the wrapped compressor."""

    residual: Array
    velocity: Array | None
    inner: State


@dataclass(frozen=True)
class ErrorFeedback(Compressor[FeedbackState]):
    """Any compressor; what it does not send is kept for the next step.

    >>> from sparsewire.compress.topk import TopK
    >>> feedback = ErrorFeedback(TopK(k=1))
    >>> state = feedback.init(3)
    >>> gradient = np.array([4, 3, 0], np.float32)
    >>> for _ in range(3):
    ...     sent, state = feedback.step(gradient, state)
    ...     print(sent.to_dense(), state.residual)
    [4. 0. 0.] [0. 3. 0.]
    [0. 6. 0.] [4. 0. 0.]
    [8. 0. 0.] [0. 3. 0.]

    With ``check_finite`` a chosen value that is not finite is an InputError, and nothing is sent.  The state
    may be used again: the gradient is in its residual, which is zero where the sum was not finite.
    """

    inner: Compressor[Any]
    momentum: float = 0.0
    check_finite: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.inner, ErrorFeedback):
            raise InputError("error feedback around error feedback; one keeps everything already")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum is {self.momentum}; it must be at least 0 and below 1, such as 0.9")

    @property
    def shared(self) -> bool:
        return self.inner.shared

    @property
    def block(self) -> int:
        return self.inner.block

    def init(self, length: int, dtype: npt.DTypeLike = "float32") -> FeedbackState:
        length, kind = checked_vector(length, dtype)
        if self.momentum and kind.kind == "i":
            raise InputError(f"momentum {self.momentum} of {kind} values; it needs floating-point values")
        velocity = np.zeros(length, kind) if self.momentum else None
        return FeedbackState(np.zeros(length, kind), velocity, self.inner.init(length, kind))

    def take(self, source: Source, state: FeedbackState) -> tuple[SparseVector, FeedbackState]:
        return self.add(source.array(), state)

    def add(self, gradient: Gradient, state: FeedbackState) -> tuple[SparseVector, FeedbackState]:
        """A step with a gradient that is one array, or several that lie one after the other."""
        source = Accumulated(state.residual, gradient, state.velocity, self.momentum)
        sent, inner = self.inner.take(source, state.inner)
        if self.check_finite:
            self._refuse_what_is_not_finite(sent, state)
        if state.velocity is not None:
            kernels.scatter(state.velocity, _indices(sent), np.zeros_like(sent.values))
        return sent, replace(state, inner=inner)

    def give_back(self, entries: SparseVector, state: FeedbackState) -> FeedbackState:
        """The state after entries were not used: they are in the residual, and their velocity stays zero."""
        kernels.scatter_add(state.residual, _indices(entries), entries.values)
        return state

    def rounding(self, state: FeedbackState) -> Feedback | None:
        """Where the exchange puts its rounding errors: into the residual.  None: they are lost."""
        return Feedback(state.residual, state.residual)

    def _refuse_what_is_not_finite(self, sent: SparseVector, state: FeedbackState) -> None:
        is_finite = np.isfinite(sent.values)
        if is_finite.all():
            return
        self.give_back(sent, state)
        for array in (state.residual, state.velocity):
            if array is not None:
                array[~np.isfinite(array)] = 0
        first = int(np.argmin(is_finite))
        raise InputError(
            f"the accumulated gradient is {sent.values[first]} at index {_indices(sent)[first]}; nothing was "
            "sent, and what is not finite was dropped"
        )


def _indices(entries: SparseVector) -> Array:
    indices = entries.as_sparse().indices
    assert indices is not None
    return indices
