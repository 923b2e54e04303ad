"""How the ranks of a process group come to a communicator: over MPI if mpiexec started them, else over TCP.

They find each other by way of the group itself, and not of its store: after a restart torchrun's store still
has the keys of the attempt before (https://github.com/pytorch/pytorch/issues/135712).
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
import time
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from sparsewire.communicator import Communicator
from sparsewire.communicator.join import launched
from sparsewire.drivers import tcp
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.local import Alone
from sparsewire.drivers.protocols import Driver
from sparsewire.drivers.tcp.mesh import listen
from sparsewire.errors import CollectiveTimeout, InputError, PeerLostError
from sparsewire.torch.device import device_of_messages

__all__ = ["communicator", "group_of"]

LOOPBACK = "127.0.0.1"
PAGE_BYTES = 256  # what a rank tells the others: an address and a secret fit in
NOT_MPI = -1


def communicator(process_group: Any = None, timeout: float = 300.0) -> Communicator:
    """A communicator of the same ranks as ``process_group``, by default of all.

    A collective: all ranks of the group call it, between the same two of their other calls.  Each call makes
    another communicator.  ``timeout`` (seconds) holds for joining and is the default of its calls.

    >>> import torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> communicator().allreduce(torch.tensor([0.0, 2.0]))
    tensor([0., 2.])
    >>> dist.destroy_process_group()
    """
    group = group_of(process_group)
    return Communicator.of(_driver(group, timeout), timeout)


def group_of(process_group: Any) -> Any:
    """The group that is meant, of which this process is a rank."""
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("torch.distributed is not initialised: call init_process_group() first")
    if process_group is None:
        return dist.group.WORLD
    if process_group == dist.GroupMember.NON_GROUP_MEMBER:
        raise InputError(f"rank {dist.get_rank()} is no member of the process group; only its members call")
    if not isinstance(process_group, dist.ProcessGroup):
        raise InputError(f"{type(process_group).__name__} is no process group of torch.distributed")
    return process_group


class _Place(NamedTuple):
    """Where a rank is to be found."""

    mpi_rank: int
    address: str


def _driver(group: Any, timeout: float) -> Driver:
    if group.size() == 1:
        return Engine(0, 1, Alone())
    end = time.monotonic() + timeout
    mine = _Place(_mpi_rank(), _address_towards(_master(group)))
    places = [_Place(*page) for page in _exchange(group, mine, timeout)]
    ranks = [place.mpi_rank for place in places]
    if NOT_MPI not in ranks:
        return _mpi(ranks)
    return _tcp(group, [place.address for place in places], end - time.monotonic())


def _mpi_rank() -> int:
    """This process's rank in the job of mpiexec or srun, if it is one of MPI."""
    _, count = launched()
    if count == 1 or dist.is_torchelastic_launched():  # srun may have started torchrun, and that this process
        return NOT_MPI
    try:
        from mpi4py import MPI  # importing it starts MPI
    except (ImportError, RuntimeError):  # mpi4py is not there, or it finds no MPI
        return NOT_MPI
    world = MPI.COMM_WORLD
    return int(world.rank) if world.size == count else NOT_MPI


def _mpi(ranks: list[int]) -> Driver:
    """The processes with these ranks, in this order."""
    from mpi4py import MPI

    from sparsewire.drivers import mpi

    chosen = MPI.COMM_WORLD.group.Incl(ranks)
    comm = MPI.COMM_WORLD.Create_group(chosen)
    try:
        return mpi.connect(comm)  # on a duplicate
    finally:
        comm.Free()
        chosen.Free()


def _tcp(group: Any, addresses: list[str], timeout: float) -> Driver:
    """Rank 0 listens, and tells where, and the secret by which ranks recognise each other."""
    end = time.monotonic() + timeout
    listener, invitation = None, None
    if group.rank() == 0:
        listener = listen((_seen_by_others(addresses), 0))
        invitation = [*listener.getsockname()[:2], secrets.token_hex(32)]
    host, port, secret = _exchange(group, invitation, timeout)[0]
    return tcp.connect(group.rank(), group.size(), listener or (host, port), secret, end - time.monotonic())


def _exchange(group: Any, mine: Any, timeout: float) -> list[Any]:
    """Everybody's page, in rank order."""
    text = json.dumps(mine).encode().ljust(PAGE_BYTES)
    page = torch.tensor(list(text), dtype=torch.uint8, device=device_of_messages(group))
    pages = [torch.empty_like(page) for _ in range(group.size())]
    started = time.monotonic()
    try:
        dist.all_gather(pages, page, group, async_op=True).wait(timedelta(seconds=timeout))
    except RuntimeError as error:
        if time.monotonic() - started < timeout:
            raise PeerLostError(f"a rank of the process group is gone: {error}") from error
        raise CollectiveTimeout(
            f"not all {group.size()} ranks of the process group came within {timeout:g} s"
        ) from error
    return [json.loads(bytes(page.tolist())) for page in pages]


# -- addresses -----------------------------------------------------------------------------------


def _master(group: Any) -> str:
    """The host of the group's store; a store without one is shared by processes of one host."""
    try:
        store = _get_process_group_store(group)
    except KeyError:
        raise InputError("the process group was destroyed; give one that is in use") from None
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return str(store.host) if isinstance(store, dist.TCPStore) else LOOPBACK


def _address_towards(host: str) -> str:
    """This host's address on the way to another."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InputError(f"no way to {host}, where the process group's store is: {error}") from error


def _seen_by_others(addresses: list[str]) -> str:
    """Rank 0's address on the way to the others.

    On the master's own host its name often means loopback, which is of no use to ranks of other hosts.
    """
    elsewhere = [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
    return _address_towards(elsewhere[0]) if elsewhere else addresses[0]
