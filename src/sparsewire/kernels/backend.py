"""Which version of the kernels runs: numpy's (`reference`), or a compiled one for an instruction set.

``active`` is the module whose functions are called next: `reference`, or the extension module ``_compiled``.
Both have the same functions with the same arguments, so a type checker knows both by the types of the
reference.  The functions are given the memory for their results; the modules of the families make it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparsewire.kernels import reference

if TYPE_CHECKING:
    from sparsewire.kernels import reference as active

__all__ = ["active", "active_isa", "available_isas", "use_isa"]

_active_isa: str
_isas: tuple[str, ...] = ("reference",)
_compiled: Any = None


def available_isas() -> tuple[str, ...]:
    """The names of the versions that run on this machine, the slowest first."""
    return _isas


def active_isa() -> str:
    """The name of the version that the next call uses."""
    return _active_isa


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Use another version inside the block, in all threads.

    >>> with use_isa("reference"):
    ...     active_isa()
    'reference'
    """
    previous = active_isa()
    _force(name)
    try:
        yield
    finally:
        _force(previous)


def _force(name: str) -> None:
    global active, _active_isa
    if name not in _isas:
        raise ValueError(f"no kernels named {name!r} here; there are {', '.join(_isas)}")
    if name == "reference":
        active = reference
    else:
        _compiled.force_isa(name)
        active = _compiled
    _active_isa = name


try:
    from sparsewire.kernels import _compiled  # type: ignore[attr-defined,no-redef]
except ImportError as reason:
    if os.environ.get("SPARSEWIRE_ISA") != "reference":
        warnings.warn(
            f"sparsewire was installed without its compiled kernels: sums and selections are slow ({reason})",
            RuntimeWarning,
            stacklevel=2,
        )
else:
    _isas = ("reference", *_compiled.available_isas())
_force(os.environ.get("SPARSEWIRE_ISA") or _isas[-1])
