"""Our algorithms as contenders: over a communicator, and with all ranks in one process.

A dense algorithm gets a dense array that is made in advance, because its users do not hold sparse vectors.
Each algorithm runs in every precision that is asked for:

    exact      what the library does by default: indices are coded where that pays
    coo        indices are never coded
    float16, bfloat16, qsgd2, qsgd4, qsgd8    values are rounded
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.harness import variants
from sparsewire.bench.harness.clock import Contender, Moved
from sparsewire.bench.harness.problem import Case, Values, make_input
from sparsewire.coding.values import PRECISIONS, precision_of
from sparsewire.communicator import Communicator
from sparsewire.cost import CostFigures
from sparsewire.drivers import local
from sparsewire.drivers.protocols import Traffic
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector, value_dtype

LOSSLESS = ("exact", "coo")


class Configuration(NamedTuple):
    """An algorithm in a precision."""

    algorithm: str
    precision: str = "exact"

    def __str__(self) -> str:
        return self.algorithm if self.precision == "exact" else f"{self.algorithm} {self.precision}"


def configurations(
    algorithms: Sequence[str], precisions: Sequence[str], driver: str = "tcp"
) -> tuple[list[Configuration], dict[str, str]]:
    """Every algorithm in every precision, and those that cannot run with the reason."""
    every = [Configuration(algorithm, precision) for algorithm in algorithms for precision in precisions]
    skipped = {one: reason for one in every if (reason := _reason_to_skip(one, driver))}
    if len(skipped) == len(every):
        raise InputError("; ".join(f"{one} cannot run: {reason}" for one, reason in skipped.items()))
    running = [one for one in every if one not in skipped]
    return running, {str(one): reason for one, reason in skipped.items()}


def _reason_to_skip(configuration: Configuration, driver: str) -> str | None:
    algorithm, precision = configuration
    if precision == "coo" and driver == "local":
        return "nothing travels with --driver local, so that it would be the same as exact"
    if precision == "coo" and algorithm == variants.DEDICATED:
        return "a group that does not code has no dedicated aggregators"
    if precision in LOSSLESS or algorithm == "auto" or variants.supports_precision(algorithm):
        return None
    return "it adds up in many places, and would round in each"


# ---- names on the command line --------------------------------------------------------------------


def choose_names(text: str, what: str, known: Sequence[str]) -> list[str]:
    """The names in ``a,b,c``, all of which must be known."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InputError(f"unknown {what} {', '.join(unknown) or text}; known are {', '.join(known)}")
    return names


def choose_precisions(text: str, dtype: str) -> list[str]:
    """The names in ``a,b,c``, which must be known and suit the type of the values."""
    names = choose_names(text, "precision", [*LOSSLESS, *PRECISIONS])
    for name in names:
        if name not in LOSSLESS:
            precision_of(name, value_dtype(dtype), "sum")
    return names


def choose_algorithms(text: str, driver: str, aggregators: int = 0) -> list[str]:
    """The names in ``a,b,c``; "all" is the whole table, and `auto` where there is a communicator.

    Dedicated aggregators add a row of their own.
    """
    known = [*ALGORITHMS, "auto"] if driver in ("tcp", "mpi") else list(ALGORITHMS)
    names = known if text == "all" else choose_names(text, "algorithm", [*known, *variants.FURTHER])
    if variants.DEDICATED in names and not aggregators:
        raise InputError(
            f"{variants.DEDICATED} needs ranks that only aggregate: say how many with --aggregators"
        )
    return [*names, variants.DEDICATED] if aggregators and variants.DEDICATED not in names else names


def choose_sparse_algorithms(text: str) -> list[str]:
    """The names in ``a,b,c`` without the dense ones; "all" is every sparse algorithm and `auto`."""
    known = [*ALGORITHMS, "auto"]
    names = known if text == "all" else choose_names(text, "algorithm", known)
    names = [name for name in names if not variants.is_dense(name)]
    if not names:
        raise InputError(f"{text} has no sparse algorithm")
    return names


# ---- groups of ranks ------------------------------------------------------------------------------


@contextmanager
def without_aggregators(comm: Communicator) -> Iterator[Communicator]:
    """A group of the same ranks that has no dedicated aggregators."""
    workers = comm.split(0)
    assert workers is not None
    with workers:
        workers.network = comm.network
        yield workers


@contextmanager
def without_coding(comm: Communicator) -> Iterator[Communicator]:
    """A group of the same ranks in which coding an index is infinitely slow, so that none is coded."""
    with without_aggregators(comm) as ranks:
        ranks.network = replace(comm.network, seconds_per_index=math.inf)
        yield ranks


class CommunicatorRanks:
    """The ranks of a communicator, as the clock needs them."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.barrier = comm.barrier

    def agree(self, numbers: Sequence[int]) -> list[int]:
        agreed = self._comm.broadcast(np.array(numbers, np.int64), root=0)
        return [int(number) for number in as_array(agreed)]


class SingleProcess:
    """No other process, as the clock needs it."""

    def barrier(self) -> None:
        """Return at once."""

    def agree(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)


# ---- contenders -----------------------------------------------------------------------------------


class Allreduce(Contender):
    """One algorithm over a communicator; for "coo" that is one that does not code."""

    def __init__(
        self,
        configuration: Configuration,
        comm: Communicator,
        case: Case,
        sparse: SparseVector,
        dense: Values,
    ) -> None:
        self.name, self.precision = configuration
        self._comm = comm
        self._algorithm = variants.as_called(self.name, case)
        self._input: Any = dense if variants.takes_dense(self.name, case, sparse) else sparse
        # Blocks are summed in place, as gloo does it: blocks that no rank has need not be written.
        self._original = variants.as_given(dense, case) if variants.takes_blocks(self.name, case) else None
        if self._original is not None:
            self._input = self._original.copy()
        self._rounded_to = None if self.precision in LOSSLESS else self.precision
        # A name, as users have it, lets `auto` use the last call's facts instead of asking the other ranks.
        self._key = f"{sparse.length} {sparse.nnz}" if self.name == "auto" else None
        self._result: Any = None

    def prepare(self) -> None:
        if self._original is not None:  # only a sum in place writes to its input
            np.copyto(self._input, self._original)

    def run(self) -> None:
        self._result = self._comm.allreduce(
            self._input,
            algorithm=self._algorithm,
            name=self._key,
            precision=self._rounded_to,
            out=None if self._original is None else self._input,
        )

    def moved(self) -> Moved:
        return moved_by_last_call(self._comm)

    def results(self) -> Iterable[Values]:
        yield as_array(self._result).reshape(-1)


class LocalAllreduce(Contender):
    """One algorithm with all ranks in this process; its time is the computing of all ranks in turn."""

    def __init__(self, configuration: Configuration, case: Case, inputs: Sequence[SparseVector]) -> None:
        self.name, self.precision = configuration
        self._case, self._inputs = case, inputs
        if variants.takes_dense(self.name, case, inputs[0]):
            self._inputs = [vector.as_dense() for vector in inputs]
        self._results: list[SparseVector] = []
        self._traffic: list[Traffic] = []

    def run(self) -> None:
        self._results, self._traffic = local.run(
            [
                variants.script(self.name, self.precision, self._case, rank, vector, CostFigures())
                for rank, vector in enumerate(self._inputs)
            ]
        )

    def moved(self) -> Moved:
        return Moved(
            bytes_sent=max(traffic.bytes_sent for traffic in self._traffic),
            bytes_received=max(traffic.bytes_received for traffic in self._traffic),
            messages=max(traffic.messages_sent for traffic in self._traffic),
            algorithm=self.name,
        )

    def results(self) -> Iterable[Values]:
        yield from map(as_array, self._results)


def moved_by_last_call(comm: Communicator) -> Moved:
    """What the communicator's last call moved."""
    last = comm.last
    assert last is not None
    return Moved(last.bytes_sent, last.bytes_received, last.messages_sent, last.algorithm)


def input_vector(case: Case, rank: int) -> SparseVector:
    """A rank's input as the library takes it."""
    return SparseVector(case.length, *make_input(case, rank))


def as_array(result: Any) -> Values:
    """A result as a dense array, whatever kind the input was."""
    return result.to_dense() if isinstance(result, SparseVector) else np.asarray(result)
