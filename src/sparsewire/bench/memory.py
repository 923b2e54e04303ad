"""``bench memory``: how much memory an allreduce takes at its peak, beyond what its caller already holds."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsewire.bench.harness import contenders, session, table
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.options import DensityText, Json, Names, ProblemOptions, Size
from sparsewire.bench.harness.problem import Case, count_wrong, exact_sum
from sparsewire.bench.harness.records import OfRanks, ProblemRow, problem_fields
from sparsewire.bench.harness.worker import CasePlan, Found, OnStep
from sparsewire.communicator import Communicator
from sparsewire.vector import SparseVector

ENTRY_BYTES = 8  # a u32 index and a float32 value
WARM_UP_LENGTH = 1 << 16  # connects all ranks and loads what is loaded on first use


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(ProblemOptions):
    """Peak memory of one allreduce per rank, for the sparse algorithms."""

    size: Size = "64M"
    density: DensityText = "0.001"
    algorithms: Names = "all"
    json: Json = None


@dataclass(frozen=True)
class MemoryPlan(CasePlan):
    """What every rank measures."""

    algorithm: str

    def measure_case(self, comm: Communicator, case: Case, on_step: OnStep) -> Found:
        """This rank's peak growth in bytes during one allreduce, and how many entries of it were wrong."""
        warm_up = Case(case.ranks, WARM_UP_LENGTH, case.density, case.dtype, "identical", case.seed)
        comm.allreduce(contenders.input_vector(warm_up, comm.rank), algorithm=self.algorithm)
        vector = contenders.input_vector(case, comm.rank)
        results: list[SparseVector] = []
        comm.barrier()
        growth = peak_growth(lambda: results.append(comm.allreduce(vector, algorithm=self.algorithm)))
        [total] = results
        wrong = count_wrong(total.to_dense(), exact_sum(case))
        return {"peak_bytes": growth, "result_bytes": total.nbytes, "wrong": wrong}, {}


@dataclass(frozen=True, kw_only=True)
class MemoryRow(ProblemRow):
    """What one algorithm needs beyond its caller's vector, at the rank that needs most."""

    algorithm: str
    peak_bytes_max: int
    peak_in_inputs: float  # in units of nnz_in x 8 bytes: an input of float32 and u32
    result_bytes_max: int
    wrong: int


def run(options: MemoryOptions, on_progress: OnProgress) -> list[Result[MemoryRow]]:
    """Each algorithm in fresh processes, because one must not use the heap that another has left."""
    case, algorithms, rows = options.case(), contenders.choose_sparse_algorithms(options.algorithms), []
    for done, name in enumerate(algorithms):
        on_progress(f"memory of {name}", done, len(algorithms))
        [event] = session.run_ranks(MemoryPlan((case,), name), "tcp", None)
        rows.append(_row(case, name, event["found"]))
    header = [
        table.describe_problem(case),
        "peak: growth of resident memory during one call, at the rank that needs most; "
        "fresh processes for each algorithm",
    ]
    return [Result(rows, header)]


def _row(case: Case, algorithm: str, of_ranks: OfRanks) -> MemoryRow:
    peak = max(record["peak_bytes"] for record in of_ranks)
    return MemoryRow(
        algorithm=algorithm,
        **problem_fields(case),
        peak_bytes_max=peak,
        peak_in_inputs=peak / (case.nnz * ENTRY_BYTES),
        result_bytes_max=max(record["result_bytes"] for record in of_ranks),
        wrong=sum(record["wrong"] for record in of_ranks),
    )


COLUMNS: Columns[MemoryRow] = {
    "algorithm": lambda row: row.algorithm,
    "peak": lambda row: table.format_bytes(row.peak_bytes_max),
    "in inputs of k x 8 bytes": lambda row: f"{row.peak_in_inputs:.1f}",
    "result": lambda row: table.format_bytes(row.result_bytes_max),
    "wrong": lambda row: table.format_wrong(row.wrong),
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


BENCHMARK = Benchmark("bench memory", MemoryOptions, run, COLUMNS)
