"""Agreement of all ranks on facts that are too small and too mixed to be a vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparsewire.communicator import Communicator
from sparsewire.drivers import note
from sparsewire.errors import InputError

__all__ = ["check_alike", "gather", "refused_by_all"]


def gather(comm: Communicator, said: Any) -> list[Any]:
    """What every rank says, in rank order; anything that JSON can carry.

    >>> import sparsewire as sw
    >>> gather(sw.init(), {"rows": 3})
    [{'rows': 3}]
    """
    everybody = comm.allgather(note.to_vector(said))
    return [note.from_vector(rank, one) for rank, one in enumerate(everybody)]


def check_alike(everybody: Sequence[dict[str, Any]]) -> None:
    """Raise the same error on every rank if a rank said something else than rank 0."""
    first = everybody[0]
    for rank, said in enumerate(everybody):
        for name in first | said:
            if said.get(name) != first.get(name):
                raise InputError(
                    f"the {name} must be the same on every rank: "
                    f"it is {first.get(name)} on rank 0 and {said.get(name)} on rank {rank}"
                )


@contextmanager
def refused_by_all(comm: Communicator | None) -> Iterator[None]:
    """An error inside on one rank is raised on all ranks, in their next collective."""
    try:
        yield
    except Exception as error:
        if comm is None:
            raise
        comm.refuse(error)
