"""Ranks as processes, connected by TCP: the driver that needs nothing but a network."""

from __future__ import annotations

import json
import socket
import time

import numpy as np

from sparsewire.drivers.engine import Engine
from sparsewire.drivers.mesh import Address, Mesh, listen, reach
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector
from sparsewire.wire import Call

__all__ = ["connect"]


def connect(rank: int, size: int, master: Address | socket.socket, secret: str, timeout: float) -> Engine:
    """Join the job whose rank 0 listens at ``master``; returns when every rank has come.

    Rank 0 may give the socket that listens already, others give its address.
    """
    deadline = time.monotonic() + timeout
    if rank == 0:
        mesh = Mesh(0, size, listen(master) if isinstance(master, tuple) else master, secret)
    else:
        assert isinstance(master, tuple)
        to_master = reach(master, deadline)
        mesh = Mesh(rank, size, listen((to_master.getsockname()[0], 0)), secret)
        mesh.adopt(0, to_master)
    engine = Engine(rank, size, mesh)
    try:  # collective 0: everybody learns from rank 0 where everybody listens
        script = _address_book(rank, size, mesh.address)
        remaining = max(0.0, deadline - time.monotonic())
        book, _ = engine.run(script, Call("rendezvous", length=size), remaining)
        mesh.addresses = dict(enumerate(book))
    except BaseException:
        engine.close()
        raise
    return engine


def _address_book(rank: int, size: int, mine: Address) -> Steps[list[Address]]:
    """Everybody's address, by way of rank 0."""
    if rank:
        [book] = yield [Send(0, _to_vector(mine)), Recv(0)]
        return [_from_vector(page) for page in book]
    pages = yield [Recv(peer) for peer in range(1, size)]
    book = [_to_vector(mine), *pages]
    yield [Send(peer, book) for peer in range(1, size)]
    return [_from_vector(page) for page in book]


def _to_vector(address: Address) -> SparseVector:
    return SparseVector.from_dense(np.frombuffer(json.dumps(address).encode(), np.uint8).astype(np.int32))


def _from_vector(vector: SparseVector) -> Address:
    host, port = json.loads(vector.to_dense().astype(np.uint8).tobytes())
    return str(host), int(port)
