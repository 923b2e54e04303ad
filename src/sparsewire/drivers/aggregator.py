"""The engine of a rank that only aggregates: it makes no calls, and takes part in those that others make.

The first message of a collective brings its number and its call, and starts the script here.  So calls may
come in any order and several at once, and calls that need no aggregator never come.  An aggregator has no
time-out: workers have theirs, and report it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sparsewire.coding.call import Abort, Call
from sparsewire.coding.frame import Message
from sparsewire.drivers.collective import Collective
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.protocols import Transport
from sparsewire.errors import CallMismatchError, InputError, SparsewireError, TransportError
from sparsewire.steps import Steps

__all__ = ["Server", "check_aggregators", "check_agreement", "engine_at"]

LONGEST_WAIT_S = 1.0


def check_aggregators(aggregators: int, size: int) -> None:
    """Raises InputError unless at least one rank of ``size`` is left to work."""
    if not isinstance(aggregators, int) or not 0 <= aggregators < size:
        raise InputError(
            f"aggregators is {aggregators!r} in a job of {size} ranks; it must be 0 or more, and below {size}"
        )


def check_agreement(given: Sequence[int]) -> None:
    """Raises CallMismatchError unless all ranks have given the same number of aggregators."""
    other = next((rank for rank, aggregators in enumerate(given) if aggregators != given[0]), None)
    if other is not None:
        both = (f"rank {rank} called init(aggregators={given[rank]})" for rank in (0, other))
        raise CallMismatchError(", but ".join(both))


def engine_at(rank: int, size: int, transport: Transport, aggregators: int) -> Engine:
    """The engine of a worker, or of an aggregator, which the last ``aggregators`` ranks are."""
    kind = Server if rank >= size - aggregators else Engine
    return kind(rank, size, transport, aggregators)


class Server(Engine):
    """See ``ServingDriver``.  Until it serves, it makes calls, as other engines do, to join its group."""

    _script_of: Callable[[Call], Steps[None]] | None = None
    _failure: BaseException | None = None  # of a script, if it broke more than its own collective

    def serve(self, script_of: Callable[[Call], Steps[None]]) -> None:
        self._script_of = script_of
        for number in self._backlog:
            for source, message in self._backlog.take(number):
                self._arrived(source, message)
        workers = set(range(self.size - self.aggregators))
        for worker in workers:
            self.transport.watch(worker)
        try:
            while self._broken is None and (self._flight or not workers <= self.transport.lost.keys()):
                self._step_all()
                self._poll(LONGEST_WAIT_S)
                self._answer()
        except BaseException as error:  # such as Ctrl-C
            self.break_down(error)
            raise
        if self._broken is not None:
            raise self._failure or self._broken

    def _arrived(self, source: int, message: Message) -> None:
        number = message.envelope.collective
        is_new = number not in self._flight and number not in self._abandoned
        if self._script_of is not None and is_new and not isinstance(message.payload, Abort):
            self._flight[number] = self._begin(number, message.envelope.call, source, self._script_of)
        super()._arrived(source, message)

    def _begin(
        self, number: int, call: bytes, caller: int, script_of: Callable[[Call], Steps[None]]
    ) -> Collective[None]:
        def script() -> Steps[None]:  # a call that cannot be unpacked is then an error of the collective
            yield from script_of(Call.unpack(call))

        return Collective(number, call, caller, script(), math.inf, self._ended)

    def _ended(self, collective: Collective[None]) -> None:
        error = collective.error
        if isinstance(error, TransportError) or not isinstance(error, SparsewireError):
            self._failure = self._failure or error

    def _is_to_come(self, number: int) -> bool:
        return self._script_of is None and super()._is_to_come(number)

    def _fail_late(self, number: int, error: SparsewireError) -> None:
        """Nothing to raise here: the ranks that made the call do."""
        self._abandoned.add(number)
