"""The thread that works on collectives in the background."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from sparsewire.drivers.protocols import Driver

__all__ = ["Progress"]

FAREWELL_S = 1.0  # how long collectives in flight may still take when the interpreter exits
LONGEST_WAIT_S = 1.0  # how long the thread waits for the network; a call that comes meanwhile ends the wait


class Progress:
    """The one thread that uses a driver while a collective is in flight; it sleeps otherwise."""

    def __init__(self, driver: Driver) -> None:
        self.turn = threading.Lock()  # whoever holds this lock may use the driver
        self._driver = driver
        self._jobs: deque[Callable[[], None]] = deque()
        self._submitting = threading.Lock()
        self._submitted = 0
        self._executed = 0
        self._settled = 0  # jobs after which nothing was in flight
        self._bell = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="sparsewire-progress", daemon=True)
        self._thread.start()
        # A thread that still runs at the end of the interpreter would crash it or hang.  Exit handlers run in
        # reverse order, so this one runs before those that the driver has registered.
        atexit.register(self.close, FAREWELL_S)

    def submit(self, job: Callable[[], None]) -> None:
        """Have the thread run this job after all earlier ones."""
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
        """Stop the thread, after waiting for at most ``farewell_s`` until nothing is in flight."""
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
        """Run the jobs that came too late for the thread.  The driver is closed by now, so they fail."""
        while self._jobs:
            self._jobs.popleft()()

    def _loop(self) -> None:
        while not self._closing:
            self._bell.wait()
            self._bell.clear()
            with self.turn:
                while not self._closing and (self._jobs or not self._driver.idle):
                    self._work()
            self._settled = self._executed

    def _work(self) -> None:
        """Run all jobs and advance what is in flight once.

        Whoever waits for a request counts on this thread, so no error ends it: all that is in flight fails.
        """
        try:
            while self._jobs:
                self._executed += 1
                self._jobs.popleft()()
            if not self._driver.idle:
                self._driver.progress(LONGEST_WAIT_S)
        except BaseException as error:
            with suppress(BaseException):  # a second error, while the first one ends all requests
                self._driver.break_down(error)
