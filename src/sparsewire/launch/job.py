"""Run this Python as the ranks of a job on this machine: over TCP or MPI, with or without emulated links."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack

from sparsewire.errors import InputError
from sparsewire.launch.emulation import emulated_network
from sparsewire.launch.local import OnLine, Outcome, launch
from sparsewire.launch.mpi import launch_mpi

__all__ = ["run_job"]


def run_job(
    arguments: Sequence[str],
    size: int,
    *,
    driver: str = "tcp",
    bits_per_second: int | None = None,
    on_line: OnLine | None = None,
) -> Outcome:
    """Run this Python with ``arguments`` once per rank and wait; ``launch.local`` says how a job ends."""
    if driver not in ("tcp", "mpi"):
        raise InputError(f"unknown driver {driver!r}; known are tcp and mpi")
    with ExitStack() as stack:
        network = stack.enter_context(emulated_network(size, bits_per_second)) if bits_per_second else None
        if driver == "mpi":
            # mpi4py's runner ends the whole job when one rank raises; otherwise the others would wait for it.
            command = [sys.executable, "-m", "mpi4py", *arguments]
            return launch_mpi(command, size, hosts=network.hosts if network else (), on_line=on_line)
        return launch(
            [sys.executable, *arguments],
            size,
            master_addr=network.hosts[0].address if network else "127.0.0.1",
            namespaces=network.namespaces if network else (),
            on_line=on_line,
        )
