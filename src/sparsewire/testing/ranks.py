"""Ranks for a test: threads of this process that are connected by TCP, and the ranks of an MPI job."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from sparsewire.coding.call import Call
from sparsewire.communicator import Communicator
from sparsewire.drivers import tcp
from sparsewire.drivers.engine import Engine
from sparsewire.errors import InputError, SparsewireError
from sparsewire.steps import Steps

__all__ = ["MakeScript", "RankErrors", "RunRanks", "mpi_ranks", "run_program", "tcp_ranks"]

T = TypeVar("T")

MakeScript: TypeAlias = Callable[[int, int], Steps[Any]]  # (rank, size)
RunRanks: TypeAlias = Callable[[MakeScript, int], list[Any]]  # (script, size): every rank's result


class RankErrors(SparsewireError):  # noqa: N818  (a collection of errors)
    """Some ranks raised; ``errors`` has the exception of each."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        self.errors = errors
        super().__init__("; ".join(f"rank {r}: {type(e).__name__}: {e}" for r, e in sorted(errors.items())))


def tcp_ranks(make_script: MakeScript, size: int, timeout: float = 60.0) -> list[Any]:
    """Run a script on every rank of a TCP mesh on this machine, each rank a thread with its own driver.

    >>> from sparsewire.steps import Recv, Send
    >>> from sparsewire.vector import SparseVector
    >>> def swap(rank, size):
    ...     [theirs] = yield [Send(1 - rank, SparseVector.empty(rank)), Recv(1 - rank)]
    ...     return theirs.length
    >>> tcp_ranks(swap, 2)
    [1, 0]
    """

    def work(driver: Engine) -> Any:
        return driver.run(make_script(driver.rank, size), Call(), timeout)[0]

    return _threads(work, size, timeout)


def run_program(program: Callable[[Communicator], T], size: int, timeout: float = 60.0) -> list[T]:
    """Run a program on every rank of a TCP mesh on this machine, each rank a thread with its communicator.

    >>> import numpy as np
    >>> run_program(lambda comm: comm.allreduce(np.array([comm.rank + 1.0])).tolist(), 2)
    [[3.0], [3.0]]
    """
    return _threads(lambda driver: program(Communicator.of(driver, timeout)), size, timeout)


def _threads(work: Callable[[Engine], T], size: int, timeout: float) -> list[T]:
    """What every rank's work returns, in rank order."""
    drivers: list[Engine] = []
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    secret = secrets.token_hex(16)

    def take_part(rank: int, port: int) -> None:
        try:
            driver = tcp.connect(rank, size, ("127.0.0.1", port), secret, timeout)
            drivers.append(driver)
            results[rank] = work(driver)
        except BaseException as error:
            errors[rank] = error

    with _reserved_port() as port:
        threads = [threading.Thread(target=take_part, args=(rank, port)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for driver in drivers:  # not earlier: who leaves is lost to those who listen to anybody
        driver.close()
    if errors:
        raise RankErrors(errors)
    return [results[rank] for rank in range(size)]


def mpi_ranks(comm: Any, timeout: float = 60.0) -> RunRanks:
    """Runs scripts on the first ranks of an mpi4py communicator.

    All ranks of ``comm`` call it, and what it returns, together; all get every result or raise the same.
    """
    from sparsewire.drivers import mpi

    def run_ranks(make_script: MakeScript, size: int) -> list[Any]:
        if size > comm.size:
            raise InputError(f"{size} ranks of a communicator that has {comm.size}")
        group = comm.Split(int(comm.rank >= size), comm.rank)
        driver = mpi.connect(group)
        result: Any = None
        error: Exception | None = None
        try:
            if comm.rank < size:
                result, _ = driver.run(make_script(comm.rank, size), Call(), timeout)
        except Exception as raised:
            error = raised
        outcomes = comm.allgather((result, error))[:size]
        driver.close()
        group.Free()
        if errors := {rank: error for rank, (_, error) in enumerate(outcomes) if error is not None}:
            raise RankErrors(errors)
        return [result for result, _ in outcomes]

    return run_ranks


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """A port that is given to nobody else: a bound socket that does not listen keeps it."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
