"""What can go wrong; the type says who has to change something.

    SparsewireError
    ├── InputError                your argument is unusable; also a ValueError
    ├── CallMismatchError         the ranks did not call the same thing
    ├── MissingExtraError         an optional package is not installed; also an ImportError
    └── TransportError            the communicator is broken from here on
        ├── PeerLostError         a rank is gone
        ├── CollectiveTimeout     a rank did not come in time; also a TimeoutError
        └── WireError             bytes that are not a frame

InputError and CallMismatchError concern one call: every rank raises, and the next call works.
After a TransportError, every later call on the communicator raises as well.
"""

from __future__ import annotations

__all__ = [
    "CallMismatchError",
    "CollectiveTimeout",
    "InputError",
    "MissingExtraError",
    "PeerLostError",
    "SparsewireError",
    "TransportError",
    "WireError",
]


class SparsewireError(Exception):
    """Base of everything this library raises on purpose."""


class InputError(SparsewireError, ValueError):
    """An argument that no rank could work with."""


class CallMismatchError(SparsewireError):
    """Two ranks are in the same collective with a different length, dtype, operation or algorithm."""


class MissingExtraError(SparsewireError, ImportError):
    """An optional package is needed; the message says how to install it."""

    @classmethod
    def of(cls, package: str, extra: str) -> MissingExtraError:
        return cls(f"{package} is not installed: pip install 'sparsewire[{extra}]'")


class TransportError(SparsewireError):
    """Messages may no longer arrive; the communicator is broken."""


class PeerLostError(TransportError):
    """A rank closed its connection or died while others needed it."""


class CollectiveTimeout(TransportError, TimeoutError):  # noqa: N818  (named after TimeoutError's habit in asyncio)
    """A rank did not arrive, or did not answer, within the time-out."""


class WireError(TransportError):
    """Bytes that do not parse as a frame, or whose checksum is wrong."""
