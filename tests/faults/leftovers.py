"""What a campaign could leave on the machine: namespaces, shared memory, and processes."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "SPARSEWIRE_FAULTS"  # in the environment of every process that a campaign starts
GRACE_S = 5.0  # for those who are about to end, such as who continues a stopped rank
SHARED_MEMORY = Path("/dev/shm")
# What MPICH and Open MPI leave behind if their ranks are killed.  The campaign killed them, and removes it.
OF_AN_MPI = re.compile(r"mpich_|sm_segment\.|vader_segment\.")


@dataclass(frozen=True)
class Leftovers:
    shared_memory: frozenset[str]
    namespaces: frozenset[str]

    @classmethod
    def here(cls) -> Leftovers:
        """As it is before a campaign; marks what is started from now on."""
        os.environ[MARK] = str(os.getpid())
        return cls(_shared_memory(), _namespaces_without_owner())

    def new(self) -> list[str]:
        """What is there, belongs to nobody who lives, and was not there before."""
        end = time.monotonic() + GRACE_S
        while _marked() and time.monotonic() < end:
            time.sleep(0.1)
        mapped = _in_use()
        memory = [name for name in _shared_memory() - self.shared_memory if name not in mapped]
        for name in filter(OF_AN_MPI.match, memory):
            (SHARED_MEMORY / name).unlink(missing_ok=True)
        return [
            *(f"shared memory {name}" for name in sorted(memory) if not OF_AN_MPI.match(name)),
            *(f"process {pid}" for pid in _marked()),
            *(f"namespace {name}" for name in sorted(_namespaces_without_owner() - self.namespaces)),
        ]


def _shared_memory() -> frozenset[str]:
    return frozenset(path.name for path in SHARED_MEMORY.glob("*"))


def _in_use() -> str:
    """The memory maps of all processes, as one text."""
    return "\n".join(_read(path) for path in Path("/proc").glob("[0-9]*/maps"))


def _marked() -> list[int]:
    mark = f"{MARK}={os.getpid()}\0"
    found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]
    return [pid for pid in found if pid != os.getpid() and _parent_of(pid) != 0]


def _parent_of(pid: int) -> int:
    """Of a process that runs; 0 for one that has ended."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[1]) if fields and fields[0] != "Z" else 0


def _namespaces_without_owner() -> frozenset[str]:
    owners = {path.name: re.match(r"sw(\d+)-", path.name) for path in Path("/run/netns").glob("sw*")}
    return frozenset(name for name, owner in owners.items() if owner and not Path("/proc", owner[1]).exists())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
