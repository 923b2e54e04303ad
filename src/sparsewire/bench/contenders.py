"""Our own algorithms as contenders: over a communicator, and all ranks in one process.

A dense algorithm gets the dense array, ready made: nobody who calls it would hold a sparse vector.
`auto` gets whichever is smaller, and ``variants`` says what OmniReduce gets.  Each runs in every precision
that is asked for:

    exact      as the library does by default: indices are coded where that pays
    coo        indices always as they are
    float16, bfloat16, qsgd2, qsgd4, qsgd8    values are rounded
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sparsewire.algorithms import ALGORITHMS, Context
from sparsewire.bench.cases import Case, Values, make_input
from sparsewire.bench.peers import PEERS
from sparsewire.bench.timing import Moved
from sparsewire.bench.variants import (
    DEDICATED,
    VARIANTS,
    as_called,
    as_given,
    in_table,
    script_options,
    takes_blocks,
)
from sparsewire.coding.rounding import PrecisionRounding
from sparsewire.coding.values import PRECISIONS, precision_of
from sparsewire.communicator import Communicator
from sparsewire.communicator.agreement import gather
from sparsewire.drivers import local
from sparsewire.drivers.protocols import Traffic
from sparsewire.errors import InputError
from sparsewire.steps import Steps
from sparsewire.sync import METHODS
from sparsewire.vector import SparseVector, value_dtype

__all__ = [
    "LOSSLESS",
    "Allreduce",
    "Alone",
    "Entrant",
    "LocalAllreduce",
    "Together",
    "as_array",
    "choose_algorithms",
    "choose_methods",
    "choose_names",
    "choose_peers",
    "choose_precisions",
    "choose_sparse_algorithms",
    "entrants",
    "input_vector",
    "script",
    "takes_dense",
    "without_aggregators",
    "without_coding",
]

LOSSLESS = ("exact", "coo")


class Entrant(NamedTuple):
    """An algorithm in a precision."""

    algorithm: str
    precision: str = "exact"

    def __str__(self) -> str:
        return self.algorithm if self.precision == "exact" else f"{self.algorithm} {self.precision}"


def entrants(
    algorithms: Sequence[str], precisions: Sequence[str], driver: str = "tcp"
) -> tuple[list[Entrant], dict[str, str]]:
    """Every algorithm in every precision; and those that cannot run, with the reason."""
    every = [Entrant(algorithm, precision) for algorithm in algorithms for precision in precisions]
    skipped = {entrant: reason for entrant in every if (reason := _reason_to_skip(entrant, driver))}
    if len(skipped) == len(every):
        raise InputError("; ".join(f"{entrant} cannot run: {reason}" for entrant, reason in skipped.items()))
    running = [entrant for entrant in every if entrant not in skipped]
    return running, {str(entrant): reason for entrant, reason in skipped.items()}


def _reason_to_skip(entrant: Entrant, driver: str) -> str | None:
    algorithm, precision = entrant
    if precision == "coo" and driver == "local":
        return "nothing travels with --driver local, so that it would be the same as exact"
    if precision == "coo" and algorithm == DEDICATED:
        return "a group that does not code has no dedicated aggregators"
    if precision in LOSSLESS or algorithm == "auto" or ALGORITHMS[in_table(algorithm)].supports_precision:
        return None
    return "it adds up in many places, and would round in each"


def choose_precisions(text: str, dtype: str) -> list[str]:
    """The names in ``a,b,c``, checked, also against what values are."""
    names = choose_names(text, "precision", [*LOSSLESS, *PRECISIONS])
    for name in names:
        if name not in LOSSLESS:
            precision_of(name, value_dtype(dtype), "sum")
    return names


def choose_algorithms(text: str, driver: str, aggregators: int = 0) -> list[str]:
    """The names in ``a,b,c``, checked; "all" is the whole table, and what "auto" makes of it.

    Dedicated aggregators bring their own row.
    """
    known = (
        [*ALGORITHMS, "auto"] if driver in ("tcp", "mpi") else list(ALGORITHMS)
    )  # auto is the communicator's
    names = known if text == "all" else choose_names(text, "algorithm", [*known, *VARIANTS])
    if DEDICATED in names and not aggregators:
        raise InputError(f"{DEDICATED} needs ranks that only aggregate: say how many with --aggregators")
    return [*names, DEDICATED] if aggregators and DEDICATED not in names else names


def choose_methods(text: str) -> list[str]:
    """The names in ``a,b,c``, checked; "all" is every way to make a step sparse."""
    return list(METHODS) if text == "all" else choose_names(text, "method", list(METHODS))


def choose_peers(text: str, driver: str) -> tuple[str, ...]:
    """The names in ``a,b,c``, checked; "all" is every one that the driver has."""
    known = PEERS.get(driver, ())
    return known if text == "all" else tuple(choose_names(text, "peer", known))


def choose_names(text: str, what: str, known: Sequence[str]) -> list[str]:
    """The names in ``a,b,c``, all of which must be known."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise InputError(f"unknown {what} {', '.join(unknown) or text}; known are {', '.join(known)}")
    return names


def choose_sparse_algorithms(text: str) -> list[str]:
    """The names in ``a,b,c``, without those whose cost does not depend on zeros; "all" is every other one."""
    known = [*ALGORITHMS, "auto"]
    names = known if text == "all" else choose_names(text, "algorithm", known)
    names = [name for name in names if not _is_dense(name)]
    if not names:
        raise InputError(f"{text} has no sparse algorithm")
    return names


@contextmanager
def without_aggregators(comm: Communicator) -> Iterator[Communicator]:
    """The workers among themselves: a group has no dedicated aggregators."""
    workers = comm.split(0)
    assert workers is not None
    with workers:
        workers.network = comm.network
        yield workers


@contextmanager
def without_coding(comm: Communicator) -> Iterator[Communicator]:
    """The same ranks once more, who find that coding an index takes forever: it is sent as it is."""
    with without_aggregators(comm) as ranks:
        ranks.network = replace(comm.network, seconds_per_index=math.inf)
        yield ranks


class Allreduce:
    """One algorithm over a communicator; for "coo" that is one that does not code."""

    def __init__(
        self, entrant: Entrant, comm: Communicator, case: Case, sparse: SparseVector, dense: Values
    ) -> None:
        algorithm, precision = entrant
        self.name, self.precision = entrant
        self._comm = comm
        self._algorithm = as_called(algorithm, case)
        self._input: Any = dense if takes_dense(algorithm, case, sparse) else sparse
        # Blocks are summed in place, as gloo does it: what nobody touched need not be written.
        self._original = as_given(dense, case) if takes_blocks(algorithm, case) else None
        if self._original is not None:
            self._input = self._original.copy()
        self._rounded_to = None if precision in LOSSLESS else precision
        # As a user names a tensor: `auto` need not ask the other ranks once it knows the last call's facts.
        self._key = f"{sparse.length} {sparse.nnz}" if algorithm == "auto" else None
        self._result: Any = None

    def prepare(self) -> None:
        if self._original is not None:  # what is not in place does not write to its input
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
        last = self._comm.last
        assert last is not None
        return Moved(last.bytes_sent, last.bytes_received, last.messages_sent, last.algorithm)

    def results(self) -> Iterable[Values]:
        yield as_array(self._result).reshape(-1)


class LocalAllreduce:
    """One algorithm with all ranks in this process: the time is what all ranks compute, one after another."""

    def __init__(self, entrant: Entrant, case: Case, inputs: Sequence[SparseVector]) -> None:
        self.name, self.precision = entrant
        self._case, self._inputs = case, inputs
        if takes_dense(self.name, case, inputs[0]):
            self._inputs = [vector.as_dense() for vector in inputs]
        self._results: list[SparseVector] = []
        self._traffic: list[Traffic] = []

    def prepare(self) -> None:
        """The inputs are not written to."""

    def run(self) -> None:
        run = Entrant(self.name, self.precision)
        self._results, self._traffic = local.run(
            [script(run, self._case, rank, vector) for rank, vector in enumerate(self._inputs)]
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
        return gather(self._comm, said)


class Alone:
    """No other process."""

    def barrier(self) -> None:
        """Nobody to wait for."""

    def agree(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)


def input_vector(case: Case, rank: int) -> SparseVector:
    """Rank ``rank``'s input as the library wants it."""
    return SparseVector(case.length, *make_input(case, rank))


def takes_dense(algorithm: str, case: Case, vector: SparseVector) -> bool:
    """Whether the algorithm is given the vector as a dense array."""
    if algorithm == "auto":
        return vector.length * vector.dtype.itemsize <= vector.nbytes
    return _is_dense(algorithm) or takes_blocks(algorithm, case)


def script(run: Entrant, case: Case, rank: int, vector: SparseVector) -> Steps[SparseVector]:
    """A rank's script, for drivers that run all of them in one process."""
    algorithm = ALGORITHMS[in_table(run.algorithm)].run
    context = Context(options=script_options(run.algorithm, case))
    if run.precision not in LOSSLESS and (rounds_to := precision_of(run.precision, vector.dtype, "sum")):
        context = context._replace(rounding=PrecisionRounding(rounds_to, rank, number=1))
    return algorithm(rank, case.ranks, vector, context)


def _is_dense(algorithm: str) -> bool:
    return algorithm in ALGORITHMS and ALGORITHMS[algorithm].dense


def as_array(result: Any) -> Values:
    """A result as a dense array, whatever kind the input was."""
    return result.to_dense() if isinstance(result, SparseVector) else np.asarray(result)
