"""What other ranks are told when this process ends and has not closed its part of a group."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Protocol

__all__ = ["expect"]


class Member(Protocol):
    """What can leave a group."""

    def close(self, why: str) -> None:
        """Leave, and tell the others why."""


_members: weakref.WeakSet[Member] = weakref.WeakSet()
_process = 0  # a fork inherits the others' members, and must not speak for them


def expect(member: Member) -> None:
    """Have the member say farewell at the end of this process, unless it has closed by then."""
    global _process
    _process = os.getpid()
    _members.add(member)


@atexit.register  # at the first import, so it runs after the exit handlers that let collectives end
def _close_all() -> None:
    if os.getpid() == _process:
        for member in [*_members]:
            member.close(_reason())


def _reason() -> str:
    error = getattr(sys, "last_value", None)  # the interpreter keeps the exception that ends a program
    if error is None or hasattr(sys, "ps1"):  # at a prompt, it is just the last mistake
        return "it exited"
    return f"it ended with {type(error).__name__}: {error}"
