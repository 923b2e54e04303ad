"""The largest entries of a gradient; the others wait in a residual (error feedback)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparsewire.algorithms import Regions
from sparsewire.compress.state import StepState
from sparsewire.sync import Sync, SyncState
from sparsewire.torch.codes import Code, Sent
from sparsewire.torch.device import Device
from sparsewire.torch.group import Group
from sparsewire.vector import SparseVector

__all__ = ["RESIDUAL", "LargestEntries"]

RESIDUAL = "residual"  # the name under which each rank keeps what it has not sent yet


class LargestEntries(Code):
    """What ``Sync`` selects, one by one or in blocks, and what it makes of the sum.

    Parameters that a step may leave unused have a gradient of zero then.  What waits for them would be
    selected and applied by no optimiser, so it takes no part in such a step if ``may_be_unused``.
    """

    def __init__(self, group: Group, device: Device, sync: Sync, may_be_unused: bool) -> None:
        super().__init__()
        self._group, self._device, self._sync = group, device, sync
        self._state = sync.init(group.length, device.residual_dtype(group.dtype))
        self._state_before = self._state  # the last step
        self._may_be_unused = may_be_unused
        self._set_aside: list[tuple[torch.Tensor, torch.Tensor]] = []  # a range, and what waited there

    def kept(self) -> dict[str, torch.Tensor]:
        feedback = self._state.compressor
        arrays = {RESIDUAL: feedback.residual, "velocity": feedback.velocity}
        return {name: self._device.as_tensor(array) for name, array in arrays.items() if array is not None}

    def send(self, gradients: Sequence[torch.Tensor]) -> Sent:
        self._state_before = self._state
        self._set_unused_aside(gradients)
        try:
            selected, self._state = self._sync.select(self._device.widened(gradients), self._state)
        except BaseException:
            self._restore_unused()
            raise
        # A value that is not finite counts as the largest, so if there is one it was selected.
        if not np.isfinite(selected.values).all():
            for tensor in self.kept().values():
                tensor.nan_to_num_(0, 0, 0)
        return Sent(selected, state=self._state)

    def receive(self, answer: Any, sent: Sent) -> SparseVector:
        total = self._sync.outcome(answer, sent.content).total
        if np.isfinite(total.values).all():
            mean, self._state = self._sync.settle(answer, sent.content, self._state)
            self._restore_unused()
            return mean
        self.give_back(sent)
        return total.divided_by(self._sync.comm.size)

    def give_back(self, sent: Sent) -> None:
        selected: SparseVector = sent.content
        finite = np.where(np.isfinite(selected.values), selected.values, selected.dtype.type(0))
        self._sync.compressor.give_back(selected.with_values(finite), self._state.compressor)
        self._restore_unused()
        self._state = self._state_before

    def undo(self) -> None:
        super().undo()
        self._state = self._state_before

    def facts(self) -> dict[str, Any]:
        regions = self._state.regions
        return {
            "names": list(self._group.names),
            "step": self._state.step,
            "inner": self._state.compressor.inner.state_dict(),
            "regions": regions and regions.to_numbers(),
        }

    def load_facts(self, facts: Mapping[str, Any]) -> None:
        """Continue from the facts of a group; if it was another group or method, from its step alone."""
        kept, step = self._state.compressor, int(facts["step"])
        assert isinstance(kept.inner, StepState)
        inner, regions = replace(kept.inner, step=step), None
        if facts["names"] == self._group.names:
            if facts["inner"].keys() == inner.state_dict().keys():
                inner = inner.load_state_dict(facts["inner"])
            regions = facts["regions"] and Regions.from_numbers(facts["regions"])
        self._state = SyncState(step, replace(kept, inner=inner), regions)

    def _set_unused_aside(self, gradients: Sequence[torch.Tensor]) -> None:
        if not self._may_be_unused:
            return
        for (_, place), gradient in zip(self._group.slices(), gradients, strict=True):
            if not gradient.any():
                for tensor in self.kept().values():
                    self._set_aside.append((tensor[place], tensor[place].clone()))
                    tensor[place] = 0

    def _restore_unused(self) -> None:
        for place, waited in self._set_aside:
            place += waited
        self._set_aside = []
