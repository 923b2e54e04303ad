"""Jobs of real processes: start P ranks of a program, and collect how each of them ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked

HUNG = "hung"  # killed by the watchdog
DIED = "died"  # ended without writing an outcome
TAIL = 3000  # characters of what a rank printed last, to be shown when a test fails

# Runs main(rank, size) of the program and writes down how it ended.
# What the program prints goes to a file beside that.
_PRELUDE = """
import faulthandler, json, os, signal, sys, threading, time

def number(*names):
    return next(int(os.environ[name]) for name in names if name in os.environ)

rank = number("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
size = number("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
path = os.environ["OUTCOME"] = os.environ["OUTCOME"].format(rank=rank)
output = os.open(path + ".output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(output, 1)
os.dup2(output, 2)
faulthandler.enable()
import numpy as np
import sparsewire as sw

def tried(call):
    'The outcome of a call, as something that JSON can hold.'
    try:
        return {"result": call()}
    except BaseException as error:
        kinds = [c.__name__ for c in type(error).__mro__]
        return {"error": type(error).__name__, "kinds": kinds, "message": str(error), "at": time.time()}

def digest(vector):
    import hashlib
    parts = [vector.values.tobytes(), b"" if vector.indices is None else vector.indices.tobytes()]
    return hashlib.sha256(b"|".join(parts)).hexdigest() + (" dense" if vector.is_dense else " sparse")

def after(seconds, action):
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def in_folder(name):
    'A file that the test and all ranks see.'
    return os.path.join(os.path.dirname(os.environ["OUTCOME"]), name)

def wait_for(*names):
    while not all(os.path.exists(in_folder(name)) for name in names):
        time.sleep(0.01)
"""
_CODA = """
def write(path, content):
    with open(path + ".part", "w") as file:
        json.dump(content, file)
    os.replace(path + ".part", path)

write(path + ".pid", os.getpid())
write(path, tried(lambda: main(rank, size)))
"""
OUTCOME = "outcome-{rank}.json"


def source(program: str) -> str:
    """What a rank executes; the environment says its place, and where to write its OUTCOME."""
    return _PRELUDE + textwrap.dedent(program) + _CODA


class Outcome(dict[str, Any]):
    """How a rank ended: {"result": ...} or {"error": ..., "message": ...}.

    To ask for a result that it does not have fails the test, and says how the rank ended instead.
    """

    def __init__(self, rank: int, content: dict[str, Any], printed: str) -> None:
        super().__init__(content)
        self._rank, self._printed = rank, printed

    def __missing__(self, key: str) -> Any:
        how = ": ".join(str(self[name]) for name in ("error", "message") if name in self)
        raise AssertionError(
            f"rank {self._rank} has no {key!r}; it ended with {how or dict(self)}\n{self._printed}"
        )


def outcome(folder: Path, rank: int, hung: bool, exit_code: object) -> Outcome:
    """How the rank ended; the exit code is mentioned if it wrote nothing down."""
    path = folder / OUTCOME.format(rank=rank)
    output = path.with_name(path.name + ".output")
    text = output.read_text(errors="replace") if output.exists() else ""
    printed = f"it printed: {text[-TAIL:] or 'nothing'}"
    if path.exists():
        return Outcome(rank, json.loads(path.read_text()), printed)
    message = f"exit code {exit_code}; {printed}"
    return Outcome(rank, {"error": HUNG if hung else DIED, "kinds": [], "message": message}, printed)


@dataclass
class Job:
    """Started ranks; ``wait`` gives the outcomes in rank order."""

    size: int
    port: int
    secret: str
    folder: Path
    processes: dict[int, forked.Process] = field(default_factory=dict)
    preloaded: tuple[str, ...] = ()  # modules that ranks find imported, besides numpy and sparsewire

    def start(self, rank: int, program: str, **environment: str) -> None:
        job = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "SPARSEWIRE_SECRET": self.secret,
            "OUTCOME": str(self.folder / OUTCOME),
        }
        self.processes[rank] = forked.start(source(program), os.environ | job | environment, self.preloaded)

    def wait(self, seconds: float = 60.0) -> list[Outcome]:
        end = time.monotonic() + seconds
        hung = {
            rank
            for rank, process in self.processes.items()
            if not process.has_ended(max(0.0, end - time.monotonic()))
        }
        outcomes = [
            outcome(self.folder, rank, rank in hung, self.processes[rank].exit_code())
            for rank in sorted(self.processes)
        ]
        self.kill()
        return outcomes

    def kill(self) -> None:
        while self.processes:
            self.processes.popitem()[1].end()


@contextlib.contextmanager
def job(size: int) -> Iterator[Job]:
    """A job without ranks yet; whatever still runs at the end is killed."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))  # bound and not listening: nobody else is given this port
        made = Job(size, keeper.getsockname()[1], secrets.token_hex(16), Path(folder))
        try:
            yield made
        finally:
            made.kill()


def run(
    program: str,
    size: int,
    seconds: float = 60.0,
    environments: Mapping[int, dict[str, str]] | None = None,
) -> list[Outcome]:
    """How each rank of the program ended."""
    with job(size) as made:
        for rank in range(size):
            made.start(rank, program, **(environments or {}).get(rank, {}))
        return made.wait(seconds)
