"""How much memory a call takes at its peak, beyond what its caller already holds."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsewire.bench.cases import Case, count_wrong, exact_sum
from sparsewire.bench.contenders import input_vector
from sparsewire.communicator import Communicator
from sparsewire.vector import SparseVector

__all__ = ["measure_allreduce", "peak_growth"]

WARM_UP_LENGTH = 1 << 16  # connects everybody and loads what is loaded on first use


def measure_allreduce(comm: Communicator, case: Case, algorithm: str) -> dict[str, Any]:
    """This rank's peak growth in bytes during one allreduce, and how many entries of it were wrong."""
    warm_up = Case(case.ranks, WARM_UP_LENGTH, case.density, case.dtype, "identical", case.seed)
    comm.allreduce(input_vector(warm_up, comm.rank), algorithm=algorithm)
    vector = input_vector(case, comm.rank)
    results: list[SparseVector] = []
    comm.barrier()
    growth = peak_growth(lambda: results.append(comm.allreduce(vector, algorithm=algorithm)))
    [total] = results
    return {
        "name": algorithm,
        "peak_bytes": growth,
        "result_bytes": total.nbytes,
        "wrong": count_wrong(total.to_dense(), exact_sum(case)),
    }


def peak_growth(call: Callable[[], object]) -> int:
    """Bytes by which resident memory rises during ``call``, at its highest, above what it is before."""
    if sys.platform != "linux":
        before = _peak_since_start()
        call()
        return _peak_since_start() - before
    # Memory that was freed but kept by malloc would be used again without being counted.
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
    if malloc_trim is not None:
        malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak to what is resident now
    before = _status("VmHWM")
    call()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {name}")


def _peak_since_start() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
