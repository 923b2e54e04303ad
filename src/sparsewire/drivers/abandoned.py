"""The collectives that failed at a rank."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Abandoned"]

# Other ranks end a collective when they hear of its failure, and many may fail in a moment.  So there are
# more than were ever in flight, and what still comes of an older one is taken for the news of a failure.
MOST = 1 << 10


class Abandoned:
    """The numbers of the latest ones, whose messages no longer matter.

    >>> abandoned = Abandoned()
    >>> abandoned.add(7)
    >>> 7 in abandoned, 8 in abandoned
    (True, False)
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[int, None] = OrderedDict()  # the first one failed first

    def add(self, number: int) -> None:
        self._numbers[number] = None
        if len(self._numbers) > MOST:  # or a program that goes on after errors would fill the memory
            self._numbers.popitem(last=False)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)
