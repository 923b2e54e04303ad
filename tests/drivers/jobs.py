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
DIED = "died"  # ended without a word

# Runs main(rank, size) of the program and writes down how it ended.
_PRELUDE = """
import json, os, signal, sys, threading, time
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
def number(*names):
    return next(int(os.environ[name]) for name in names if name in os.environ)

rank = number("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
size = number("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
path = os.environ["OUTCOME"] = os.environ["OUTCOME"].format(rank=rank)

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


def outcome(folder: Path, rank: int, hung: bool) -> dict[str, Any]:
    """How the rank ended."""
    path = folder / OUTCOME.format(rank=rank)
    if path.exists():
        written: dict[str, Any] = json.loads(path.read_text())
        return written
    return {"error": HUNG if hung else DIED, "kinds": [], "message": ""}


@dataclass
class Job:
    """Started ranks; ``wait`` gives the outcomes in rank order."""

    size: int
    port: int
    secret: str
    folder: Path
    processes: dict[int, forked.Process] = field(default_factory=dict)

    def start(self, rank: int, program: str, **environment: str) -> None:
        job = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "SPARSEWIRE_SECRET": self.secret,
            "OUTCOME": str(self.folder / OUTCOME),
        }
        self.processes[rank] = forked.start(source(program), os.environ | job | environment)

    def wait(self, seconds: float = 60.0) -> list[dict[str, Any]]:
        end = time.monotonic() + seconds
        hung = {
            rank
            for rank, process in self.processes.items()
            if not process.has_ended(max(0.0, end - time.monotonic()))
        }
        outcomes = [outcome(self.folder, rank, rank in hung) for rank in sorted(self.processes)]
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
) -> list[dict[str, Any]]:
    """How each rank of the program ended: {"result": ...} or {"error": ..., "message": ...}."""
    with job(size) as made:
        for rank in range(size):
            made.start(rank, program, **(environments or {}).get(rank, {}))
        return made.wait(seconds)
