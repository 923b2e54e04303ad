"""What encryption and tags cost: sums over connections with nothing, with tags and with TLS, in turns.

Run by hand: ``python benchmarks/security.py [rate of an emulated network, such as 1gbit]``.  Four ranks have
three communicators each, and call them one after the other.  A figure is the median of all turns, at the slowest
rank, in milliseconds; behind it is the median of its ratio to the call without protection of the same turn.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import numpy as np

import sparsewire as sw
from sparsewire.launch.emulation import emulated_network, parse_rate
from sparsewire.launch.local import launch

RANKS = 4
PROTECTIONS = {"nothing": {}, "tags": {"authenticate_frames": True}, "tls": {"tls": True}}
TURNS = 40
# name, length, entries (None: dense), algorithm
CASES = [
    ("100 entries", 1 << 20, 100, "recursive_doubling"),
    ("10,000 entries", 1 << 20, 10_000, "recursive_doubling"),
    ("1% of 16M", 1 << 24, 167_772, "split_allgather"),
    ("dense, 16 MiB", 1 << 22, None, "dense_ring"),
]


def communicators():
    """One of each, at ports of their own."""
    first = int(os.environ["MASTER_PORT"])
    made = {}
    for place, (name, protection) in enumerate(PROTECTIONS.items()):
        os.environ["MASTER_PORT"] = str(first + place)
        made[name] = sw.init(timeout=60, **protection)
    return made


def measure(comms, length, entries, algorithm):
    """Every turn's seconds, at the slowest rank, by protection."""
    plain = comms["nothing"]
    generator = np.random.default_rng(plain.rank)
    if entries is None:
        x = np.ones(length, "float32")
    else:
        indices = np.sort(generator.choice(length, entries, replace=False))
        x = sw.SparseVector(length, indices, np.ones(entries, "float32"))
    seconds = {name: [] for name in comms}
    for turn in range(TURNS + 3):
        for name, comm in comms.items():
            plain.barrier()
            started = time.perf_counter()
            comm.allreduce(x, algorithm=algorithm)
            if turn >= 3:
                seconds[name].append(time.perf_counter() - started)
    return {name: plain.allreduce(np.array(times), op="max") for name, times in seconds.items()}


def report(network):
    comms = communicators()
    rank = comms["nothing"].rank
    if rank == 0:
        print(f"{RANKS} ranks, {network}, milliseconds, and times the call without protection")
        print(f"{'':16}" + "".join(f"{name:>20}" for name in PROTECTIONS), flush=True)
    for name, length, entries, algorithm in CASES:
        found = measure(comms, length, entries, algorithm)
        words = ""
        for times in found.values():
            ratio = statistics.median(times / found["nothing"])
            words += f"{1e3 * statistics.median(times):>12.2f} {f'({ratio:.2f}x)':>7}"
        if rank == 0:
            print(f"{name:16}{words}", flush=True)


def main(network=None):
    command = [sys.executable, __file__, "--rank", network or "loopback"]

    def show(rank, stream, line):
        print(line.decode())

    if network is None:
        launch(command, RANKS, on_line=show)
        return
    with emulated_network(RANKS, parse_rate(network)) as emulated:
        launch(
            command,
            RANKS,
            master_addr=emulated.hosts[0].address,
            namespaces=emulated.namespaces,
            on_line=show,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        report(sys.argv[2])
    else:
        main(*sys.argv[1:])
