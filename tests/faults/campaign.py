"""Running trials: each is a job of real processes, watched until its ranks have ended or hang."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import forked
import jobs
import journal
from judges import Evidence, Verdict, judge
from mpiexec import MPICH, OPEN_MPI, Mpi
from trials import MPI, Trial, draw

import processes
from sparsewire.launch.emulation import EmulatedNetwork, EmulationError, emulated_network, require_emulation

Order: TypeAlias = tuple[int, int, list[str]]  # seed, number, and the drivers to draw from

HERE = Path(__file__).parent
MOST_RANKS = 6
NETWORK_BITS = 10**9
START_S = 20.0  # how long a job may take beside the time-outs of its calls, on a machine that is busy
PRELOADED = {"ddp": ("torch._dynamo", "sparsewire.torch"), "linear": ("sparsewire.linear",)}
PROTECTION = {"tls": {"SPARSEWIRE_TLS": "1"}, "tags": {"SPARSEWIRE_AUTHENTICATE_FRAMES": "1"}}
PROGRAM = """
import sys
sys.path.insert(0, {here!r})
faulthandler.dump_traceback_later({hangs_after})
import rank_program
rank_program.run(rank, {trial!r})
def main(rank, size):
    pass
"""


@dataclass(frozen=True)
class Done:
    """A trial that was run."""

    trial: Trial
    evidence: Evidence
    verdict: Verdict
    seconds: float


def usable_drivers() -> list[str]:
    """The drivers that this machine can run; the others are left out."""
    drivers = ["tcp", "aggregators", "tags", "ddp"]
    if importlib.util.find_spec("cryptography"):
        drivers.append("tls")
    with contextlib.suppress(EmulationError):
        require_emulation()
        drivers += ["network", "network aggregators", "linear"]  # the last mounts a small disk
    return [*drivers, *(mpi.name for mpi in (MPICH, OPEN_MPI) if mpi.python.exists())]


class Runner:
    """Runs one trial after another.  Its network, once a trial needs one, serves all of them."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._network: EmulatedNetwork | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, trial: Trial) -> Done:
        started = time.monotonic()
        if trial.driver in MPI:
            evidence = _run_mpi(trial, {MPICH.name: MPICH, OPEN_MPI.name: OPEN_MPI}[trial.driver])
        else:
            evidence = self._run_tcp(trial)
        return Done(trial, evidence, judge(trial, evidence), time.monotonic() - started)

    def _run_tcp(self, trial: Trial) -> Evidence:
        with jobs.job(trial.size) as job, _other_port() as store_port:
            job.preloaded = PRELOADED.get(trial.driver, ())
            (job.folder / "tmp").mkdir()
            environment = {"TMPDIR": str(job.folder / "tmp"), "STORE_PORT": str(store_port)}
            environment |= PROTECTION.get(trial.driver, {})
            if trial.networked:
                network = self._usable_network()
                environment["MASTER_ADDR"] = network.hosts[0].address
                environment["NAMESPACES"] = " ".join(network.namespaces)
                environment["ADDRESSES"] = " ".join(host.address for host in network.hosts)
            for rank in range(trial.size):
                job.start(rank, _program(trial), **environment)
            hung = _watch(trial, job.processes)
            ended_at = time.monotonic()
            codes = [_exit_code(job.processes[rank]) for rank in range(trial.size)]
            job.kill()
            return _evidence(trial, job.folder, hung, codes, ended_at)

    def _usable_network(self) -> EmulatedNetwork:
        """A network of which nothing is broken any more."""
        if self._network is None:
            self._network = self._open.enter_context(emulated_network(MOST_RANKS, NETWORK_BITS))
        for host in self._network.hosts:
            inside = ["ip", "-n", host.namespace]
            subprocess.run([*inside, "neigh", "flush", "nud", "permanent", "dev", "eth0"], check=False)
            subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)
        return self._network


def _program(trial: Trial) -> str:
    """What its ranks execute; the trial is a part of it."""
    hangs_after = _limit(trial) - 1.0
    return PROGRAM.format(here=str(HERE), hangs_after=hangs_after, trial=trial.to_json())


def _limit(trial: Trial) -> float:
    """Seconds after which a trial that still runs hangs."""
    return START_S + min(trial.timeout, START_S)


@contextlib.contextmanager
def _other_port() -> Iterator[int]:
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


def _watch(trial: Trial, ranks: dict[int, forked.Process]) -> set[int]:
    """Wait for every rank that can end by itself; returns those that do not."""
    stopped = {fault.victim for fault in trial.faults if fault.kind == "stop"}
    end = time.monotonic() + _limit(trial)
    able = {rank: process for rank, process in ranks.items() if rank not in stopped}
    return {rank for rank, process in able.items() if not process.has_ended(max(0.0, end - time.monotonic()))}


def _exit_code(process: forked.Process) -> int | None:
    with contextlib.suppress(FileNotFoundError):  # its parent has waited for it already
        return process.exit_code()
    return None


def _evidence(
    trial: Trial, folder: Path, hung: set[int], codes: list[int | None], ended_at: float
) -> Evidence:
    journals = [journal.read(folder, rank) for rank in range(trial.size)]
    children = [event["child"] for events in journals for event in events if "child" in event]
    for pid in children:  # of the ranks' own forks: the fault, and no leftover
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    printed = []
    for rank in range(trial.size):
        output = folder / (jobs.OUTCOME.format(rank=rank) + ".output")
        printed.append(output.read_text(errors="replace") if output.exists() else "")
    leftovers = [f"the temporary file {path.name}" for path in (folder / "tmp").glob("*")]
    return Evidence(journals, codes, hung, leftovers, printed, ended_at)


def _run_mpi(trial: Trial, mpi: Mpi) -> Evidence:
    with mpi.job(_program(trial), trial.size) as job:
        end = time.monotonic() + _limit(trial)
        while job.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        ended_at, hangs = time.monotonic(), job.process.poll() is None
        pids = _pids(trial, job.folder)
        job.kill()
        evidence = _evidence(trial, job.folder, {*pids} if hangs else set(), [None] * trial.size, ended_at)
        for rank, pid in pids.items():
            if not _ended(pid):
                os.kill(pid, signal.SIGKILL)
                evidence.leftovers += [] if hangs else [f"rank {rank}, process {pid}"]
        return evidence


def _pids(trial: Trial, folder: Path) -> dict[int, int]:
    journals = {rank: journal.read(folder, rank) for rank in range(trial.size)}
    return {rank: events[0]["pid"] for rank, events in journals.items() if events}


def _ended(pid: int, within_s: float = 2.0) -> bool:
    end = time.monotonic() + within_s
    while not processes.is_gone(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# -- several at the same time --------------------------------------------------------------------


def run_all(orders: Sequence[Order], workers: int) -> Iterator[Done]:
    """Run trials in so many processes; yields each when it has ended."""
    waiting: Iterator[Order] = iter(orders)
    done = queue.SimpleQueue[Done | BaseException]()
    lock = threading.Lock()

    def attend() -> None:
        try:
            with subprocess.Popen(
                [sys.executable, "-W", "ignore", HERE, "--work"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as worker:
                assert worker.stdin is not None
                assert worker.stdout is not None
                while True:
                    with lock:
                        order = next(waiting, None)
                    if order is None:
                        return  # closes its input, at which it ends
                    pickle.dump(order, worker.stdin)
                    worker.stdin.flush()
                    done.put(pickle.load(worker.stdout))
        except BaseException as error:
            done.put(error)

    threads = [threading.Thread(target=attend) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        for _ in orders:
            one = done.get()
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:  # also if nobody wants the rest
        with lock:
            waiting = iter(())
        for thread in threads:
            thread.join()


def work() -> None:
    """Run what is ordered until nobody orders any more: also a campaign that was killed leaves nothing."""
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which removes the network
    with Runner() as runner, contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            done = runner.run(draw(*pickle.load(orders)))
            pickle.dump(done, answers)
            answers.flush()
