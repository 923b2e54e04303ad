"""``simulate allreduce``: predictions in virtual time, by the same scripts on real vectors.

All ranks live in this process, so a large problem is simulated smaller: length, bandwidth and the speed of
computing are all divided by ``scale``.  That leaves every time as it is, except for what does not shrink with
the length: headers, reports, the number of segments.  Times and bytes are corrected for these by the cost
functions.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sparsewire.bench import allreduce
from sparsewire.bench.allreduce.rows import Row, make_rows
from sparsewire.bench.harness import clock, contenders, layouts, table
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.bounds import Bounds
from sparsewire.bench.harness.options import Json, Names, Precisions, ProblemOptions, Ranks, Size, option
from sparsewire.bench.harness.problem import Case, Values, count_wrong, exact_sum
from sparsewire.bench.harness.variants import predicted_seconds, script, takes_dense
from sparsewire.cost import HEADER_BYTES, CostFigures
from sparsewire.drivers import simulator
from sparsewire.errors import InputError
from sparsewire.launch.emulation import parse_rate
from sparsewire.vector import SparseVector, value_dtype

# All ranks' results together, if they were dense.  Scripts hold a few times as much.
ROOM_BYTES = 1 << 30
FEWEST_ENTRIES = 1024  # of an input: with fewer, chance decides how they spread
# Merging four sorted runs of 100,000 float32 entries; adding, copying and scanning values: on one core of an
# ordinary server.
SECONDS_PER_ENTRY = 6e-9
SECONDS_PER_VALUE = 0.4e-9
# Columns that it shares with ``bench allreduce``.
OF_ALLREDUCE = ("vs\ndense", "vs\ncoo", "bytes\nsent", "messages", "x wire\nlimit", "density\nout", "wrong")
PER_SECOND = {"": 1.0, "s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(ProblemOptions):
    """How long each algorithm would take on a network of that latency and bandwidth."""

    ranks: Ranks = 256
    size: Size = "110M"
    algorithms: Names = "all"
    precision: Precisions = "exact"
    latency: str = option("50us", "Of every message, e.g. 50us.")
    overhead: str = option("60us", "What a rank spends on each message; the default is that of TCP.")
    bandwidth: str = option("1gbit", "Of every rank, in each direction, e.g. 1gbit.")
    json: Json = None


def parse_duration(text: str) -> float:
    """Seconds.

    >>> parse_duration("50us"), parse_duration("0.1ms"), parse_duration("0")
    (5e-05, 0.0001, 0.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|ms|us|ns|)", text.strip().lower())
    if match is None or (match[2] == "" and float(match[1]) != 0):
        raise InputError(f"duration {text!r} is not understood; write for example 50us, 1.5ms or 0")
    return float(match[1]) / PER_SECOND[match[2]]


def run(options: SimulateOptions, on_progress: OnProgress) -> list[Result[Row]]:
    """What a simulation says, with what the cost functions say beside it."""
    case = options.case()
    figures = CostFigures(
        latency=parse_duration(options.latency),
        bandwidth=parse_rate(options.bandwidth) / 8,
        overhead=parse_duration(options.overhead),
        seconds_per_entry=SECONDS_PER_ENTRY,
        seconds_per_value=SECONDS_PER_VALUE,
    )
    algorithms = contenders.choose_algorithms(options.algorithms, "simulator")
    precisions = contenders.choose_precisions(options.precision, options.dtype)
    running, skipped = contenders.configurations(algorithms, precisions)
    scale = scale_of(case)
    rows = simulate(case, running, figures, options.bandwidth, on_progress)
    header = [
        table.describe_problem(case),
        f"simulated network: latency {options.latency}, {options.overhead} per message, "
        f"{options.bandwidth} per rank; coding is free",
    ]
    if scale > 1:
        header.append(
            f"simulated at 1/{scale} of the length and of the bandwidth, so that {case.ranks} ranks fit into "
            "memory"
        )
    model = predict(case, running, figures)
    more = {"scale": scale, "model_seconds": model}
    return [Result(rows, header, skipped, more, columns=_columns(model))]


def simulate(
    case: Case,
    running: Sequence[contenders.Configuration],
    figures: CostFigures,
    network_name: str,
    on_progress: OnProgress,
) -> list[Row]:
    """Each algorithm once in each precision, because virtual time has no noise; fastest first."""
    scale = scale_of(case)
    small = _shrunk(case, scale)
    inputs = [contenders.input_vector(small, rank) for rank in range(case.ranks)]
    expected = exact_sum(small)
    bounds = Bounds(small, expected)
    records = []
    for done, one in enumerate(running):
        on_progress(str(one), done, len(running))
        outcome = _simulate(one, case, small, inputs, _coding_free(figures, one), scale)
        records.append(_records(one, outcome, expected, bounds.of(one.precision), scale))
    return make_rows(
        case,
        list(zip(*records, strict=True)),
        nnz_out=int(np.count_nonzero(expected)) * scale,
        driver="simulator",
        network=network_name,
    )


def predict(
    case: Case, running: Sequence[contenders.Configuration], figures: CostFigures
) -> dict[str, float]:
    """The seconds of the cost functions, which know neither how zipf's supports overlap nor blocks."""
    if case.layout or case.distribution in ("zipf", "rows"):
        return {}
    return {str(one): predicted_seconds(*one, case, _coding_free(figures, one)) for one in running}


def _coding_free(figures: CostFigures, configuration: contenders.Configuration) -> CostFigures:
    """The figures, in which coding an index is free; for "coo" it is infinitely slow."""
    is_coo = configuration.precision == "coo"
    return replace(figures, seconds_per_index=math.inf) if is_coo else figures


def scale_of(case: Case) -> int:
    """The power of two by which the problem has to shrink to fit into memory."""
    dense_bytes = case.ranks * case.length * value_dtype(case.dtype).itemsize
    scale = 1
    while dense_bytes > scale * ROOM_BYTES and case.nnz >= 2 * scale * FEWEST_ENTRIES:
        scale *= 2
    return 1 if isinstance(case.layout, layouts.TraceRows) else scale  # a trace cannot shrink


def _shrunk(case: Case, scale: int) -> Case:
    """The same problem, shorter; a table keeps whole rows."""
    row = case.layout.block if case.layout and case.layout.is_table else 1
    return replace(case, length=case.length // (scale * row) * row)


def _simulate(
    configuration: contenders.Configuration,
    case: Case,
    small_case: Case,
    inputs: Sequence[SparseVector],
    full: CostFigures,
    scale: int,
) -> simulator.Simulation[SparseVector]:
    """The simulation of the small case, with times that are corrected to those of the full one."""
    small = replace(
        full,
        bandwidth=full.bandwidth / scale,
        seconds_per_entry=full.seconds_per_entry * scale,
        seconds_per_value=full.seconds_per_value * scale,
    )
    is_dense = takes_dense(configuration.algorithm, small_case, inputs[0])
    vectors = [vector.as_dense() for vector in inputs] if is_dense else inputs
    scripts = [script(*configuration, small_case, rank, vector, small) for rank, vector in enumerate(vectors)]
    outcome = simulator.run(scripts, small)
    missing_s = predicted_seconds(*configuration, case, full) - predicted_seconds(
        *configuration, small_case, small
    )
    return replace(outcome, finished_at=[time + missing_s for time in outcome.finished_at])


def _records(
    configuration: contenders.Configuration,
    outcome: simulator.Simulation[SparseVector],
    expected: Values,
    bound: Values | None,
    scale: int,
) -> list[dict[str, Any]]:
    """What each rank would have recorded."""

    def full_size(nbytes: int, messages: int) -> int:
        return (nbytes - messages * HEADER_BYTES) * scale + messages * HEADER_BYTES

    records = []
    for rank, traffic in enumerate(outcome.traffic):
        total = outcome.results[rank].to_dense()  # one at a time, because they may be large
        record = clock.Record(
            *configuration,
            [outcome.finished_at[rank]],
            clock.Moved(
                full_size(traffic.bytes_sent, traffic.messages_sent),
                full_size(traffic.bytes_received, traffic.messages_received),
                traffic.messages_sent,
            ),
            wrong=count_wrong(total, expected, bound),
            digests=[] if bound is None else [zlib.crc32(total.view(np.uint8).data)],
        )
        records.append(asdict(record))
    return records


def _columns(model: Mapping[str, float]) -> Columns[Row]:
    """Those of ``bench allreduce`` that a simulation has, and what the cost functions say."""
    of_allreduce = {name: allreduce.COLUMNS[name] for name in OF_ALLREDUCE}
    return {
        "algorithm": lambda row: str(contenders.Configuration(row.algorithm, row.precision)),
        "simulated": lambda row: table.format_seconds(row.seconds_median),
        "formula": lambda row: table.format_seconds(
            model.get(str(contenders.Configuration(row.algorithm, row.precision)))
        ),
        **of_allreduce,
    }


BENCHMARK = Benchmark("simulate allreduce", SimulateOptions, run, _columns({}), style=allreduce.best_in_green)
