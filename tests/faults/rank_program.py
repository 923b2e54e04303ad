"""What every rank of a trial runs."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import threading
import traceback
from pathlib import Path
from typing import Any

from injectors import Injected, Injector, Leaves
from journal import Journal
from trials import Trial

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
# Which module knows what the ranks of a driver do; its ``perform(trial, injector, journal)`` does it.
PROGRAMS = {"ddp": "ddp_program", "linear": "linear_program"}
_libc = ctypes.CDLL(None, use_errno=True)


def run(rank: int, trial_fields: dict[str, Any]) -> None:
    """Perform the trial.  What is no error of this library, and not injected, is written down as such."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives a campaign that is killed
    folder = Path(os.environ["OUTCOME"]).parent
    trial = Trial.from_json(trial_fields)
    if trial.networked:
        _enter(os.environ["NAMESPACES"].split()[rank])
    journal = Journal(folder, rank)
    journal.write(pid=os.getpid())
    threading.excepthook = lambda thrown: _unnamed(journal, thrown.exc_value)
    program = importlib.import_module(PROGRAMS.get(trial.driver, "collectives_program"))
    try:
        program.perform(trial, Injector(trial, rank, journal), journal)
    except Leaves:
        return
    except (Injected, SystemExit):
        raise
    except BaseException as error:
        _unnamed(journal, error)
        raise
    journal.write(end=True)


def _unnamed(journal: Journal, error: Any) -> None:
    journal.write(unnamed="".join(traceback.format_exception(error))[-3000:])


def _enter(namespace: str) -> None:
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(descriptor)
