"""How a process finds its group: ``sparsewire.init()``, or ``sparsewire.join()`` if it comes later."""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import secrets
import socket
import time
import warnings
from datetime import timedelta
from typing import Any

from sparsewire.communicator import Communicator
from sparsewire.drivers import tcp
from sparsewire.drivers.aggregator import check_aggregators
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.local import Alone
from sparsewire.drivers.protocols import Driver
from sparsewire.drivers.tcp.protection import TLS, Protection
from sparsewire.drivers.tcp.sockets import listen
from sparsewire.errors import InputError

__all__ = ["check_without_tcp", "init", "join", "launched", "protection_of", "warn_of_clear_secret"]

_JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# How many ranks were launched, as told by MPICH and Intel MPI, Open MPI, and Slurm.
_LAUNCHED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_inits = itertools.count()


def init(
    *,
    comm: Any = None,
    aggregators: int = 0,
    timeout: float = 300.0,
    tls: bool | TLS | None = None,
    authenticate_frames: bool | None = None,
) -> Communicator:
    """The communicator of this process's job; a process that is alone is a group of one.

    ``comm`` is an mpi4py communicator to work on (on a duplicate, so its messages are the caller's alone).
    Without it, the job is described by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which
    ``sparsewire run`` and torchrun set, and by SPARSEWIRE_SECRET, which ``sparsewire run`` makes and
    torchrun's store carries; or else by mpiexec or srun, and the ranks are MPI's.  ``timeout`` (seconds)
    holds for joining and is the default of every call.

    The last ``aggregators`` of the job's ranks only aggregate: they call ``Communicator.serve``, and the
    others are a group without them.  All ranks give the same.  ``sparsewire run --aggregators`` starts more
    ranks for it, beyond WORLD_SIZE, and says so in SPARSEWIRE_AGGREGATORS; then scripts give none.

    ``tls=True`` (or SPARSEWIRE_TLS=1) encrypts connections between ranks, with certificates that are made for
    the job, or with those of a ``sparsewire.TLS``.  ``authenticate_frames=True`` (or
    SPARSEWIRE_AUTHENTICATE_FRAMES=1) only adds a tag to every message, which shows that nobody has changed
    it.  All ranks give the same; docs/security.md says what each promises.

    >>> init()
    Communicator(rank=0, size=1)
    """
    protection = protection_of(tls, authenticate_frames)
    return Communicator.of(_driver(comm, aggregators, timeout, protection), timeout)


def join(
    *,
    address: tuple[str, int] | None = None,
    timeout: float = 300.0,
    tls: bool | TLS | None = None,
    authenticate_frames: bool | None = None,
) -> Communicator:
    """The communicator of a running group that takes this process in; returns when the group has grown.

    The group is found at MASTER_ADDR and MASTER_PORT, or at ``address``, which its ``comm.rendezvous`` says;
    SPARSEWIRE_SECRET is the job's.  Its ranks call ``comm.grow()`` at a point on which they agree.  ``tls``
    and ``authenticate_frames`` are those of the group, as ``init`` takes them.
    """
    deadline = time.monotonic() + timeout
    where = (_text("MASTER_ADDR"), _integer("MASTER_PORT")) if address is None else address
    driver, before = tcp.join(where, _secret(), timeout, protection_of(tls, authenticate_frames))
    return Communicator.formed(driver, before, timeout, deadline)


def _driver(comm: Any, aggregators: int, timeout: float, protection: Protection) -> Driver:
    if comm is not None or ("RANK" not in os.environ and "WORLD_SIZE" not in os.environ):
        driver = _of_mpiexec(aggregators) if comm is None else _mpi(comm, aggregators)
        if driver.size > 1:
            check_without_tcp(protection)
        return driver
    beyond = _aggregators_beyond(aggregators)
    rank, size = _integer("RANK"), _integer("WORLD_SIZE") + beyond
    if not 0 <= rank < size:
        more = f" and SPARSEWIRE_AGGREGATORS={beyond} beyond" if beyond else ""
        raise InputError(f"RANK={rank} and WORLD_SIZE={size - beyond}: ranks are 0..WORLD_SIZE-1{more}")
    if size == 1:
        return _alone(aggregators)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        master, secret = _from_torchrun(rank, timeout)
    else:
        master, secret = (_text("MASTER_ADDR"), _integer("MASTER_PORT")), _secret()
    return tcp.connect(rank, size, master, secret, timeout, aggregators or beyond, protection)


def protection_of(tls: bool | TLS | None = None, authenticate_frames: bool | None = None) -> Protection:
    """What is given, or else what the environment says."""
    if tls is None:
        tls = _switch("SPARSEWIRE_TLS")
    if authenticate_frames is None:
        authenticate_frames = _switch("SPARSEWIRE_AUTHENTICATE_FRAMES")
    return Protection(tls, authenticate_frames)


def check_without_tcp(protection: Protection) -> None:
    """Raises InputError if ranks that MPI connects ask for what only TCP connections have."""
    if protection != Protection():
        raise InputError(
            "tls and authenticate_frames protect TCP connections, and MPI connects these ranks: "
            f"leave them out, or set {', '.join(_JOB)} for TCP"
        )


def _aggregators_beyond(aggregators: int) -> int:
    """How many ranks the launcher has started beyond WORLD_SIZE."""
    beyond = _integer("SPARSEWIRE_AGGREGATORS") if os.environ.get("SPARSEWIRE_AGGREGATORS") else 0
    if beyond and aggregators:
        raise InputError(
            f"the launcher has started {beyond} aggregators (SPARSEWIRE_AGGREGATORS), and init() asks for "
            f"{aggregators} of the other ranks: leave out one of the two"
        )
    return beyond


def _alone(aggregators: int) -> Driver:
    check_aggregators(aggregators, 1)
    return Engine(0, 1, Alone())


def _of_mpiexec(aggregators: int) -> Driver:
    """The ranks of mpiexec or srun, if there are several."""
    said, count = launched()
    if count == 1:
        return _alone(aggregators)
    driver = _mpi(None, aggregators)
    if driver.size != count:
        raise InputError(
            f"{said}={count}, but MPI has {driver.size} rank: the launcher belongs to another MPI "
            "than mpi4py. Use the mpiexec of the MPI that mpi4py loads (with srun: --mpi=pmi2 or pmix), or "
            f"set {', '.join(_JOB)} for TCP"
        )
    return driver


def launched() -> tuple[str, int]:
    """The variable that tells how many ranks mpiexec or srun started, and their number; 1 without one."""
    said = next((name for name in _LAUNCHED if os.environ.get(name, "1") != "1"), None)
    return (said, _integer(said)) if said else ("", 1)


def _mpi(comm: Any, aggregators: int) -> Driver:
    from sparsewire.drivers import mpi  # importing it starts MPI

    return mpi.connect(comm, aggregators)


def _from_torchrun(rank: int, timeout: float) -> tuple[tuple[str, int] | socket.socket, str]:
    """Where rank 0 listens and the job's secret, from the store that torchrun keeps at MASTER_PORT."""
    from torch.distributed import PrefixStore, TCPStore

    limit = timedelta(seconds=timeout)
    host, port = _text("MASTER_ADDR"), _integer("MASTER_PORT")
    attempt = f"sparsewire/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_inits)}"
    store = PrefixStore(attempt, TCPStore(host, port, is_master=False, timeout=limit))
    given = os.environ.get("SPARSEWIRE_SECRET")
    if rank == 0:
        listener, secret = listen((host, 0)), given or secrets.token_hex(32)
        store.set("job", json.dumps([*listener.getsockname()[:2], None if given else secret]))
        if not given and not _on_one_host(listener):
            warn_of_clear_secret("torchrun's store")
        return listener, secret
    master, master_port, made = json.loads(store.get("job"))
    if (made is None) != bool(given):
        raise InputError(
            f"rank {rank if given else 0} has a SPARSEWIRE_SECRET and rank {0 if given else rank} has none: "
            "set the same on every rank"
        )
    return (master, master_port), given or made


def warn_of_clear_secret(carrier: str) -> None:
    """For rank 0, which has made a secret that something sends to the other ranks without encryption."""
    warnings.warn(
        f"{carrier} carries the secret of this job over the network in the clear: whoever can read it can "
        "join the job. Set SPARSEWIRE_SECRET to the same random text on every rank to avoid this",
        stacklevel=2,
    )


def _on_one_host(listener: socket.socket) -> bool:
    """Does nothing that torchrun's ranks send leave this host?"""
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return alone or ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _secret() -> str:
    secret = os.environ.get("SPARSEWIRE_SECRET")
    if not secret:
        raise InputError(
            "SPARSEWIRE_SECRET is not set: ranks use it to recognise each other. `sparsewire run` makes one; "
            "with another launcher, give every rank the same random text, such as that of "
            "python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return secret


def _switch(name: str) -> bool:
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise InputError(f"{name}={text!r} must be 1 or 0")
    return text == "1"


def _text(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise InputError(f"{name} is not set; a job needs {', '.join(_JOB)}, or none of them for one rank")
    return value


def _integer(name: str) -> int:
    text = _text(name)
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name}={text!r} is not an integer") from None
