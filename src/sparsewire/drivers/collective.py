"""One collective at one rank, from its start to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sparsewire.drivers.execution import Execution
from sparsewire.drivers.protocols import Outgoing, Traffic
from sparsewire.errors import SparsewireError
from sparsewire.steps import Steps

__all__ = ["Collective"]

T = TypeVar("T")


class Collective(Generic[T]):
    """A script in flight, its call, and how it ended."""

    def __init__(
        self,
        number: int,
        call: bytes,
        caller: int,
        script: Steps[T],
        timeout: float,
        on_end: Callable[[Collective[Any]], None],
    ) -> None:
        self.number = number
        self.call = call
        self.caller = caller  # the rank whose call that is
        self.execution = Execution(script)
        self.timeout = timeout
        self.since = time.monotonic()  # when this rank began to wait, or came back from an absence
        self.deadline = self.since + timeout
        self.on_end = on_end
        self.traffic = Traffic()
        self.unsent: list[Outgoing] = []
        self.failure: SparsewireError | None = None  # why it has to end, once known
        self.told = False  # did another rank report the failure?
        self.ended = False
        self.error: BaseException | None = None

    def outcome(self) -> tuple[T, Traffic]:
        """The script's result and what it moved, or the error, once it has ended."""
        if self.error is not None:
            raise self.error
        return self.execution.result, self.traffic

    def awaited(self, rank: int, size: int) -> set[int]:
        """The ranks that this rank is waiting for."""
        sources = self.execution.waiting_for
        if sources is None:  # it may be a message from any rank, so none may be missing
            sources = set(range(size)) - {rank}
        return sources | {outgoing.peer for outgoing in self.unsent}

    def fail(self, error: SparsewireError, told: bool = False) -> None:
        """Remember the first failure; the next step of this collective is its last."""
        if self.failure is None:
            self.failure, self.told = error, told
