"""A communicator for the ranks of a process group: over MPI if mpiexec started them, else over TCP.

The ranks tell each other their addresses by collectives of the group and not by its store.  After a restart,
torchrun's store still has the keys of the attempt before (https://github.com/pytorch/pytorch/issues/135712).
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import time
from collections import Counter
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from sparsewire.communicator import Communicator
from sparsewire.communicator.join import (
    check_without_tcp,
    launched,
    protection_of,
    warn_of_clear_secret,
)
from sparsewire.drivers import tcp
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.local import Alone
from sparsewire.drivers.protocols import Driver
from sparsewire.drivers.tcp.sockets import listen
from sparsewire.drivers.waiting import announced
from sparsewire.errors import CollectiveTimeout, InputError, PeerLostError
from sparsewire.torch.device import device_of_messages

__all__ = ["communicator", "group_of"]

LOOPBACK = "127.0.0.1"
_calls: Counter[str] = Counter()  # of each process group, by its name
MESSAGE_BYTES = 256  # of what a rank tells the others: enough for an address and a secret
NOT_MPI = -1


def communicator(process_group: Any = None, timeout: float = 300.0) -> Communicator:
    """A new communicator of the ranks of ``process_group``, by default of all ranks.

    A collective: all ranks of the group call it, at the same place in the order of their calls.  ``timeout``
    (seconds) limits how long connecting takes, and is the default of the communicator's calls.

    >>> import torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> communicator().allreduce(torch.tensor([0.0, 2.0]))
    tensor([0., 2.])
    >>> dist.destroy_process_group()
    """
    group = group_of(process_group)
    return Communicator.of(_driver(group, timeout), timeout)


def group_of(process_group: Any) -> Any:
    """The process group, or that of all ranks for None; an InputError if this process is not in it."""
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
    """How the others reach a rank."""

    mpi_rank: int
    address: str


def _driver(group: Any, timeout: float) -> Driver:
    if group.size() == 1:
        return Engine(0, 1, Alone())
    end = time.monotonic() + timeout
    mine = _Place(_mpi_rank(), _address_towards(_master(group)))
    places = [_Place(*place) for place in _gather(group, mine, timeout)]
    ranks = [place.mpi_rank for place in places]
    if NOT_MPI not in ranks:
        check_without_tcp(protection_of())
        return _mpi(ranks)
    return _tcp(group, [place.address for place in places], end - time.monotonic())


def _mpi_rank() -> int:
    """This process's rank in the MPI job, if mpiexec or srun started it as part of one."""
    _, count = launched()
    if count == 1 or dist.is_torchelastic_launched():  # srun may have started torchrun
        return NOT_MPI
    try:
        from mpi4py import MPI  # importing it starts MPI
    except (ImportError, RuntimeError):  # mpi4py is not there, or it finds no MPI
        return NOT_MPI
    world = MPI.COMM_WORLD
    return int(world.rank) if world.size == count else NOT_MPI


def _mpi(ranks: list[int]) -> Driver:
    """A driver for the processes with these ranks of the MPI job, in this order."""
    from mpi4py import MPI

    from sparsewire.drivers import mpi

    chosen = MPI.COMM_WORLD.group.Incl(ranks)
    comm = MPI.COMM_WORLD.Create_group(chosen)
    try:
        return mpi.connect(comm)  # which duplicates it
    finally:
        comm.Free()
        chosen.Free()


def _tcp(group: Any, addresses: list[str], timeout: float) -> Driver:
    """A driver whose rank 0 listens, and tells the others where.

    It also tells them the secret that ranks prove to know, unless SPARSEWIRE_SECRET does.
    """
    end = time.monotonic() + timeout
    listener, invitation = None, None
    given = os.environ.get("SPARSEWIRE_SECRET", "")
    if group.rank() == 0:
        listener = listen((_seen_by_others(addresses), 0))
        invitation = [*listener.getsockname()[:2], None if given else secrets.token_hex(32)]
        if not given and len(set(addresses)) > 1:
            warn_of_clear_secret("the process group")
    everybody = _gather(group, [bool(given), invitation], timeout)
    have = [rank for rank, (has_one, _) in enumerate(everybody) if has_one]
    if len(have) not in (0, group.size()):
        raise InputError(f"only the ranks {have} have a SPARSEWIRE_SECRET: set the same on every rank")
    host, port, made = everybody[0][1]
    secret = made or given
    remaining = end - time.monotonic()
    master = listener or (host, port)
    return tcp.connect(group.rank(), group.size(), master, secret, remaining, protection=protection_of())


def _gather(group: Any, mine: Any, timeout: float) -> list[Any]:
    """What every rank of the process group tells, in rank order."""
    text = json.dumps(mine).encode().ljust(MESSAGE_BYTES)
    message = torch.tensor(list(text), dtype=torch.uint8, device=device_of_messages(group))
    messages = [torch.empty_like(message) for _ in range(group.size())]
    started, arrivals = time.monotonic(), _Arrivals(group)
    try:
        with announced(group.rank(), arrivals.missing):
            dist.all_gather(messages, message, group, async_op=True).wait(timedelta(seconds=timeout))
    except RuntimeError as error:
        if time.monotonic() - started < timeout:
            raise PeerLostError(f"a rank of the process group is gone: {error}") from error
        raise CollectiveTimeout(
            f"not all {group.size()} ranks of the process group came within {timeout:g} s: "
            f"waited for {arrivals.missing()}"
        ) from error
    return [json.loads(bytes(message.tolist())) for message in messages]


class _Arrivals:
    """Which ranks have come to this call of the process group; its store is asked only for messages.

    Each rank has one key, whose value is the number of its last call, so the store does not grow.
    After a restart, the store has the keys of the attempt before, so keys are those of an attempt.
    """

    def __init__(self, group: Any) -> None:
        self._group, self._store = group, _get_process_group_store(group)
        _calls[group.group_name] += 1
        self._call = _calls[group.group_name]
        self._store.set(self._key(group.rank()), f"{self._call}")

    def _key(self, rank: int) -> str:
        return f"sparsewire/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}"

    def _has_come(self, rank: int) -> bool:
        return self._store.check([self._key(rank)]) and int(self._store.get(self._key(rank))) >= self._call

    def missing(self) -> str:
        others = [rank for rank in range(self._group.size()) if rank != self._group.rank()]
        absent = [rank for rank in others if not self._has_come(rank)]
        names = ", ".join(map(str, absent or others))
        return f"rank {names} of the process group to make the same call"


# -- addresses -----------------------------------------------------------------------------------


def _master(group: Any) -> str:
    """The host of the group's store; stores that have none serve the processes of one host."""
    try:
        store = _get_process_group_store(group)
    except KeyError:
        raise InputError("the process group was destroyed; give one that is in use") from None
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return str(store.host) if isinstance(store, dist.TCPStore) else LOOPBACK


def _address_towards(host: str) -> str:
    """This host's address in the network that leads to another host."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InputError(f"no way to {host}, where the process group's store is: {error}") from error


def _seen_by_others(addresses: list[str]) -> str:
    """The address at which the others reach rank 0.

    On rank 0's own host, the host's name often means loopback, which ranks of other hosts cannot reach.
    """
    elsewhere = [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
    return _address_towards(elsewhere[0]) if elsewhere else addresses[0]
