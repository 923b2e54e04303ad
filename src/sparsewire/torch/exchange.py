"""What happens to the gradients of a group in one step: select, exchange, settle.

Where some rank's gradient, or the sum, is not finite, every rank gets what is not finite, and keeps what it
wanted to send.  So a GradScaler skips the step on all of them; if there is one, the whole step is undone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparsewire.algorithms import Regions
from sparsewire.communicator import Communicator
from sparsewire.compress.base import StepState
from sparsewire.request import Request
from sparsewire.sync import Sync, SyncState
from sparsewire.torch.device import HALF, Device, to_vector
from sparsewire.torch.layout import Layout
from sparsewire.vector import SparseVector

__all__ = ["Exchange", "Lossless", "Lossy"]


class Exchange(ABC):
    """The mean of one group's gradients over all ranks, in three phases; gradients are flat tensors."""

    def __init__(self, layout: Layout, memory: Device) -> None:
        self.layout, self.memory = layout, memory

    @abstractmethod
    def select(self, gradients: Sequence[torch.Tensor]) -> SparseVector:
        """What this rank sends."""

    @abstractmethod
    def start(self, selected: SparseVector) -> Request:
        """The collective, on its way."""

    @abstractmethod
    def finish(self, exchanged: Any, selected: SparseVector) -> SparseVector:
        """The mean, from what the collective brought."""

    @abstractmethod
    def give_back(self, selected: SparseVector) -> None:
        """Take back what was selected, as it was not sent after all."""


class Lossless(Exchange):
    """All of the gradient, or its entries that are not zero."""

    def __init__(
        self, layout: Layout, memory: Device, comm: Communicator, algorithm: str, precision: Any
    ) -> None:
        super().__init__(layout, memory)
        self._comm, self._algorithm = comm, algorithm
        self._precision = precision if layout.dtype not in HALF else None
        # The sum of half types could exceed their range where the mean does not.
        self._divides_first = layout.dtype in HALF

    def select(self, gradients: Sequence[torch.Tensor]) -> SparseVector:
        if self._divides_first:
            for gradient in gradients:
                gradient.div_(self._comm.size)
        if self.layout.is_dense:
            return self.memory.everything(gradients)
        return self.memory.nonzeros(gradients, self.layout.cuts)

    def start(self, selected: SparseVector) -> Request:
        return self._comm.iallreduce(selected, algorithm=self._algorithm, precision=self._precision)

    def finish(self, exchanged: Any, selected: SparseVector) -> SparseVector:
        total: SparseVector = exchanged
        return total if self._divides_first else total.divided_by(self._comm.size)

    def give_back(self, selected: SparseVector) -> None:
        """Nothing was taken away."""


class Lossy(Exchange):
    """The large entries; what is left waits in a residual."""

    def __init__(
        self, layout: Layout, memory: Device, sync: Sync, may_be_unused: bool, may_be_skipped: bool
    ) -> None:
        super().__init__(layout, memory)
        self.sync = sync
        self.state = sync.init(layout.length, memory.residual_dtype(layout.dtype))
        self._before = self.state  # the last step
        self._copies = [kept.clone() for kept in self.memories().values()] if may_be_skipped else []
        self._may_be_unused = may_be_unused
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._is_finite = True

    def select(self, gradients: Sequence[torch.Tensor]) -> SparseVector:
        self._before = self.state
        if self._copies:
            for copy, kept in zip(self._copies, self.memories().values(), strict=True):
                copy.copy_(kept)
        self._is_finite = _are_finite(gradients)
        if not self._is_finite:
            return self._not_finite(gradients)
        self._hold(gradients)
        try:
            selected, self.state = self.sync.select(self.memory.gradient(gradients), self.state)
        except BaseException:
            self._release()
            raise
        return selected

    def start(self, selected: SparseVector) -> Request:
        return self.sync.iexchange(selected, self.state)

    def finish(self, exchanged: Any, selected: SparseVector) -> SparseVector:
        total = self.sync.outcome(exchanged, selected).total
        if np.isfinite(total.values).all():
            mean, self.state = self.sync.settle(exchanged, selected, self.state)
            self._release()
            return mean
        self.give_back(selected)
        return total.divided_by(self.sync.comm.size)

    def give_back(self, selected: SparseVector) -> None:
        if self._is_finite:
            self.sync.compressor.give_back(selected, self.state.compressor)
        self._release()
        self.state = self._before

    def undo(self) -> None:
        """Forget the last step, as the optimiser does."""
        for copy, kept in zip(self._copies, self.memories().values(), strict=True):
            kept.copy_(copy)
        self.state = self._before

    def memories(self) -> dict[str, torch.Tensor]:
        """What waits, as flat tensors: the residual, and the velocity if there is momentum."""
        kept = self.state.compressor
        arrays = {"residual": kept.residual, "velocity": kept.velocity}
        return {name: self.memory.tensor(array) for name, array in arrays.items() if array is not None}

    def rescale(self, factor: float) -> None:
        """Follow a loss whose scale has changed."""
        for kept in self.memories().values():
            kept.mul_(factor)

    def facts(self) -> dict[str, Any]:
        """What else is kept: plain numbers."""
        return {
            "names": list(self.layout.names),
            "step": self.state.step,
            "inner": self.state.compressor.inner.state_dict(),
            "regions": self.state.regions and self.state.regions.to_numbers(),
        }

    def load_facts(self, facts: Mapping[str, Any]) -> None:
        """Go on from what another kept: all of it if group and method were these, else with its step."""
        kept, step = self.state.compressor, int(facts["step"])
        assert isinstance(kept.inner, StepState)
        inner, regions = replace(kept.inner, step=step), None
        if facts["names"] == self.layout.names:
            if facts["inner"].keys() == inner.state_dict().keys():
                inner = inner.load_state_dict(facts["inner"])
            regions = facts["regions"] and Regions.from_numbers(facts["regions"])
        self.state = SyncState(step, replace(kept, inner=inner), regions)

    def _hold(self, gradients: Sequence[torch.Tensor]) -> None:
        """Keep out of the step what waits for parameters that may be unused: nobody would look at it."""
        if not self._may_be_unused:
            return
        for (_, place), gradient in zip(self.layout.slices(), gradients, strict=True):
            if not gradient.any():
                for kept in self.memories().values():
                    self._held.append((kept[place], kept[place].clone()))
                    kept[place] = 0

    def _release(self) -> None:
        for place, kept in self._held:
            place += kept
        self._held = []

    def _not_finite(self, gradients: Sequence[torch.Tensor]) -> SparseVector:
        """The first of a gradient's values that are not finite: enough to tell everybody."""
        places, values = [], []
        for start, gradient in zip(self.layout.cuts, gradients, strict=False):
            here = (~torch.isfinite(gradient)).nonzero().view(-1)
            places.append(here + start)
            values.append(gradient[here])
        count = self.sync.k(self.layout.length, self.state)
        dtype = self.memories()["residual"].dtype
        found = torch.cat(places)[:count], torch.cat(values)[:count].to(dtype)
        return to_vector(self.layout.length, *found)


def _are_finite(gradients: Sequence[torch.Tensor]) -> bool:
    """One sum tells, as long as it is finite; if it is not, it may only be too large."""
    return all(
        bool(torch.isfinite(gradient.sum(dtype=torch.float32 if gradient.dtype in HALF else None)))
        or bool(torch.isfinite(gradient).all())
        for gradient in gradients
    )
