"""Real processes in one gloo group, started once for all tests: the fixture ``ranks``.

    def total_of(group, length):                       # at module level: it is pickled by its name
        tensor = torch.full((length,), 2.0 ** group.rank())
        dist.all_reduce(tensor, group=group)
        return tensor

    def test_total(ranks):
        for total in ranks.run(total_of, 3, size=2):   # every rank's result, in rank order
            assert total.tolist() == [3, 3, 3]

``size`` (all by default) takes the first so many ranks, which have a group of their own; that of all is the
default group.  An exception is raised here as it was there.  Where exceptions are what a test is about,
``outcomes`` returns them among the results.

After an exception in ``run``, and whenever a rank died or hung, the processes are replaced: the next test
starts afresh.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

SIZE = 4
LOOPBACK = "127.0.0.1"
START_S = 60.0  # how long processes may take to find each other,
FAREWELL_S = 2.0  # and to leave


class Ranks:
    """The processes, started at first use."""

    def __init__(self) -> None:
        self._processes: list[_Process] = []

    def run(
        self, function: Callable[..., Any], *args: Any, size: int = SIZE, seconds: float = 60.0
    ) -> list[Any]:
        """What ``function(group, *args)`` returns on each rank; the first exception is raised."""
        outcomes = self.outcomes(function, *args, size=size, seconds=seconds)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                self.stop()  # groups of the others may wait for this one
                raise outcome
        return outcomes

    def outcomes(
        self, function: Callable[..., Any], *args: Any, size: int = SIZE, seconds: float = 60.0
    ) -> list[Any]:
        """The same, with exceptions in their places: TimeoutError if a rank hung, EOFError if it died."""
        if not self._processes:
            self._start()
        members = self._processes[:size]
        order = pickle.dumps((function, args, size, seconds))
        for process in members:
            process.connection.send_bytes(order)
        outcomes = _collect(members, seconds)
        if any(isinstance(outcome, _Gone) for outcome in outcomes):
            self.stop()
        return [outcome.error if isinstance(outcome, _Gone) else outcome for outcome in outcomes]

    def stop(self) -> None:
        """End the processes, by force if they hang."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.connection.close()  # which tells it to leave
        end = time.monotonic() + FAREWELL_S
        for process in processes:
            process.handle.join(max(0.0, end - time.monotonic()))
            if process.handle.is_alive():
                process.handle.kill()
            process.handle.join()

    def _start(self) -> None:
        self._store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["torch._dynamo", "pytest", "sparsewire.torch"]
        )  # DDP imports the first
        for rank in range(SIZE):
            here, there = context.Pipe()
            handle = context.Process(target=_work, args=(rank, self._store.port, there), daemon=True)
            handle.start()
            there.close()
            self._processes.append(_Process(handle, here))
        ready = _collect(self._processes, START_S)
        assert ready == [None] * SIZE, ready


class _Process(NamedTuple):
    handle: BaseProcess
    connection: Connection[Any, Any]


class _Gone(NamedTuple):
    """In place of an outcome that did not come."""

    error: BaseException


class _Remote(Exception):  # noqa: N818  (the cause of an exception: where it was raised)
    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _collect(members: list[_Process], seconds: float) -> list[Any]:
    """Everybody's outcome, as far as it comes in time."""
    awaited = {process.connection: rank for rank, process in enumerate(members)}
    hung = _Gone(TimeoutError(f"hung for {seconds:g} s"))
    outcomes: list[Any] = [hung] * len(members)
    end = time.monotonic() + seconds
    while awaited and (ready := wait([*awaited], max(0.0, end - time.monotonic()))):
        for connection in ready:
            assert isinstance(connection, Connection)
            outcomes[awaited.pop(connection)] = _receive(connection)
    return outcomes


def _receive(connection: Connection[Any, Any]) -> Any:
    try:
        outcome, where = pickle.loads(connection.recv_bytes())
    except (EOFError, ConnectionError) as error:
        return _Gone(EOFError(f"the process died: {error}"))
    if isinstance(outcome, BaseException) and where:
        outcome.__cause__ = _Remote(where)
    return outcome


# -- in the processes ----------------------------------------------------------------------------


def _work(rank: int, port: int, connection: Connection[Any, Any]) -> None:
    """Do what is ordered until the test session hangs up."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever the name of this machine resolves to
    store = dist.TCPStore(LOOPBACK, port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    groups = {size: dist.new_group([*range(size)]) for size in range(1, SIZE)} | {SIZE: dist.group.WORLD}
    try:
        connection.send_bytes(pickle.dumps((None, "")))
        while True:
            connection.send_bytes(_outcome(connection.recv_bytes(), groups))
    except (EOFError, ConnectionError):
        dist.destroy_process_group()


def _outcome(order: bytes, groups: dict[int, Any]) -> bytes:
    """The result or the exception, and where it was raised.

    Pickled here, by value: multiprocessing would pass tensors on as memory that dies with this process.
    """
    try:
        function, args, size, seconds = pickle.loads(order)
        faulthandler.dump_traceback_later(0.9 * seconds)  # so that a hang can be explained
        return pickle.dumps((function(groups[size], *args), ""))
    except BaseException as error:
        where = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return pickle.dumps((error, where))
    finally:
        faulthandler.cancel_dump_traceback_later()
