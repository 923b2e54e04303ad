"""How a process finds its group: ``sparsewire.init()``."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
from datetime import timedelta
from typing import Any

from sparsewire.communicator import Communicator
from sparsewire.drivers import tcp
from sparsewire.drivers.aggregator import check_aggregators
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.local import Alone
from sparsewire.drivers.protocols import Driver
from sparsewire.drivers.tcp.mesh import listen
from sparsewire.errors import InputError

__all__ = ["init", "launched"]

_JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# How many ranks were launched, as told by MPICH and Intel MPI, Open MPI, and Slurm.
_LAUNCHED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_inits = itertools.count()


def init(*, comm: Any = None, aggregators: int = 0, timeout: float = 300.0) -> Communicator:
    """The communicator of this process's job; a process that is alone is a group of one.

    ``comm`` is an mpi4py communicator to work on (on a duplicate, so its messages are the caller's alone).
    Without it, the job is described by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which
    ``sparsewire run`` and torchrun set, and by SPARSEWIRE_SECRET, which ``sparsewire run`` makes and
    torchrun's store carries; or else by mpiexec or srun, and the ranks are MPI's.  ``timeout`` (seconds)
    holds for joining and is the default of every call.

    The last ``aggregators`` of the job's ranks only aggregate: they call ``Communicator.serve``, and the
    others are a group without them.  All ranks give the same.  ``sparsewire run --aggregators`` starts more
    ranks for it, beyond WORLD_SIZE, and says so in SPARSEWIRE_AGGREGATORS; then scripts give none.

    >>> init()
    Communicator(rank=0, size=1)
    """
    return Communicator.of(_driver(comm, aggregators, timeout), timeout)


def _driver(comm: Any, aggregators: int, timeout: float) -> Driver:
    if comm is not None:
        return _mpi(comm, aggregators)
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return _of_mpiexec(aggregators)
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
    return tcp.connect(rank, size, master, secret, timeout, aggregators or beyond)


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
    if rank == 0:
        listener, secret = listen((host, 0)), secrets.token_hex(32)
        store.set("job", json.dumps([*listener.getsockname()[:2], secret]))
        return listener, secret
    master, master_port, secret = json.loads(store.get("job"))
    return (master, master_port), secret


def _secret() -> str:
    secret = os.environ.get("SPARSEWIRE_SECRET")
    if not secret:
        raise InputError(
            "SPARSEWIRE_SECRET is not set: ranks use it to recognise each other. `sparsewire run` makes one; "
            "with another launcher, give every rank the same random text"
        )
    return secret


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
