"""The lane in which a communicator's calls run: their order, one caller at a time, and refusals.

All ranks make the same calls in the same order.  A call that this rank cannot make, because its input is
refused or because two threads call at once, still takes its place in that order: all ranks are told why.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sparsewire.choosing.choose import Key
from sparsewire.coding.call import Call
from sparsewire.communicator.collectives import Last, Plan
from sparsewire.communicator.progress import Progress
from sparsewire.communicator.request import Request
from sparsewire.drivers.protocols import Driver, Started, Traffic
from sparsewire.errors import InputError, SparsewireError, TransportError
from sparsewire.steps import Steps

__all__ = ["Lane"]

T = TypeVar("T")

TIDY_CALLS = 64
CLOSED = "this communicator was closed; sparsewire.init() makes a new one"
FORKED = "this communicator belongs to the process that this one was forked from; it cannot be used here"


class Lane:
    """Runs the plans of one rank.

    ``workers`` are the ranks that make calls.  ``tidy`` is called with a place now and then: every call
    before it has begun.
    """

    def __init__(self, driver: Driver, workers: int, timeout: float, tidy: Callable[[int], None]) -> None:
        self.timeout = timeout  # seconds, of a call that gives none
        self.last: Last | None = None
        self._driver, self._workers, self._tidy = driver, workers, tidy
        self._closed = False
        self._place = 0  # of the latest call; refused ones have a place too, so all ranks count alike
        self._waiting = 0  # calls that begin when an earlier one of their key has ended
        self._process = os.getpid()
        self._calling = threading.Lock()  # held by the thread that makes a call
        self._refused: deque[SparsewireError] = deque()  # calls that other threads made meanwhile
        self._progress: Progress | None = None  # from the first non-blocking call on
        # The last call of each key.  Weak, because it holds its result; in flight it is held by the driver.
        self._latest: weakref.WeakValueDictionary[Key, Request] = weakref.WeakValueDictionary()

    def run(self, timeout: float | None, make: Callable[..., Plan], *arguments: Any) -> Any:
        """The result of the plan that ``make(*arguments)`` makes.

        It runs in this thread if nothing is in flight, and else in the progress thread beside what is.
        """
        if Request.in_callback_of(self):
            raise InputError(
                "a blocking call in a done-callback would wait for itself; make calls in another thread"
            )
        self._enter()
        try:
            progress = self._progress
            if progress is None:
                return self._run(timeout, make, arguments)
            if progress.parked:
                with progress.turn:
                    return self._run(timeout, make, arguments)
            return self._submit(progress, timeout, make, arguments).result()
        finally:
            self._leave()

    def start(self, timeout: float | None, make: Callable[..., Plan], *arguments: Any) -> Request:
        """As ``run``, in the background."""
        self._enter()
        try:
            if self._progress is None:
                self._progress = Progress(self._driver)
            return self._submit(self._progress, timeout, make, arguments)
        finally:
            self._leave()

    def check_open(self) -> None:
        if os.getpid() != self._process:  # the thread and the connections are the parent's
            raise TransportError(FORKED)
        if self._closed:
            raise TransportError(CLOSED)

    def close(self) -> None:
        """Stop the thread and close the driver; calls that are still in flight fail."""
        if not self._closed:
            self._end(self._driver.close)

    def look(self, timeout: float | None, at: Callable[[float], T]) -> T:
        """What ``at`` makes of the driver while nothing is in flight, given the seconds it may take."""
        self._enter()
        try:
            if self._progress is None:
                return at(self._limit(timeout))
            with self._progress.turn:
                return at(self._limit(timeout))
        finally:
            self._leave()

    def leave(self, timeout: float | None, replace: Callable[[float], T]) -> T:
        """End as ``close`` does, but give the driver up to ``replace``, with the seconds it may take."""
        self.check_open()
        limit = self._limit(timeout)
        if Request.in_callback_of(self) or not self._calling.acquire(blocking=False):
            raise InputError(
                "the group cannot be changed while another thread is in a call, or in a callback"
            )
        try:
            return self._end(lambda: replace(limit))
        finally:
            self._calling.release()

    def _end(self, last: Callable[[], T]) -> T:
        self._closed = True
        if self._progress is not None:
            self._progress.close()
        try:
            return last()
        finally:
            if self._progress is not None:
                self._progress.drain()

    # -- running ---------------------------------------------------------------------------------

    def _run(self, timeout: float | None, make: Callable[..., Plan], arguments: tuple[Any, ...]) -> Any:
        self._take_place()
        try:
            plan = make(*arguments)
            limit = self._limit(timeout)
            script, call = plan.begin(self._place)
        except Exception as error:
            refusal = self._refusal(error)
            self._driver.refuse(refusal)
            raise refusal from error
        started = time.perf_counter()
        try:
            outcome, traffic = self._driver.run(script, call, limit)
        except BaseException:
            plan.fail()
            raise
        return self._finish(plan, outcome, traffic, started)

    def _submit(
        self, progress: Progress, timeout: float | None, make: Callable[..., Plan], arguments: tuple[Any, ...]
    ) -> Request:
        """Have the thread run a collective."""
        self._take_place()
        try:
            plan = make(*arguments)
            limit = self._limit(timeout)
            earlier = self._latest.get(plan.key) if plan.key else None
            begun = plan.begin(self._place) if earlier is None or earlier.done() else None
        except Exception as error:
            refusal = self._refusal(error)
            progress.submit(lambda: self._refuse(refusal))
            raise refusal from error
        request = Request(self)
        if plan.key:
            self._latest[plan.key] = request
        flight = _Flight(self, plan, limit, request, self._place)
        if begun is not None:
            progress.submit(lambda: flight.start(*begun))
        else:  # it begins when the earlier call has ended, but its place among the calls is this one
            assert earlier is not None
            self._waiting += 1
            progress.submit(flight.reserve)
            earlier.add_done_callback(lambda _: progress.submit(flight.begin))
        return request

    def _finish(self, plan: Plan, outcome: Any, traffic: Traffic, started: float) -> Any:
        result, self.last = plan.finish(outcome, traffic, time.perf_counter() - started)
        if self._driver.late is not None:  # this call has ended well, and an earlier one has not
            raise self._driver.take_late()
        return result

    def _take_place(self) -> None:
        self._place += 1
        if self._place % TIDY_CALLS == 0 and not self._waiting:
            self._tidy(self._place)

    # -- refusing --------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Let one thread in at a time: with two, ranks would not agree on the order of calls."""
        self.check_open()
        if self._driver.rank >= self._workers:
            raise InputError(
                f"rank {self._driver.rank} only aggregates: it calls serve(), and no collectives"
            )
        if not self._calling.acquire(blocking=False):
            error = self._refusal(
                InputError(
                    "two threads called this communicator at once, so their order is undefined; take turns, "
                    "use the non-blocking calls, or give each thread its own communicator with split()"
                )
            )
            self._refused.append(error)  # the other thread tells the ranks when its call has ended
            raise error

    def _leave(self) -> None:
        while self._refused:
            refused = self._refused.popleft()
            self._take_place()
            if self._progress is None:
                self._refuse(refused)
            else:
                self._progress.submit(functools.partial(self._refuse, refused))
        self._calling.release()
        if self._refused and self._calling.acquire(blocking=False):  # one came just before the release
            self._leave()

    def _refuse(self, error: SparsewireError, number: int | None = None) -> None:
        with suppress(TransportError):  # if the driver is broken, all ranks know
            self._driver.refuse(error, number)

    def _refusal(self, error: Exception) -> SparsewireError:
        """The error that all ranks raise because this one cannot take part."""
        kind = type(error) if isinstance(error, SparsewireError) else InputError
        return kind(f"rank {self._driver.rank}: {error}" if self._workers > 1 else str(error))

    def _limit(self, timeout: float | None) -> float:
        limit = self.timeout if timeout is None else timeout
        if not isinstance(limit, int | float) or not limit > 0:
            raise InputError(f"timeout is {limit!r}; it must be a positive number of seconds")
        return float(limit)


class _Flight:
    """A collective in the background.  All of its methods run in the progress thread."""

    def __init__(self, lane: Lane, plan: Plan, limit: float, request: Request, place: int) -> None:
        self._lane, self._plan, self._limit, self._request = lane, plan, limit, request
        self._place = place
        self._number: int | None = None

    def reserve(self) -> None:
        """Take the call's place in the order of calls."""
        with suppress(TransportError):  # the driver is broken, and ``start`` will say so
            self._number = self._lane._driver.reserve()

    def begin(self) -> None:
        """Start what had to wait for an earlier call."""
        self._lane._waiting -= 1
        try:
            script, call = self._plan.begin(self._place)
        except Exception as error:
            refusal = self._lane._refusal(error)
            self._lane._refuse(refusal, self._number)
            self._request.set_exception(refusal)
        else:
            self.start(script, call)

    def start(self, script: Steps[Any], call: Call) -> None:
        started = time.perf_counter()

        def end(collective: Started[Any]) -> None:
            try:
                outcome, traffic = collective.outcome()
            except BaseException as error:
                self._plan.fail()
                self._request.set_exception(error)
                return
            try:
                result = self._lane._finish(self._plan, outcome, traffic, started)
            except BaseException as error:
                self._request.set_exception(error)
            else:
                self._request.last = self._lane.last
                self._request.set_result(result)

        try:
            self._lane._driver.start(script, call, self._limit, end, self._number)
        except BaseException as error:
            if not self._request.done():
                self._request.set_exception(error)
            if not isinstance(error, SparsewireError):
                raise
