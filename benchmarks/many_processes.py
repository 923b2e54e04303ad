"""How much a job of many ranks on one machine needs: time to join, time of a sum, descriptors and memory.

Run by hand: ``python benchmarks/many_processes.py [ranks] [ranks] ...``, by default 4, 64 and 256.  Each rank is
a process.  With ``allgather_sum`` all ranks are connected with all others; with ``recursive_doubling`` each needs
log2(ranks).  Every sum is compared with the exact one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import sparsewire as sw
from sparsewire.launch.job import run_job

TIMEOUT_S = 300
LENGTH = 1 << 16
ENTRIES = 100
MIB = 1 << 20


def figures():
    """Descriptors, and memory in bytes that this process does not share with others."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in rollup}
    return len(os.listdir("/proc/self/fd")), (kilobytes["Private_Dirty"] + kilobytes["Private_Clean"]) << 10


def summed(comm, algorithm):
    """Seconds of a sum after one that makes the connections; raises if it is wrong."""
    places = np.arange(ENTRIES) * 97 + comm.rank
    x = sw.SparseVector(LENGTH, places, np.ones(ENTRIES))
    expected = np.zeros(LENGTH)
    for rank in range(comm.size):
        expected[np.arange(ENTRIES) * 97 + rank] += 1.0
    for _ in range(2):
        comm.barrier()
        started = time.perf_counter()
        total = comm.allreduce(x, algorithm=algorithm)
        seconds = time.perf_counter() - started
    if not np.array_equal(total.to_dense(), expected):
        raise AssertionError(f"rank {comm.rank}: a wrong sum by {algorithm}")
    return seconds


def rank():
    started = time.perf_counter()
    comm = sw.init(timeout=TIMEOUT_S)
    found = [time.perf_counter() - started]
    for algorithm in ("recursive_doubling", "allgather_sum"):
        before = figures()[1]
        seconds = summed(comm, algorithm)
        descriptors, memory = figures()
        found += [seconds, descriptors, memory / MIB, (memory - before) / MIB]
    worst = comm.allreduce(np.array(found), op="max")
    if comm.rank == 0:
        joined, *rest = worst
        words = [f"{comm.size:6}", f"{joined:10.1f}"]
        for seconds, descriptors, memory, more in (rest[:4], rest[4:]):
            words += [f"{1e3 * seconds:12.1f}", f"{descriptors:6.0f}", f"{memory:8.1f}", f"{more:8.1f}"]
        print(*words, flush=True)
    comm.close()


def main(sizes):
    print("largest of all ranks; MiB are private memory of a rank, and by how much this kind of sum has raised it")
    print(f"{'':18}{'recursive_doubling':^38}{'allgather_sum':^37}")
    print(" ranks   joining s" + "       sum ms  files      MiB     more" * 2, flush=True)
    for size in sizes:
        run_job([__file__, "--rank"], size, on_line=show)


def show(rank, stream, line):
    """Pass on the table, and not what ranks say to stderr while they wait for the others to start."""
    if stream == "stdout":
        print(line.decode(), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        rank()
    else:
        main([int(size) for size in sys.argv[1:]] or [4, 64, 256])
