"""Receiving messages of unknown size over MPI: four ways, in microseconds.

    Joined    header and array copied into one buffer; the receiver probes (Improbe) and allocates
    InPlace   the same, but the sender gives MPI both addresses (a datatype) and copies nothing
    Probed    small ones joined; a large array follows its header, which is probed for, as a second message
    Posted    receives of 4 KiB wait for headers and small arrays; a large array follows as a second message

Run by hand: ``mpiexec -n 4 python benchmarks/mpi_unknown_size.py``.  Every message gets memory of its own
from the library's pool.  The ping-pong (half a round trip) is between ranks 0 and 1; in the all-to-all every
rank sends one message to each of the others.  A figure is the smallest of seven medians, taken in turns.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque

import numpy as np
from mpi4py import MPI

from sparsewire.kernels import memory

HEADER = np.arange(112, dtype=np.uint8)
EAGER = 4096  # bytes of a posted receive
LARGE = 1 << 15  # bytes from which an array is worth a message of its own
TURNS = 7
SIZES = {"1 KB": 1 << 10, "8 KB": 1 << 13, "64 KB": 1 << 16, "1 MB": 1 << 20, "8 MB": 1 << 23}


class Joined:
    """One message of the right size, found by a matched probe."""

    def __init__(self, comm):
        self.comm = comm

    def send(self, peers, array):
        message = memory.empty(len(HEADER) + len(array), np.uint8)
        message[: len(HEADER)], message[len(HEADER) :] = HEADER, array
        return [self.comm.Isend([message, MPI.BYTE], peer) for peer in peers]

    def receive(self):
        status = MPI.Status()
        while (message := self.comm.Improbe(MPI.ANY_SOURCE, 0, status)) is None:
            os.sched_yield()
        buffer = memory.empty(status.Get_elements(MPI.BYTE), np.uint8)
        wait([message.Irecv([buffer, MPI.BYTE])])
        self.source, self.header = status.Get_source(), buffer[: len(HEADER)]
        return buffer[len(HEADER) :]

    def close(self):
        pass


class InPlace(Joined):
    def send(self, peers, array):
        addresses = [MPI.Get_address(HEADER), MPI.Get_address(array)]
        both = MPI.BYTE.Create_hindexed([len(HEADER), len(array)], addresses).Commit()
        requests = [self.comm.Isend([MPI.BOTTOM, 1, both], peer) for peer in peers]
        both.Free()
        return requests


class Probed(Joined):
    """A large array follows its header, with tag 1."""

    def send(self, peers, array):
        if len(array) < LARGE:
            return super().send(peers, array)
        header = HEADER.copy()
        header[:8] = np.array([len(array)], np.int64).view(np.uint8)
        requests = [self.comm.Isend([header, MPI.BYTE], peer, 0) for peer in peers]
        return requests + [self.comm.Isend([array, MPI.BYTE], peer, 1) for peer in peers]

    def receive(self):
        array = super().receive()
        if len(array):
            return array
        array = memory.empty(int(self.header[:8].view(np.int64)[0]), np.uint8)
        wait([self.comm.Irecv([array, MPI.BYTE], self.source, 1)])
        return array


class Posted:
    """Receives of a fixed size wait for headers; the header says what follows with tag 1."""

    def __init__(self, comm):
        self.comm = comm
        self.slots = deque()
        for _ in range(4 * comm.size):
            buffer = np.empty(EAGER, np.uint8)
            self.slots.append((buffer, comm.Recv_init([buffer, MPI.BYTE], MPI.ANY_SOURCE, 0)))
            self.slots[-1][1].Start()

    def send(self, peers, array):
        size = np.array([len(array)], np.int64).view(np.uint8)
        if len(array) + len(HEADER) <= EAGER:
            first, parts = np.concatenate([size, HEADER[8:], array]), []
        else:
            first, parts = np.concatenate([size, HEADER[8:]]), [array]
        requests = [self.comm.Isend([first, MPI.BYTE], peer, 0) for peer in peers]
        return requests + [self.comm.Isend([part, MPI.BYTE], peer, 1) for part in parts for peer in peers]

    def receive(self):
        buffer, request = self.slots.popleft()  # receives from anybody are matched in the order posted
        status = MPI.Status()
        while not request.Test(status):
            os.sched_yield()
        array = memory.empty(int(buffer[:8].view(np.int64)[0]), np.uint8)
        if len(array) + len(HEADER) <= EAGER:
            array[:] = buffer[len(HEADER) : len(HEADER) + len(array)]
        else:
            wait([self.comm.Irecv([array, MPI.BYTE], status.Get_source(), 1)])
        request.Start()
        self.slots.append((buffer, request))
        return array

    def close(self):
        for _, request in self.slots:
            request.Cancel()
            request.Wait()
            request.Free()


def wait(requests):
    """Give the core away between two looks: there may be more ranks than cores."""
    while not MPI.Request.Testall(requests):
        os.sched_yield()


def ping_pong(way, comm, array):
    if comm.rank == 0:
        requests = way.send([1], array)
        way.receive()
        wait(requests)
    elif comm.rank == 1:
        wait(way.send([0], way.receive()))


def all_to_all(way, comm, array):
    requests = way.send([peer for peer in range(comm.size) if peer != comm.rank], array)
    for _ in range(comm.size - 1):
        way.receive()
    wait(requests)


def median_us(pattern, way, comm, size):
    array = np.ones(size, np.uint8)
    seconds = []
    for _ in range(max(10, min(300, (1 << 24) // size))):
        started = time.perf_counter()
        pattern(way, comm, array)
        seconds.append(time.perf_counter() - started)
    wait([comm.Ibarrier()])
    return 1e6 * statistics.median(seconds[5:])


def main():
    world = MPI.COMM_WORLD
    ways = {way.__name__: way(world.Dup()) for way in (Joined, InPlace, Probed, Posted)}
    if world.rank == 0:
        print(MPI.Get_library_version().splitlines()[0].split(", ")[0], f"{world.size} ranks", sep=", ")
        print(f"{'':12}{'payload':>8}" + "".join(f"{name:>12}" for name in ways))
    for title, pattern, divisor in [("ping-pong", ping_pong, 2), ("all-to-all", all_to_all, 1)]:
        for label, size in SIZES.items():
            turns = [[median_us(pattern, way, way.comm, size) for way in ways.values()] for _ in range(TURNS)]
            if world.rank == 0:
                print(
                    f"{title:12}{label:>8}"
                    + "".join(f"{min(us) / divisor:12.1f}" for us in zip(*turns, strict=True))
                )
    for way in ways.values():
        way.close()


if __name__ == "__main__":
    main()
