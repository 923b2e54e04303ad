"""Start local ranks as processes, and wait until all of them have ended.

One thread waits for everything: the output and the end of every rank arrive through the same selector.
Therefore lines of two ranks never mix, no output is lost, and the first failure is known to be the first.

    a rank fails             the others get SIGTERM, and SIGKILL after the grace period
    all workers have ended   ranks that only aggregate get SIGKILL after the grace period
    the launcher is ended    an exception (Ctrl-C too) leaves ``launch`` only when every rank has ended
    it is ended once more    the ranks get SIGKILL at once
    the launcher is killed   the kernel kills the ranks (Linux: PR_SET_PDEATHSIG)
"""

from __future__ import annotations

import os
import random
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TypeAlias

from sparsewire.errors import InputError, SparsewireError
from sparsewire.launch.signals import HeldSignals, held_signals

__all__ = [
    "LONGEST_LINE",
    "OnLine",
    "Outcome",
    "free_port",
    "into_namespace",
    "launch",
    "print_with_rank",
    "run_together",
]

# Called with the rank, "stdout" or "stderr", and one line without its newline, or a part of a very long line.
OnLine: TypeAlias = Callable[[int, str, bytes], None]

# Ranks share the cores, so each has one thread unless the user sets another number.  Output is unbuffered,
# because a rank that is killed cannot flush, and its last lines tell why it failed.
RANK_DEFAULTS = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
GRACE_S = 5.0  # between SIGTERM and SIGKILL; torchrun waits 30
POLL_S = 0.05  # the delay after which an end is noticed where the kernel has no pidfd
STOP_POLL_S = 0.01  # the same while ranks are stopped, which is seldom and short
READ_BYTES = 1 << 16  # the capacity of a Linux pipe: one read empties it
# Bytes of a line; what is longer is passed on in parts.  A rank that writes no newline must not fill the
# memory of the launcher.
LONGEST_LINE = 16 << 20

AGGREGATOR = [sys.executable, "-m", "sparsewire", "serve"]

# Every rank begins as this program, which then becomes the rank.  Code between fork and exec (preexec_fn)
# could do the same, but may deadlock when the launcher has threads.
#   1 is PR_SET_PDEATHSIG (<linux/prctl.h>); the request stays valid after exec.  It comes too late if the
#   launcher has ended already: then this process has another parent.
BECOME_RANK = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``code`` is 0, or the exit code of the first rank that failed (128 + its signal)."""

    code: int = 0
    rank: int | None = None
    killed_by: int | None = None
    command: str | None = None  # the name of what ended, if that was not a rank itself

    def __str__(self) -> str:
        if self.rank is None:
            return "all ranks ended normally"
        who = self.command or f"rank {self.rank}"
        if self.killed_by is None:
            return f"{who} ended with exit code {self.code}"
        names = {number.value: number.name for number in signal.Signals}
        return f"{who} was killed by {names.get(self.killed_by, f'signal {self.killed_by}')}"


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    pidfd: int | None
    unfinished: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )

    def pipe(self, stream: str) -> IO[bytes]:
        pipe = self.process.stdout if stream == "stdout" else self.process.stderr
        assert pipe is not None
        return pipe

    def has_ended(self) -> bool:
        """Whether the process has ended; where there are pidfds, nobody has waited for it yet."""
        if self.pidfd is None:
            return self.process.poll() is not None
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def launch(
    command: Sequence[str],
    size: int,
    *,
    aggregators: int = 0,
    master_addr: str = "127.0.0.1",
    namespaces: Sequence[str] = (),
    on_line: OnLine | None = None,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run ``command`` once per rank and wait; the module's docstring says how a job ends.

    The job has ``aggregators`` more ranks, which only aggregate.  With ``namespaces`` (one per rank) each
    rank runs inside its own network namespace.
    """
    if size < 1 or aggregators < 0:
        raise InputError(f"a job needs at least one rank, got {size} and {aggregators} that only aggregate")
    commands = [command] * size + [AGGREGATOR] * aggregators
    if namespaces and len(namespaces) != len(commands):
        raise InputError(f"{len(commands)} ranks need {len(commands)} namespaces, got {len(namespaces)}")
    shared = _job_environment(size, aggregators, master_addr)
    places = [into_namespace(name) for name in namespaces] if namespaces else [[]] * len(commands)
    processes = [
        ([*place, *words], {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank, (place, words) in enumerate(zip(places, commands, strict=True))
    ]
    return run_together(processes, aggregators=aggregators, on_line=on_line, grace_s=grace_s)


def run_together(
    processes: Sequence[tuple[Sequence[str], Mapping[str, str]]],
    *,
    aggregators: int = 0,
    on_line: OnLine | None = None,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run every (command, environment) as the rank of its position, and wait as ``launch`` does."""
    ranks: list[_Rank] = []
    with held_signals() as signals:
        try:
            for number, (command, environment) in enumerate(processes):
                if signals.arrived:
                    break
                ranks.append(_start(number, command, environment))
            signals.release()
            return _watch(ranks, len(ranks) - aggregators, on_line or print_with_rank, grace_s)
        finally:
            signals.holding = True
            _stop(ranks, grace_s, signals)
            _close(ranks)


def into_namespace(name: str) -> list[str]:
    """Words before a command, which make it run in that network namespace."""
    return ["ip", "netns", "exec", name]


def print_with_rank(rank: int, stream: str, line: bytes) -> None:
    """Write the line of a rank to our own stream of the same name, as ``[rank] line``."""
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.buffer.write(b"[%d] %s\n" % (rank, line))
    target.buffer.flush()


def free_port() -> int:
    """A port on which nobody listens at loopback now, outside the range that the kernel assigns itself."""
    while True:
        port = random.randrange(20_000, 32_000)  # Linux assigns 32768-60999 to outgoing connections
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _job_environment(size: int, aggregators: int, master_addr: str) -> dict[str, str]:
    job = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "SPARSEWIRE_AGGREGATORS": str(aggregators),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(free_port()),
        "SPARSEWIRE_SECRET": secrets.token_hex(32),
    }
    return {**RANK_DEFAULTS, **os.environ, **job}


def _start(number: int, command: Sequence[str], environment: Mapping[str, str]) -> _Rank:
    try:
        process = _popen(command, environment)
    except OSError as error:
        raise SparsewireError(
            f"rank {number} cannot be started: {error.strerror}. Start fewer ranks, or allow more processes "
            "and open files (ulimit -u, ulimit -n)"
        ) from error
    try:
        return _Rank(number, process, os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None)
    except OSError:  # without a pidfd its end is noticed a little later
        return _Rank(number, process, None)


def _popen(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BECOME_RANK, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        # A rank has its own process group, so that its children can be stopped with it.  Ctrl-C on a
        # terminal then reaches the launcher alone, which stops the ranks.
        start_new_session=True,
    )


def _watch(ranks: Sequence[_Rank], workers: int, on_line: OnLine, grace_s: float) -> Outcome:
    """How the job ended.  Passes lines on until all ranks have ended; the first failure stops the others.

    Ranks from ``workers`` on only aggregate.  They end after the workers have left, or wait for workers
    forever if the script makes no communicator; then they are killed.
    """
    outcome = Outcome()
    alive = list(ranks)
    kill_at = float("inf")
    with _selector_over(ranks) as selector:
        while alive:
            for rank, event in _events(selector, alive, wake_up=kill_at < float("inf")):
                if event != "end":
                    if _pass_on(rank, event, on_line) == 0:
                        selector.unregister(rank.pipe(event))
                    continue
                alive.remove(rank)
                if rank.pidfd is not None:
                    selector.unregister(rank.pidfd)
                if outcome.rank is not None and rank.process.returncode is None:
                    _signal([rank], signal.SIGKILL)  # for children of the stopped rank that ignore SIGTERM
                code = rank.process.wait()
                if code != 0 and outcome.rank is None and time.monotonic() < kill_at:
                    outcome = _failure(rank.number, code)
                    _signal(alive, signal.SIGTERM)
                    kill_at = time.monotonic() + grace_s
                elif all(other.number >= workers for other in alive):
                    kill_at = min(kill_at, time.monotonic() + grace_s)
            if time.monotonic() > kill_at:
                _signal(alive, signal.SIGKILL)
    for rank in ranks:
        _pass_on_the_rest(rank, on_line)
    return outcome


def _failure(rank: int, returncode: int) -> Outcome:
    if returncode < 0:  # subprocess gives the signal that killed the process as a negative number
        return Outcome(128 - returncode, rank, -returncode)
    return Outcome(returncode, rank)


@contextmanager
def _selector_over(ranks: Sequence[_Rank]) -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            for stream in rank.unfinished:
                os.set_blocking(rank.pipe(stream).fileno(), False)
                selector.register(rank.pipe(stream), selectors.EVENT_READ, (rank, stream))
            if rank.pidfd is not None:
                selector.register(rank.pidfd, selectors.EVENT_READ, (rank, "end"))
        yield selector


def _events(
    selector: selectors.BaseSelector, alive: Sequence[_Rank], wake_up: bool
) -> Iterator[tuple[_Rank, str]]:
    """What happened since the last call: (rank, "stdout" | "stderr" | "end").

    Where there are pidfds, ends come in their order.  The order matters: when a rank is killed, others fail
    because of it milliseconds later.
    """
    without_pidfd = [rank for rank in alive if rank.pidfd is None]
    for key, _ in selector.select(POLL_S if without_pidfd or wake_up else None):
        yield key.data
    for rank in without_pidfd:
        if rank.process.poll() is not None:
            yield rank, "end"


def _pass_on(rank: _Rank, stream: str, on_line: OnLine) -> int | None:
    """Pass on the complete lines that have come.

    Returns the number of bytes that were read: 0 at the end of the stream, and None if there is nothing now.
    """
    try:
        chunk = os.read(rank.pipe(stream).fileno(), READ_BYTES)
    except BlockingIOError:
        return None
    unfinished = rank.unfinished[stream]
    *ends, rest = chunk.split(b"\n")
    for end in ends:
        on_line(rank.number, stream, bytes(unfinished + end))
        unfinished.clear()
    unfinished += rest
    if len(unfinished) >= LONGEST_LINE:
        on_line(rank.number, stream, bytes(unfinished))
        unfinished.clear()
    return len(chunk)


def _pass_on_the_rest(rank: _Rank, on_line: OnLine) -> None:
    """Pass on what an ended rank left in its pipes.

    This does not wait for the end of the streams, because children of the rank may hold them open.
    """
    for stream, unfinished in rank.unfinished.items():
        while _pass_on(rank, stream, on_line):
            pass
        if unfinished:
            on_line(rank.number, stream, bytes(unfinished))


def _stop(ranks: Sequence[_Rank], grace_s: float, signals: HeldSignals) -> None:
    """End every rank that still runs: with SIGTERM, and after the grace period with SIGKILL.

    A signal that arrives meanwhile ends the grace period.  SIGKILL also reaches children of ended ranks.
    """
    alive = [rank for rank in ranks if rank.process.returncode is None]
    _signal(alive, signal.SIGTERM)
    arrived, deadline = signals.arrived, time.monotonic() + grace_s
    while not all(rank.has_ended() for rank in alive):
        if signals.arrived > arrived or time.monotonic() > deadline:
            break
        time.sleep(STOP_POLL_S)
    _signal(alive, signal.SIGKILL)
    for rank in alive:
        rank.process.wait()


def _signal(alive: Sequence[_Rank], number: signal.Signals) -> None:
    """Signal the ranks and their children.

    These must be ranks that nobody has waited for: until then no other process can get their ids.
    """
    for rank in alive:
        with suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError if all have ended
            os.killpg(rank.process.pid, number)


def _close(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        for stream in rank.unfinished:
            rank.pipe(stream).close()
        if rank.pidfd is not None:
            os.close(rank.pidfd)
