"""``sparsewire doctor``: what is installed, and what can run here."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparsewire import kernels
from sparsewire.bench.harness.json_file import environment, version
from sparsewire.launch.emulation import EmulationError, emulated_network
from sparsewire.launch.mpi import MpiMissingError, find_mpiexec, mpi_version

# Optional package -> the extra that brings it, and what it is for.
OPTIONAL = {
    "torch": ("torch", "torch tensors in and out, gloo peers in the benchmark"),
    "mpi4py": ("mpi", "ranks of mpiexec and srun"),
    "matplotlib": ("report", "the plot of bench grid"),
    "scipy": ("linear", "scipy.sparse in and out"),
    "ml_dtypes": ("torch", "bfloat16"),
}


def print_doctor(console: Console) -> None:
    """One line per fact; what is missing comes with how to get it."""
    table = Table(box=None, show_header=False, pad_edge=False)
    facts = environment()
    for name in ("sparsewire", "python", "numpy"):
        table.add_row(name, facts[name] or "not installed, running from source")
    for package, (extra, purpose) in OPTIONAL.items():
        table.add_row(package, _version_or_advice(package, extra, purpose))
    table.add_row("machine", f"{facts['machine']}, {facts['cpus']} cpus, kernel {facts['kernel']}")
    table.add_row("instruction set", f"{facts['isa']} (available: {', '.join(kernels.available_isas())})")
    table.add_row("mpiexec", _mpi())
    table.add_row("network emulation", _emulation())
    console.print(table)


def _version_or_advice(package: str, extra: str, purpose: str) -> str:
    return version(package) or f"no ({purpose}): pip install 'sparsewire\\[{extra}]'"


def _mpi() -> str:
    try:
        return mpi_version(find_mpiexec())
    except MpiMissingError as error:
        return f"no: {escape(str(error))}"


def _emulation() -> str:
    """Whether it works, by trying: permissions come from too many sources to check each."""
    try:
        with emulated_network(1, 10**9):
            return "yes"
    except EmulationError as error:
        return f"no: {error}"
