"""Exchanges: how what the codes send becomes an answer that all ranks have.  They know no gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sparsewire.communicator.request import Request
from sparsewire.torch.codes import Sent

__all__ = ["Exchange"]


class Exchange(ABC):
    """A collective of all ranks, made anew in each step."""

    @abstractmethod
    def start(self, sent: Sent) -> Request:
        """The collective, in the background; its result is the answer for ``Code.receive``."""
