"""Communicator: what users hold.  Its calls are collective: all ranks make the same, in the same order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from sparsewire.algorithms import ALGORITHMS, auto
from sparsewire.algorithms._patterns import allgather
from sparsewire.algorithms.split_allgather import split_reduce
from sparsewire.algorithms.tree import barrier, broadcast, reduce
from sparsewire.convert import Restore, from_any
from sparsewire.drivers._base import Driver
from sparsewire.errors import InputError, SparsewireError, TransportError
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector
from sparsewire.wire import Call

__all__ = ["Communicator", "Last"]

T = TypeVar("T")

OPS = ("sum", "avg")


@dataclass(frozen=True)
class Last:
    """What the last collective did at this rank; bytes are whole frames, headers included."""

    operation: str
    algorithm: str
    messages_sent: int
    bytes_sent: int
    bytes_received: int
    rounds: int
    seconds: float
    nnz_in: int
    density_in: float
    nnz_out: int = 0
    density_out: float = 0.0


class Communicator:
    """A group of ranks; make one with ``sparsewire.init()``.

    >>> import numpy as np, sparsewire as sw
    >>> comm = sw.init()                          # a process that is alone is a group of one
    >>> comm.allreduce(np.array([0.0, 2.0]))
    array([0., 2.])
    >>> comm.last.density_in
    0.5
    """

    def __init__(self, driver: Driver, timeout: float = 300.0) -> None:
        self.timeout = timeout
        self.last: Last | None = None
        self._driver = driver
        self._closed = False

    @property
    def rank(self) -> int:
        return self._driver.rank

    @property
    def size(self) -> int:
        return self._driver.size

    def allreduce(
        self, x: Any, *, algorithm: str = "auto", op: str = "sum", timeout: float | None = None
    ) -> Any:
        """Everybody's sum (``op="sum"``) or mean (``"avg"``), the same bits on every rank.

        ``x`` is a numpy array, a torch tensor (dense or sparse COO), a scipy.sparse matrix, a
        SparseVector or a tuple ``(length, indices, values)``; the result is of the same kind.
        """

        def prepare() -> _Plan[tuple[str, SparseVector]]:
            vector, restore = from_any(x)
            _check_choice("algorithm", algorithm, ("auto", *ALGORITHMS))
            _check_choice("op", op, OPS)
            if op == "avg" and vector.dtype.kind == "i":
                raise InputError(f"the mean of {vector.dtype.name} values is no integer; use a float dtype")
            if algorithm == "auto" or not ALGORITHMS[algorithm].dense:
                vector = vector.smaller()
            call = Call("allreduce", algorithm, op, vector.dtype.name, vector.length)
            return _Plan(_allreduce(self.rank, self.size, vector, algorithm), call, vector, restore)

        plan, (name, total) = self._execute(prepare, timeout)
        self._note(nnz_out=total.nnz, density_out=_density(total), algorithm=name)
        if op == "avg":
            total = total.with_values((total.values / self.size).astype(total.dtype, copy=False))
        return plan.restore(total)

    def allgather(self, x: Any, *, timeout: float | None = None) -> list[Any]:
        """Everybody's ``x``, in rank order; lengths may differ, the dtype may not.

        >>> import numpy as np, sparsewire as sw
        >>> sw.init().allgather(np.array([1, 2]))
        [array([1, 2])]
        """

        def prepare() -> _Plan[list[SparseVector]]:
            vector, restore = from_any(x)
            vector = vector.smaller()
            call = Call("allgather", dtype=vector.dtype.name)
            return _Plan(allgather(self.rank, self.size, vector), call, vector, restore)

        plan, everybody = self._execute(prepare, timeout)
        self._note(nnz_out=sum(vector.nnz for vector in everybody))
        return [plan.restore(vector) for vector in everybody]

    def reduce_scatter(self, x: Any, *, timeout: float | None = None) -> Any:
        """This rank's range of everybody's sum, as a vector of its own.

        The ranges are in rank order and differ by at most one position.
        """

        def prepare() -> _Plan[SparseVector]:
            vector, restore = from_any(x)
            vector = vector.smaller()
            call = Call("reduce_scatter", op="sum", dtype=vector.dtype.name, length=vector.length)
            return _Plan(split_reduce(self.rank, self.size, vector), call, vector, restore)

        plan, mine = self._execute(prepare, timeout)
        self._note(nnz_out=mine.nnz, density_out=_density(mine))
        return plan.restore(mine.detached())

    def broadcast(self, x: Any = None, *, root: int = 0, timeout: float | None = None) -> Any:
        """The root's ``x``.  Other ranks give one of the same kind, or None for a SparseVector."""

        def prepare() -> _Plan[SparseVector]:
            self._check_root(root)
            if x is None and self.rank == root:
                raise InputError("the root of a broadcast has to give something; it gave None")
            vector, restore = (SparseVector.empty(0), _as_is) if x is None else from_any(x)
            script = broadcast(self.rank, self.size, vector.smaller(), root)
            return _Plan(script, Call("broadcast", root=root), vector, restore)

        plan, sent = self._execute(prepare, timeout)
        self._note(nnz_out=sent.nnz, density_out=_density(sent))
        return plan.restore(sent)

    def reduce(self, x: Any, *, root: int = 0, timeout: float | None = None) -> Any:
        """Everybody's sum at the root, None elsewhere."""

        def prepare() -> _Plan[SparseVector | None]:
            self._check_root(root)
            vector, restore = from_any(x)
            vector = vector.smaller()
            call = Call("reduce", op="sum", dtype=vector.dtype.name, length=vector.length, root=root)
            return _Plan(reduce(self.rank, self.size, vector, root), call, vector, restore)

        plan, total = self._execute(prepare, timeout)
        if total is None:
            return None
        self._note(nnz_out=total.nnz, density_out=_density(total))
        return plan.restore(total)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Return when every rank has called it."""
        self._execute(
            lambda: _Plan(barrier(self.rank, self.size), Call("barrier"), SparseVector.empty(0), _as_is),
            timeout,
        )

    def close(self) -> None:
        """Leave the group; ranks that still wait for this one will notice."""
        self._closed = True
        self._driver.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, size={self.size})"

    def _execute(self, prepare: Callable[[], _Plan[T]], timeout: float | None) -> tuple[_Plan[T], T]:
        """Run a collective.  If this rank cannot even begin, the others are told why, and raise the same."""
        if self._closed:
            raise TransportError("this communicator was closed; sparsewire.init() makes a new one")
        try:
            plan = prepare()
            limit = _checked_timeout(self.timeout if timeout is None else timeout)
        except Exception as error:  # whatever it is, the others must not wait for this rank
            kind = type(error) if isinstance(error, SparsewireError) else InputError
            refusal = kind(f"rank {self.rank}: {error}" if self.size > 1 else str(error))
            self._driver.refuse(refusal)
            raise refusal from error
        started = time.perf_counter()
        result, traffic = self._driver.run(plan.script, plan.call, limit)
        self.last = Last(
            operation=plan.call.operation,
            algorithm=plan.call.algorithm,
            messages_sent=traffic.messages_sent,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            rounds=traffic.rounds,
            seconds=time.perf_counter() - started,
            nnz_in=plan.vector.nnz,
            density_in=_density(plan.vector),
        )
        return plan, result

    def _note(self, **facts: Any) -> None:
        assert self.last is not None
        self.last = replace(self.last, **facts)

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise InputError(f"root is {root}; the ranks are 0..{self.size - 1}")


@dataclass(frozen=True)
class _Plan(Generic[T]):
    """One rank's part of a collective, ready to run."""

    script: Steps[T]
    call: Call
    vector: SparseVector
    restore: Restore


def _allreduce(rank: int, size: int, vector: SparseVector, algorithm: str) -> Steps[tuple[str, SparseVector]]:
    if algorithm == "auto":
        return (yield from auto(rank, size, vector))
    return algorithm, (yield from ALGORITHMS[algorithm].run(rank, size, vector))


def _as_is(vector: SparseVector) -> SparseVector:
    return vector


def _density(vector: SparseVector) -> float:
    return vector.nnz / vector.span if vector.span else 0.0


def _check_choice(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InputError(f"unknown {what} {given!r}; known are {', '.join(known)}")


def _checked_timeout(timeout: float) -> float:
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise InputError(f"timeout is {timeout!r}; it must be a positive number of seconds")
    return float(timeout)
