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
from sparsewire.communicator.request import Request
from sparsewire.compress.base import StepState
from sparsewire.sync import Sync, SyncState
from sparsewire.torch.device import HALF, Device
from sparsewire.torch.group import Layout
from sparsewire.vector import SparseVector

__all__ = ["COMMON", "Exchange", "Lossless", "Lossy"]

COMMON = "mean_velocity"  # the one kind of memory that is the same on all ranks


class Exchange(ABC):
    """The mean of one group's gradients over all ranks, in three phases; gradients are flat tensors."""

    def __init__(self, layout: Layout, memory: Device, may_be_skipped: bool) -> None:
        self.layout, self.memory = layout, memory
        self._may_be_skipped = may_be_skipped
        self._copies: list[torch.Tensor] = []  # of what was kept before the step

    @abstractmethod
    def memories(self) -> dict[str, torch.Tensor]:
        """What is kept from step to step, as flat tensors."""

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

    def remember(self) -> None:
        """Copy what is kept, if the step may have to be undone."""
        if self._may_be_skipped:
            self._copies = [kept.clone() for kept in self.memories().values()]

    def undo(self) -> None:
        """Forget the last step, as the optimiser does."""
        for kept, copy in zip(self.memories().values(), self._copies, strict=True):
            kept.copy_(copy)

    def rescale(self, factor: float) -> None:
        """Follow a loss whose scale has changed."""
        for kept in self.memories().values():
            kept.mul_(factor)


class Lossless(Exchange):
    """All of the gradient, or its entries that are not zero.

    With momentum, what it makes of the means instead: parameters that go densely beside others that have
    momentum correction must not do without.
    """

    def __init__(
        self,
        layout: Layout,
        memory: Device,
        may_be_skipped: bool,
        comm: Communicator,
        dense_algorithm: str,
        precision: Any,
        momentum: float,
    ) -> None:
        super().__init__(layout, memory, may_be_skipped)
        self._comm, self._dense_algorithm, self._momentum = comm, dense_algorithm, momentum
        self._is_full = layout.is_dense  # were most values of the last mean not zero?
        self._velocity = np.zeros(layout.length if momentum else 0, memory.residual_dtype(layout.dtype))
        self._precision = precision if layout.dtype not in HALF else None
        # The sum of half types could exceed their range where the mean does not.
        self._divides_first = layout.dtype in HALF

    def select(self, gradients: Sequence[torch.Tensor]) -> SparseVector:
        self.remember()
        if self._divides_first:
            for gradient in gradients:
                gradient.div_(self._comm.size)
        if self.layout.is_dense:
            return self.memory.everything(gradients)
        return self.memory.nonzeros(gradients, self.layout.cuts)

    def start(self, selected: SparseVector) -> Request:
        if self._is_full:
            return self._comm.iallreduce(selected, algorithm=self._dense_algorithm, precision=self._precision)
        # In rank order all have the same bits, whatever a process knows that goes on from a checkpoint.
        name = self.layout.names[0]
        return self._comm.iallreduce(selected, name=name, in_rank_order=True, precision=self._precision)

    def finish(self, exchanged: Any, selected: SparseVector) -> SparseVector:
        total: SparseVector = exchanged
        self._is_full = self.layout.is_dense or total.is_dense
        mean = total if self._divides_first else total.divided_by(self._comm.size)
        if not self._momentum or not np.isfinite(mean.values).all():
            return mean
        self._velocity *= self._momentum
        self._velocity += mean.to_dense()
        return SparseVector.from_dense(self._velocity)

    def memories(self) -> dict[str, torch.Tensor]:
        return {COMMON: torch.from_numpy(self._velocity)} if self._momentum else {}

    def give_back(self, selected: SparseVector) -> None:
        """Nothing was taken away."""


class Lossy(Exchange):
    """The large entries; what is left waits in a residual."""

    def __init__(
        self, layout: Layout, memory: Device, may_be_skipped: bool, sync: Sync, may_be_unused: bool
    ) -> None:
        super().__init__(layout, memory, may_be_skipped)
        self.sync = sync
        self.state = sync.init(layout.length, memory.residual_dtype(layout.dtype))
        self._before = self.state  # the last step
        self._may_be_unused = may_be_unused
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []

    def select(self, gradients: Sequence[torch.Tensor]) -> SparseVector:
        self._before = self.state
        self.remember()
        self._hold(gradients)
        try:
            selected, self.state = self.sync.select(self.memory.gradient(gradients), self.state)
        except BaseException:
            self._release()
            raise
        if not np.isfinite(selected.values).all():  # these are the largest: if there is any, it is among them
            for kept in self.memories().values():
                kept.nan_to_num_(0, 0, 0)
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
        finite = np.where(np.isfinite(selected.values), selected.values, selected.dtype.type(0))
        self.sync.compressor.give_back(selected.with_values(finite), self.state.compressor)
        self._release()
        self.state = self._before

    def undo(self) -> None:
        super().undo()
        self.state = self._before

    def memories(self) -> dict[str, torch.Tensor]:
        kept = self.state.compressor
        arrays = {"residual": kept.residual, "velocity": kept.velocity}
        return {name: self.memory.tensor(array) for name, array in arrays.items() if array is not None}

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
