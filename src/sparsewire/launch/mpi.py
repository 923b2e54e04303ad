"""Start ranks with the mpiexec that belongs to this Python environment.

For the launcher mpiexec is one process.  It ends with the launcher as ranks do, and its ranks end with it.
On an emulated network every namespace is a host: mpiexec runs in the first one and reaches the others through
a script of ours in place of ssh.  Settings forbid MPI to send messages through shared memory.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsewire.errors import SparsewireError
from sparsewire.launch.emulation import INTERFACE, Host
from sparsewire.launch.local import GRACE_S, RANK_DEFAULTS, OnLine, Outcome, into_namespace, run_together

__all__ = ["MpiMissingError", "find_mpiexec", "launch_mpi", "mpi_version"]

# mpiexec calls this as `ssh OPTIONS ADDRESS COMMAND`.  The options are skipped; none of them has an argument.
SSH_TO_NAMESPACE = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in
%s
esac
shift
exec ip netns exec "$namespace" sh -c "$*"
"""
# MPICH uses no shared memory between ranks of one machine, and TCP for messages.
OVER_THE_NETWORK = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}
# If the launcher itself is a rank of a job, its variables must not reach our ranks.
VARIABLES_OF_A_JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Name -> a text that only this mpiexec prints with its version.
VERSION_TEXTS = {"MPICH": "HYDRA build details", "Open MPI": "open-mpi.org", "Intel MPI": "Intel(R) MPI"}
OPEN_MPI_OPTIONS = ["--allow-run-as-root", "--oversubscribe"]  # it refuses root, and more ranks than cores


class MpiMissingError(SparsewireError):
    """MPI is not installed, or not the one that is needed; the message says what to install."""


def launch_mpi(
    command: Sequence[str],
    size: int,
    *,
    hosts: Sequence[Host] = (),
    on_line: OnLine | None = None,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run ``command`` as ``size`` ranks of MPI and wait; with ``hosts`` (one per rank) one rank on each.

    mpiexec mixes the lines of all ranks, so all are passed on as lines of rank 0.
    """
    mpiexec = find_mpiexec()
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES_OF_A_JOB}
    environment = {**RANK_DEFAULTS, **environment, **(OVER_THE_NETWORK if hosts else {})}
    with tempfile.TemporaryDirectory() as directory:
        environment["TMPDIR"] = directory  # removed at the end, because a stopped mpiexec leaves files there
        place = into_namespace(hosts[0].namespace) if hosts else []
        options = _host_options(mpiexec, hosts, Path(directory)) if hosts else _local_options(mpiexec)
        words = [*place, mpiexec, *options, "-n", str(size), *command]
        outcome = run_together([(words, environment)], on_line=on_line, grace_s=grace_s)
    return replace(outcome, command="mpiexec")


def find_mpiexec() -> str:
    """The mpiexec in the folder of this Python, or else the first on the PATH."""
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    mpiexec = beside or shutil.which("mpiexec")
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        missing = "mpiexec" if mpiexec is None else "mpi4py"
        raise MpiMissingError(
            f"{missing} was not found: pip install 'sparsewire[mpi]', and an MPI such as `pip install mpich`"
        )
    return mpiexec


def mpi_version(mpiexec: str) -> str:
    """Name and version, e.g. "MPICH 5.0.2"."""
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    name = next((name for name, text in VERSION_TEXTS.items() if text in said), "unknown MPI")
    number = re.search(r"\d+(\.\d+)+", said)
    return f"{name} {number[0]}" if number else name


def _local_options(mpiexec: str) -> list[str]:
    return OPEN_MPI_OPTIONS if mpi_version(mpiexec).startswith("Open MPI") else []


def _host_options(mpiexec: str, hosts: Sequence[Host], directory: Path) -> list[str]:
    version = mpi_version(mpiexec)
    if not version.startswith("MPICH"):
        raise MpiMissingError(
            f"an emulated network needs MPICH, and {mpiexec} belongs to {version}: "
            "pip install mpich in an environment of its own, or leave out --network"
        )
    ssh, host_file = directory / "ssh", directory / "hosts"
    ssh.write_text(SSH_TO_NAMESPACE % "\n".join(f"{h.address}) namespace={h.namespace} ;;" for h in hosts))
    ssh.chmod(0o700)
    host_file.write_text("".join(f"{host.address}\n" for host in hosts))
    return ["-launcher", "ssh", "-launcher-exec", str(ssh), "-f", str(host_file), "-iface", INTERFACE]
