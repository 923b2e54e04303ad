"""What a compressor knows from one step to the next, and how a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from sparsewire.errors import InputError
from sparsewire.vector import Array

__all__ = ["State", "StepState"]

S = TypeVar("S", bound="State")


@dataclass(frozen=True)
class State:
    """Numbers, arrays, and the states of wrapped compressors."""

    def state_dict(self) -> dict[str, Any]:
        """A copy as a plain dict of numbers, None, arrays and further such dicts."""
        return {field.name: _saved(getattr(self, field.name)) for field in fields(self)}

    def load_state_dict(self: S, saved: Mapping[str, Any]) -> S:
        """A state of this kind with the content that was saved; arrays are copied."""
        expected = [field.name for field in fields(self)]
        if not isinstance(saved, Mapping):
            raise InputError(
                f"{type(self).__name__} is saved as a dict, and this is a {type(saved).__name__}"
            )
        if saved.keys() != set(expected):
            raise InputError(f"{type(self).__name__} has {_listed(expected)}, but {_listed(saved)} was saved")
        return replace(self, **{name: _loaded(name, getattr(self, name), saved[name]) for name in expected})


@dataclass(frozen=True)
class StepState(State):
    """The number of the next step; some compressors need nothing else."""

    step: int = 0


def _saved(content: Any) -> Any:
    if isinstance(content, State):
        return content.state_dict()
    return content.copy() if isinstance(content, np.ndarray) else content


def _loaded(name: str, present: Any, saved: Any) -> Any:
    """What was saved, if it has the kind and shape of what is present."""
    if isinstance(present, State):
        if not isinstance(saved, Mapping):
            raise InputError(f"{name} is a {type(present).__name__}, but {_described(saved)} was saved")
        return present.load_state_dict(saved)
    if isinstance(present, np.ndarray):
        return _loaded_array(name, present, saved)
    number = saved.item() if isinstance(saved, np.ndarray) and saved.ndim == 0 else saved
    expected = Integral if isinstance(present, int) else (Real, type(None))
    if not isinstance(number, expected):
        raise InputError(f"{name} is {_described(present)}, but {_described(saved)} was saved")
    return number


def _loaded_array(name: str, present: Array, saved: Any) -> Array:
    if isinstance(saved, np.ndarray) and saved.dtype == f"V{present.itemsize}":
        saved = saved.view(present.dtype)  # np.load returns bfloat16 values as bytes
    if not isinstance(saved, np.ndarray) or (saved.shape, saved.dtype) != (present.shape, present.dtype):
        raise InputError(f"{name} is {_described(present)}, but {_described(saved)} was saved")
    return saved.copy()


def _described(content: Any) -> str:
    if isinstance(content, np.ndarray):
        return f"an array of {content.size:,} {content.dtype} values"
    return repr(content)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"
