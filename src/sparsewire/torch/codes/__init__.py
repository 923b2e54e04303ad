"""Codes: ways to say the gradients of a group.  One file each, and the same four verbs.

    kept         what stays at this rank from step to step
    send         what is sent of a step's gradients
    receive      the mean, from what the exchange answered
    give_back    what was to be sent and was not

A code knows no device and no exchange: it is given a ``Device`` to read gradients with, and it returns what
is to be exchanged as data.

Where some rank's gradient, or the sum, is not finite, every rank receives what is not finite, and keeps what
it wanted to send.  So a GradScaler skips the step on all ranks, and the whole step is undone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from sparsewire.sync import SyncState

__all__ = ["Code", "Sent"]


class Sent(NamedTuple):
    """What a code sends in one step, and what the exchange has to know about it."""

    content: Any  # a vector, an array or a tensor
    name: str = ""  # the same for steps that are alike: the exchange may learn from earlier ones
    is_full: bool = False  # most values of the sum will not be zero
    state: SyncState | None = None  # of a selection: the step, regions, and the residual that rounding feeds


class Code(ABC):
    """One way to say the gradients of a group; gradients are flat tensors."""

    def __init__(self) -> None:
        self._copies: list[torch.Tensor] = []  # of what was kept before the step

    @abstractmethod
    def kept(self) -> dict[str, torch.Tensor]:
        """What is kept from step to step, as flat tensors that may be written to."""

    @abstractmethod
    def send(self, gradients: Sequence[torch.Tensor]) -> Sent:
        """What this rank sends."""

    @abstractmethod
    def receive(self, answer: Any, sent: Sent) -> Any:
        """The mean over all ranks, from the answer of the exchange."""

    @abstractmethod
    def give_back(self, sent: Sent) -> None:
        """Keep what was to be sent, because the exchange failed."""

    # -- what is kept ----------------------------------------------------------------------------

    def remember(self) -> None:
        """Copy what is kept, so that the step can be undone."""
        self._copies = [tensor.clone() for tensor in self.kept().values()]

    def undo(self) -> None:
        """Return to what was remembered, because the optimiser skips the step."""
        for tensor, copy in zip(self.kept().values(), self._copies, strict=True):
            tensor.copy_(copy)

    def rescale(self, factor: float) -> None:
        """Follow a loss whose scale has changed."""
        for tensor in self.kept().values():
            tensor.mul_(factor)

    def facts(self) -> dict[str, Any] | None:
        """What else a checkpoint needs, as plain numbers and names; None if nothing."""
        return None

    def load_facts(self, facts: Mapping[str, Any]) -> None:
        """Continue from the facts of a checkpoint; only codes that have facts are given any."""
        raise NotImplementedError
