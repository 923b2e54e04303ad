"""Which parameters are exchanged together: groups of our own, not DDP's buckets.

DDP makes its buckets anew after the first step, and a process that continues from a checkpoint begins with
other buckets than it had.  Groups follow from the model and the options alone, so what is selected from, the
order of sums and every saved state mean the same at all times.  A group is exchanged when its last gradient
is ready; the last parameters of the model come first, as in backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from sparsewire.errors import InputError

__all__ = ["Group", "Selection", "group_parameters"]


@dataclass(frozen=True)
class Selection:
    """Which parameters are compressed: those whose name matches a pattern, from a size on."""

    patterns: Sequence[str]
    min_size: int

    def __post_init__(self) -> None:
        if self.min_size < 0:
            raise InputError(f"min_size is {self.min_size}; it is a number of values, 0 for every parameter")

    def includes(self, name: str, parameter: torch.Tensor) -> bool:
        return parameter.numel() >= self.min_size and any(
            fnmatchcase(name, pattern) for pattern in self.patterns
        )

    def check_patterns(self, names: Iterable[str]) -> None:
        """Refuse a pattern that no name matches."""
        names = list(names)
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InputError(
                    f"no parameter is called like {pattern!r}; they are {', '.join(names[:5])}"
                    + (f" and {len(names) - 5} more" if len(names) > 5 else "")
                )


@dataclass
class Group:
    """Parameters that lie one after the other in one vector."""

    is_dense: bool
    dtype: torch.dtype
    device: torch.device
    names: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])  # of each parameter, and of the end

    @property
    def length(self) -> int:
        return self.offsets[-1]

    @property
    def nbytes(self) -> int:
        return self.length * int(self.dtype.itemsize)

    def append(self, name: str, count: int) -> None:
        self.names.append(name)
        self.offsets.append(self.length + count)

    def slices(self) -> Iterable[tuple[str, slice]]:
        """Each parameter's name and its range of the vector."""
        return ((name, slice(*self.offsets[place : place + 2])) for place, name in enumerate(self.names))


def group_parameters(
    parameters: Iterable[tuple[str, torch.Tensor]], selection: Selection, group_bytes: int
) -> list[Group]:
    """All parameters in groups of about ``group_bytes`` or more, each of one type and device."""
    if group_bytes < 1:
        raise InputError(f"group_bytes is {group_bytes}; it is the size of a group, such as 16 << 20")
    kinds: dict[tuple[bool, torch.dtype, torch.device], list[tuple[str, int]]] = {}
    for name, parameter in reversed(list(parameters)):
        kind = (not selection.includes(name, parameter), parameter.dtype, parameter.device)
        kinds.setdefault(kind, []).append((name, parameter.numel()))
    return [group for kind, members in kinds.items() for group in _groups(Group(*kind), members, group_bytes)]


def _groups(group: Group, members: Sequence[tuple[str, int]], group_bytes: int) -> Iterator[Group]:
    """The members of one kind in groups.  What remains joins the last group if it would make a small one."""
    remaining = sum(count for _, count in members) * group.dtype.itemsize
    kind = group.is_dense, group.dtype, group.device
    for name, count in members:
        if group.nbytes >= group_bytes and remaining >= group_bytes / 2:
            yield group
            group = Group(*kind)
        group.append(name, count)
        remaining -= count * group.dtype.itemsize
    yield group
