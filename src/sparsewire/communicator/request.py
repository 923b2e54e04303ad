"""What a non-blocking call returns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

__all__ = ["Request"]

_callbacks = threading.local()  # ``owners``: the lanes whose done-callbacks a thread runs at the moment


class Request(Future[Any]):
    """A collective in flight: a future of ``concurrent.futures`` that can also be awaited.

    It cannot be cancelled, because other ranks count on it.  Done-callbacks run in the progress thread, or in
    the thread that adds them if the collective has ended by then.  They should be short.  They must not make
    a blocking call of the same communicator: it is refused in either thread, because which of the two it is
    may differ between ranks.  What a callback raises is logged, ``sys.exit()`` included, and changes nothing.
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

        Raises TimeoutError after ``timeout`` seconds; the collective goes on, and can be waited for again.
        """
        try:
            return self.result(timeout)
        except FutureTimeoutError:
            if self.done():
                raise  # the collective's own
            raise TimeoutError(f"not ended after {timeout:g} s; it goes on") from None

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        owner = (
            self._owner
        )  # not self: an object that refers to itself lives until the garbage collector runs
        super().add_done_callback(lambda request: _call_back(owner, fn, request))

    @staticmethod
    def in_callback_of(owner: object) -> bool:
        """Does this thread run a done-callback of a request of this owner?"""
        owners = getattr(_callbacks, "owners", ())
        return bool(owners) and any(owner is one for one in owners)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


def _call_back(owner: object, fn: Callable[[Future[Any]], object], request: Future[Any]) -> None:
    before = getattr(_callbacks, "owners", ())
    _callbacks.owners = (*before, owner)
    try:
        fn(request)
    except Exception:
        raise  # ``Future`` logs it, and goes on with the next callback
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the user's Ctrl-C, which came while this thread had the callback run
        raise RuntimeError(f"a done-callback ended with {type(error).__name__}: {error}") from error
    finally:
        _callbacks.owners = before
