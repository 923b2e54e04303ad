"""Ranks as processes, connected by TCP: the driver that needs nothing but a network."""

from __future__ import annotations

import json
import socket
import time
from typing import TypeAlias

import numpy as np

from sparsewire.coding.call import Call
from sparsewire.drivers.aggregator import check_aggregators, check_agreement, engine_at
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.tcp.mesh import Address, Mesh, listen, reach
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector

__all__ = ["connect"]

_Page: TypeAlias = tuple[str, int, int]  # host, port, and how many of the ranks aggregate


def connect(
    rank: int,
    size: int,
    master: Address | socket.socket,
    secret: str,
    timeout: float,
    aggregators: int = 0,
) -> Engine:
    """Join the job whose rank 0 listens at ``master``; returns when every rank has come.

    Rank 0 may give the socket that listens already, others give its address.  The last ``aggregators`` of the
    ranks only aggregate; if ranks differ about how many, all raise CallMismatchError.
    """
    check_aggregators(aggregators, size)
    deadline = time.monotonic() + timeout
    if rank == 0:
        mesh = Mesh(0, size, listen(master) if isinstance(master, tuple) else master, secret)
    else:
        assert isinstance(master, tuple)
        to_master = reach(master, deadline)
        mesh = Mesh(rank, size, listen((to_master.getsockname()[0], 0)), secret)
        mesh.adopt(0, to_master)
    engine = engine_at(rank, size, mesh, aggregators)
    try:  # collective 0: everybody learns from rank 0 where everybody listens
        script = _address_book(rank, size, (*mesh.address, aggregators))
        remaining = max(0.0, deadline - time.monotonic())
        book, _ = engine.run(script, Call("rendezvous", length=size), remaining)
        mesh.addresses = {place: (host, port) for place, (host, port, _) in enumerate(book)}
    except BaseException:
        engine.close()
        raise
    return engine


def _address_book(rank: int, size: int, mine: _Page) -> Steps[list[_Page]]:
    """Everybody's address, collected and sent to all by rank 0, which also checks that aggregators agree."""
    if rank:
        [book] = yield [Send(0, _to_vector(mine)), Recv(0)]
        return [_from_vector(page) for page in book]
    pages = yield [Recv(peer) for peer in range(1, size)]
    book = [mine, *(_from_vector(page) for page in pages)]
    check_agreement([aggregators for _, _, aggregators in book])
    yield [Send(peer, [_to_vector(mine), *pages]) for peer in range(1, size)]
    return book


def _to_vector(page: _Page) -> SparseVector:
    return SparseVector.from_dense(np.frombuffer(json.dumps(page).encode(), np.uint8).astype(np.int32))


def _from_vector(vector: SparseVector) -> _Page:
    host, port, aggregators = json.loads(vector.to_dense().astype(np.uint8).tobytes())
    return str(host), int(port), int(aggregators)
