"""Signals that end a program: Ctrl-C, SIGTERM and hang-up.

A signal that is ignored when the program starts stays ignored, in the program and in its ranks.  ``nohup``
ignores SIGHUP for a program that must survive its terminal, and a shell ignores SIGINT for background jobs.
The other signals raise an exception, so that ranks, namespaces and unfinished files are cleaned up.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["HeldSignals", "held_signals", "leave_by_exception"]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def leave_by_exception() -> None:
    """From now on SIGTERM and SIGHUP raise SystemExit with 128 + their number, unless they are ignored.

    Python itself does the like for SIGINT, which raises KeyboardInterrupt.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


class HeldSignals:
    """Signals during work that must not be broken off.

    While ``holding`` is True, what the handlers of the program raise is kept for ``release``.  It becomes
    True by itself when a handler raises, so a second signal cannot break off the clean-up after the first.
    """

    def __init__(self) -> None:
        self.holding = True
        self.arrived = 0
        self._handlers = {
            number: handler for number in ENDING if callable(handler := signal.getsignal(number))
        }
        self._kept: BaseException | None = None

    def release(self) -> None:
        """Raise what was kept; later signals raise at once."""
        self.holding = False
        if self._kept is not None:
            self.holding = True
            raise self._kept

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Call the handler of the program."""
        was_holding, self.holding = self.holding, True
        self.arrived += 1
        try:
            self._handlers[number](number, frame)  # type: ignore[index]
        except BaseException as error:
            if not was_holding:
                raise
            self._kept = self._kept or error
        else:
            self.holding = was_holding

    def install(self) -> None:
        for number in self._handlers:
            signal.signal(number, self.handle)

    def uninstall(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


@contextmanager
def held_signals() -> Iterator[HeldSignals]:
    """Hold signals until ``release``, and again from ``holding = True`` to the end of the block.

    In a thread nothing is held, because Python runs handlers in the main thread alone.
    """
    held = HeldSignals()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    held.install()
    try:
        yield held
    finally:
        held.uninstall()
    held.release()
