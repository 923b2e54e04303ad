"""Says whom a rank waits for while a group comes together, long before its time-out does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["announced"]

FIRST_S = 5.0  # until it says so; every later time takes twice as long as the one before

_log = logging.getLogger("sparsewire")  # which writes warnings to stderr, unless the program says otherwise


@contextmanager
def announced(rank: int, whom: Callable[[], str]) -> Iterator[None]:
    """Log, from time to time, for whom this rank is waiting inside; ``whom`` is called in another thread."""
    ended, since = threading.Event(), time.monotonic()

    def watch() -> None:
        pause = FIRST_S
        while not ended.wait(pause):
            pause *= 2
            with suppress(Exception):  # a message less is no reason to fail
                _log.warning("rank %d has waited %.0f s for %s", rank, time.monotonic() - since, whom())

    threading.Thread(target=watch, name="sparsewire-waiting", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
