"""One rank of a soak: ``python tests/soak/rank.py SECONDS SEED EVERY_S PORT``.

Rank 0 sends events: {"sample": {"seconds": ..., "calls": ..., "ranks": [figures of each rank]}}.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from pathlib import Path
from random import Random

import numpy as np
from activities import Activities

import sparsewire as sw
from sparsewire.bench.harness.peers import LOOPBACK, gloo
from sparsewire.communicator.agreement import gather
from sparsewire.launch.events import say


def figures() -> dict[str, int]:
    """What must not grow: memory in bytes, descriptors, threads and objects.

    Pages that lie free in the C library's heap do not count: how many there are at a moment is chance.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in rollup}
    return {
        "rss": kilobytes["Rss"] << 10,
        "anonymous": kilobytes["Anonymous"] << 10,
        "heap": heap_bytes(),
        "blocks": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "python_threads": threading.active_count(),
        "objects": len(gc.get_objects()),
    }


def heap_bytes() -> int:
    """Bytes that the C library has given out; unlike resident memory, free gaps between them do not count."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Mallinfo
    info = library.mallinfo2()
    return int(info.uordblks + info.hblkhd)


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def main() -> None:
    seconds, seed, every_s, port = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    with sw.init(timeout=60.0) as comm:
        master = os.environ["MASTER_ADDR"], port
        with gloo(comm.rank, comm.size, master, LOOPBACK, 60.0):
            soak(comm, seconds, seed, every_s)


def soak(comm: sw.Communicator, seconds: float, seed: int, every_s: float) -> None:
    activities = Activities(comm, Random(seed))
    begin, next_sample = time.monotonic(), 0.0
    passed = 0.0
    while passed < seconds:
        activities.perform()
        # The clock of rank 0 decides for all.
        [passed] = comm.broadcast(np.array([time.monotonic() - begin]))
        if passed >= next_sample:
            next_sample = passed + every_s
            everybody = gather(comm, figures())
            if comm.rank == 0:
                say({"sample": {"seconds": passed, "calls": activities.calls, "ranks": everybody}})
    activities.close()
    comm.barrier()


if __name__ == "__main__":
    main()
