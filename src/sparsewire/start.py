"""How a process finds its group: ``sparsewire.init()``."""

from __future__ import annotations

import os

from sparsewire.communicator import Communicator
from sparsewire.drivers import tcp
from sparsewire.drivers.local import LocalDriver
from sparsewire.errors import InputError

__all__ = ["init"]

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def init(*, timeout: float = 300.0) -> Communicator:
    """The communicator of this process's job; a process that is alone is a group of one.

    The job is described by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and SPARSEWIRE_SECRET, which
    ``sparsewire run`` sets.  ``timeout`` (seconds) holds for joining and is the default of every call.

    >>> init()
    Communicator(rank=0, size=1)
    """
    job = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    if "RANK" not in job and "WORLD_SIZE" not in job:
        return Communicator(LocalDriver(), timeout)
    rank, size = _integer(job, "RANK"), _integer(job, "WORLD_SIZE")
    if not 0 <= rank < size:
        raise InputError(f"RANK={rank} and WORLD_SIZE={size}: ranks are 0..WORLD_SIZE-1")
    if size == 1:
        return Communicator(LocalDriver(), timeout)
    master = _text(job, "MASTER_ADDR"), _integer(job, "MASTER_PORT")
    secret = os.environ.get("SPARSEWIRE_SECRET", "")
    if not secret:
        raise InputError(
            "SPARSEWIRE_SECRET is not set: ranks use it to recognise each other. `sparsewire run` makes one; "
            "with another launcher, give every rank the same random text"
        )
    return Communicator(tcp.connect(rank, size, master, secret, timeout), timeout)


def _text(job: dict[str, str], name: str) -> str:
    if not job.get(name):
        raise InputError(
            f"{name} is not set; a job needs {', '.join(_VARIABLES)}, or none of them for one rank"
        )
    return job[name]


def _integer(job: dict[str, str], name: str) -> int:
    text = _text(job, name)
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name}={text!r} is not an integer") from None
