"""What a non-blocking call returns, and the thread that works on it meanwhile."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from sparsewire.drivers.protocols import Driver

__all__ = ["Progress", "Request"]

FAREWELL_S = 1.0  # at exit: how long what is in flight may take to end
LONGEST_WAIT_S = 1.0  # for the network; a call that comes meanwhile ends the wait


_callbacks = threading.local()  # whose callbacks a thread runs


class Request(Future[Any]):
    """A collective in flight: a future of ``concurrent.futures`` that can also be awaited.

    It cannot be cancelled, because other ranks count on it.  Done-callbacks run in the thread that works on
    the collectives, or in the one that adds them if it has ended by then; they should be short, and a
    blocking collective of the same communicator is refused in either thread: on another rank it may be the
    other one.
    """

    def __init__(self, owner: object) -> None:
        super().__init__()
        self._owner = owner
        self.last: Any = None  # what the collective did, as ``Communicator.last``, once it has ended well
        self.set_running_or_notify_cancel()

    def test(self) -> bool:
        """Has it ended, well or not?"""
        return self.done()

    def wait(self, timeout: float | None = None) -> Any:
        """What the blocking call returns or raises.

        TimeoutError after ``timeout`` seconds; the collective goes on, and can be waited for again.
        """
        try:
            return self.result(timeout)
        except FutureTimeoutError:
            if self.done():
                raise  # the collective's own
            raise TimeoutError(f"not ended after {timeout:g} s; it goes on") from None

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        owner = self._owner  # not self: what refers to itself stays until the garbage collector comes by
        super().add_done_callback(lambda request: _call_back(owner, fn, request))

    @staticmethod
    def in_callback_of(owner: object) -> bool:
        """Does this thread run a done-callback of one of its requests?"""
        return any(owner is one for one in getattr(_callbacks, "owners", ()))

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


def _call_back(owner: object, fn: Callable[[Future[Any]], object], request: Future[Any]) -> None:
    before = getattr(_callbacks, "owners", ())
    _callbacks.owners = (*before, owner)
    try:
        fn(request)
    finally:
        _callbacks.owners = before


class Progress:
    """The one thread that is inside a driver while something is in flight; it sleeps otherwise."""

    def __init__(self, driver: Driver) -> None:
        self.turn = threading.Lock()  # whoever holds it may use the driver
        self._driver = driver
        self._jobs: deque[Callable[[], None]] = deque()
        self._submitting = threading.Lock()
        self._submitted = 0
        self._settled = 0  # jobs after which nothing was in flight
        self._bell = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="sparsewire-progress", daemon=True)
        self._thread.start()
        # A thread that still runs when the interpreter goes would crash it or hang.  Registered here, this
        # runs before the exit handlers of the driver.
        atexit.register(self.close, FAREWELL_S)

    def submit(self, job: Callable[[], None]) -> None:
        """Have the thread run this, after what was submitted before."""
        with self._submitting:
            self._submitted += 1
            self._jobs.append(job)
        self._bell.set()
        self._driver.wake()

    @property
    def parked(self) -> bool:
        """Is nothing in flight, and the driver free for another thread's turn?"""
        return self._settled == self._submitted

    @property
    def is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self, farewell_s: float = 0.0) -> None:
        """Stop the thread, after waiting for a moment until nothing is in flight."""
        end = time.monotonic() + farewell_s
        while not self.parked and time.monotonic() < end:
            time.sleep(0.005)
        self._closing = True
        self._bell.set()
        self._driver.wake()
        if not self.is_this_thread:
            self._thread.join()
        atexit.unregister(self.close)

    def drain(self) -> None:
        """Run what was submitted too late for the thread: now that the driver is closed, it fails."""
        while self._jobs:
            self._jobs.popleft()()

    def _loop(self) -> None:
        executed = 0
        while not self._closing:
            self._bell.wait()
            self._bell.clear()
            with self.turn:
                while not self._closing and (self._jobs or not self._driver.idle):
                    while self._jobs:
                        self._jobs.popleft()()
                        executed += 1
                    if not self._driver.idle:
                        self._driver.progress(LONGEST_WAIT_S)
            self._settled = executed
