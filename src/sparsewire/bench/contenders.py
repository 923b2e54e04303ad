"""Our own algorithms as contenders: over a communicator, and all ranks in one process.

A dense algorithm gets the dense array, ready made: nobody who calls it would hold a sparse vector.
`auto` gets whichever is smaller.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sparsewire import SparseVector
from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.cases import Case, Values, make_input
from sparsewire.bench.timing import Moved
from sparsewire.communicator import Communicator
from sparsewire.drivers import local
from sparsewire.drivers._base import Traffic
from sparsewire.errors import InputError

__all__ = [
    "Allreduce",
    "Alone",
    "LocalAllreduce",
    "Together",
    "as_array",
    "choose_algorithms",
    "choose_sparse_algorithms",
    "input_vector",
]


def choose_algorithms(text: str, driver: str) -> list[str]:
    """The names in ``a,b,c``, checked; "all" is the whole table, and what "auto" makes of it."""
    known = (
        [*ALGORITHMS, "auto"] if driver in ("tcp", "mpi") else list(ALGORITHMS)
    )  # auto is the communicator's
    if text == "all":
        return known
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InputError(f"unknown algorithm {', '.join(unknown) or text}; known are {', '.join(known)}")
    return names


def choose_sparse_algorithms(text: str) -> list[str]:
    """As ``choose_algorithms``, without those whose cost does not depend on zeros."""
    names = [name for name in choose_algorithms(text, "tcp") if not _is_dense(name)]
    if not names:
        raise InputError(f"{text} has no sparse algorithm")
    return names


class Allreduce:
    """One algorithm over a communicator."""

    def __init__(self, algorithm: str, comm: Communicator, sparse: SparseVector, dense: Values) -> None:
        self.name = algorithm
        self._comm = comm
        takes_dense = dense.nbytes <= sparse.nbytes if algorithm == "auto" else _is_dense(algorithm)
        self._input = dense if takes_dense else sparse
        # As a user names a tensor: `auto` need not ask the other ranks once it knows the last call's facts.
        self._key = f"{sparse.length} {sparse.nnz}" if algorithm == "auto" else None
        self._result: Any = None

    def prepare(self) -> None:
        """The input is not written to."""

    def run(self) -> None:
        self._result = self._comm.allreduce(self._input, algorithm=self.name, name=self._key)

    def moved(self) -> Moved:
        last = self._comm.last
        assert last is not None
        return Moved(last.bytes_sent, last.bytes_received, last.messages_sent, last.algorithm)

    def results(self) -> Iterable[Values]:
        yield as_array(self._result)


class LocalAllreduce:
    """One algorithm with all ranks in this process: the time is what all ranks compute, one after another."""

    def __init__(self, algorithm: str, inputs: Sequence[SparseVector]) -> None:
        self.name = algorithm
        self._inputs = [vector.as_dense() for vector in inputs] if _is_dense(algorithm) else inputs
        self._results: list[SparseVector] = []
        self._traffic: list[Traffic] = []

    def prepare(self) -> None:
        """The inputs are not written to."""

    def run(self) -> None:
        size, script = len(self._inputs), ALGORITHMS[self.name].run
        self._results, self._traffic = local.run([script(r, size, v) for r, v in enumerate(self._inputs)])

    def moved(self) -> Moved:
        return Moved(
            bytes_sent=max(traffic.bytes_sent for traffic in self._traffic),
            bytes_received=max(traffic.bytes_received for traffic in self._traffic),
            messages=max(traffic.messages_sent for traffic in self._traffic),
            algorithm=self.name,
        )

    def results(self) -> Iterable[Values]:
        yield from map(as_array, self._results)


class Together:
    """The other ranks, over the communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.barrier = comm.barrier

    def agree(self, numbers: Sequence[int]) -> list[int]:
        agreed = self._comm.broadcast(np.array(numbers, np.int64), root=0)
        return [int(number) for number in as_array(agreed)]

    def gather(self, said: Any) -> list[Any]:
        """What every rank says, in rank order; anything that JSON can carry."""
        text = json.dumps(said).encode()
        padded = text.ljust(-(-len(text) // 8) * 8)  # whole int64s
        everybody = self._comm.allgather(np.frombuffer(padded, np.int64))
        return [json.loads(as_array(one).tobytes()) for one in everybody]


class Alone:
    """No other process."""

    def barrier(self) -> None:
        """Nobody to wait for."""

    def agree(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)


def input_vector(case: Case, rank: int) -> SparseVector:
    """Rank ``rank``'s input as the library wants it."""
    return SparseVector(case.length, *make_input(case, rank))


def _is_dense(algorithm: str) -> bool:
    return algorithm in ALGORITHMS and ALGORITHMS[algorithm].dense


def as_array(result: Any) -> Values:
    """A result as a dense array, whatever kind the input was."""
    return result.to_dense() if isinstance(result, SparseVector) else np.asarray(result)
