"""Ranks as processes, connected by TCP: the driver that needs nothing but a network."""

from __future__ import annotations

import socket
import time
from typing import Any, TypeAlias

from sparsewire.coding import frame
from sparsewire.coding.call import Call, Envelope
from sparsewire.drivers import note
from sparsewire.drivers.aggregator import check_aggregators, check_agreement, engine_at
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.tcp import handshake
from sparsewire.drivers.tcp.elastic import ElasticMesh
from sparsewire.drivers.tcp.protection import Protection, check_secret, encryption_of
from sparsewire.drivers.tcp.sockets import Address, listen, reach
from sparsewire.drivers.waiting import announced
from sparsewire.errors import CollectiveTimeout, SparsewireError, WireError
from sparsewire.expected import Pieces
from sparsewire.steps import Recv, Send, Steps
from sparsewire.vector import SparseVector

__all__ = ["connect", "join"]

AGAIN_S = 0.1  # before a newcomer comes to the rendezvous again

_Page: TypeAlias = tuple[str, int, int]  # host, port, and how many of the ranks aggregate


def connect(
    rank: int,
    size: int,
    master: Address | socket.socket,
    secret: str,
    timeout: float,
    aggregators: int = 0,
    protection: Protection | None = None,
) -> Engine:
    """Join the job whose rank 0 listens at ``master``; returns when every rank has come.

    Rank 0 may give the socket that listens already, others give its address.  The last ``aggregators`` of the
    ranks only aggregate; if ranks differ about how many, or in their ``protection``, all raise
    CallMismatchError.
    """
    check_aggregators(aggregators, size)
    check_secret(secret)
    deadline = time.monotonic() + timeout
    settings = (secret, timeout, protection, rank >= size - aggregators, encryption_of(protection))
    if rank == 0:
        mesh = ElasticMesh(0, size, listen(master) if isinstance(master, tuple) else master, *settings)
    else:
        assert isinstance(master, tuple)
        where = f"{master[0]}:{master[1]}"
        with announced(rank, lambda: f"rank 0 to listen at {where} (MASTER_ADDR and MASTER_PORT)"):
            to_master, where_it_is = reach(master, deadline)
        mesh = ElasticMesh(rank, size, listen((to_master.getsockname()[0], 0)), *settings)
        mesh.addresses = {0: where_it_is}
        mesh.adopt(0, to_master)
    engine = engine_at(rank, size, mesh, aggregators)
    try:  # collective 0: everybody learns from rank 0 where everybody listens
        script = _address_book(rank, size, (*mesh.address, aggregators))
        remaining = max(0.0, deadline - time.monotonic())
        with announced(rank, lambda: _missing(engine)):
            book, _ = engine.run(script, Call("rendezvous", length=size), remaining)
        mesh.addresses = {place: (host, port) for place, (host, port, _) in enumerate(book)}
        mesh.rendezvous = mesh.addresses[0]
    except BaseException:
        engine.close()
        raise
    return engine


def _missing(engine: Engine) -> str:
    """Whom a rank that joins waits for: rank 0 knows, and the others wait for rank 0's answer."""
    if engine.rank and 0 in engine.transport.met:
        return "other ranks to join; rank 0 says which"
    return f"rank {', '.join(map(str, engine.awaited))} to join"


def join(
    address: Address, secret: str, timeout: float, protection: Protection | None = None
) -> tuple[Engine, int]:
    """Wait at a group's rendezvous until it grows; returns the engine of the group, and its size before."""
    check_secret(secret)
    deadline = time.monotonic() + timeout
    why = "nobody answered"
    while time.monotonic() < deadline:
        connected, _ = reach(address, deadline)
        settings = (f"{secret}/join", timeout, protection)
        lobby = ElasticMesh(handshake.NEWCOMER, 0, listen((connected.getsockname()[0], 0)), *settings)
        try:
            lobby.adopt(0, connected)
            if welcome := _wait_in(lobby, deadline):
                rank, before, everybody, (host, port) = welcome
                mesh = lobby.join(rank, everybody, (host, port), secret)
                return Engine(rank, len(everybody), mesh), before
            why = lobby.lost.get(0, "the group did not call grow()")
        finally:
            lobby.close()
        time.sleep(AGAIN_S)  # the group may be between two of its meshes
    host, port = address
    raise CollectiveTimeout(
        f"nobody was taken in at {host}:{port} within {timeout:g} s: {why}. All ranks of the group have to "
        "call grow(); its rendezvous may have moved, and comm.rendezvous says where"
    )


def _wait_in(lobby: ElasticMesh, deadline: float) -> list[Any]:
    """What rank 0 tells a newcomer when it is taken in; nothing if that does not happen."""
    welcome: list[Any] = []
    errors: list[SparsewireError] = []
    lobby.attach(
        lambda source, message: welcome.extend(note.from_vector(source, message.payload)), errors.append
    )
    lobby.post([0], frame.encode(note.to_vector(lobby.invite().decode()), Envelope()))
    while not welcome and not lobby.lost and time.monotonic() < deadline:
        lobby.poll(deadline - time.monotonic())
    if errors:
        raise errors[0]
    return welcome


def _address_book(rank: int, size: int, mine: _Page) -> Steps[list[_Page]]:
    """Everybody's address, collected and sent to all by rank 0, which also checks that aggregators agree."""
    if rank:
        [book] = yield [Send(0, note.to_vector(mine)), Recv(0, Pieces([note.NOTE] * size))]
        return [_page(0, page) for page in book]
    pages = yield [Recv(peer, note.NOTE) for peer in range(1, size)]
    book = [mine, *(_page(peer, page) for peer, page in enumerate(pages, start=1))]
    check_agreement([aggregators for _, _, aggregators in book])
    yield [Send(peer, [note.to_vector(mine), *pages]) for peer in range(1, size)]
    return book


def _page(source: int, vector: SparseVector) -> _Page:
    try:
        host, port, aggregators = note.from_vector(source, vector)
        return str(host), int(port), int(aggregators)
    except (ValueError, TypeError):
        raise WireError(f"rank {source} sent an address that cannot be read") from None
