"""A tag after every message: it shows that the message came from the peer, unchanged and in its place.

The key belongs to one direction of one connection, and the tag covers how many messages went before.  So a
message that was changed, repeated, left out or moved has a wrong tag.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Generator, Iterable
from typing import Any

from sparsewire.coding import frame
from sparsewire.coding.frame import Message
from sparsewire.errors import WireError

__all__ = ["TAG_BYTES", "Tags", "read_tagged"]

TAG_BYTES = 16
_COUNT = struct.Struct("<Q")


class Tags:
    """The tags of one direction of a connection: the first 16 bytes of HMAC-SHA256(key, count, message)."""

    def __init__(self, key: bytes) -> None:
        self._start = hmac.new(key, digestmod="sha256")
        self._count = 0

    def begin(self) -> hmac.HMAC:
        """The tag of the next message, before the message is added to it."""
        tag = self._start.copy()
        tag.update(_COUNT.pack(self._count))
        self._count += 1
        return tag

    def of(self, buffers: Iterable[Any]) -> bytes:
        """The tag of the next message."""
        tag = self.begin()
        for buffer in buffers:
            tag.update(buffer)
        return tag.digest()[:TAG_BYTES]


def read_tagged(tags: Tags) -> Generator[memoryview, None, Message]:
    """As ``frame.read_message``, for a message with its tag; raises WireError if the tag is another one."""
    reader, expected = frame.read_message(), tags.begin()
    try:
        buffer = next(reader)
        while True:
            yield buffer
            expected.update(buffer)
            buffer = next(reader)
    except StopIteration as end:
        message: Message = end.value
    said = bytearray(TAG_BYTES)
    yield memoryview(said)
    if not hmac.compare_digest(said, expected.digest()[:TAG_BYTES]):
        raise WireError("the tag of a message is wrong: it was changed, repeated or left out on its way")
    return message
