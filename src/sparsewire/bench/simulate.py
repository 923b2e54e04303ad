"""Predictions in virtual time: the same scripts, real vectors, a network that is only computed.

All ranks live in this process, so a large problem is simulated smaller: length, bandwidth and the speed of
computing are all divided by ``scale``, which leaves every time as it is but for what does not shrink with the
length: headers, reports, the number of segments.  By how much these are wrong, the cost formulas know, and
times and bytes are put right.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.blocks import TraceRows
from sparsewire.bench.bounds import Bounds
from sparsewire.bench.cases import Case, Values, count_wrong, exact_sum
from sparsewire.bench.contenders import Entrant, entrants, input_vector, script, takes_dense
from sparsewire.bench.rows import Row, make_rows
from sparsewire.bench.timing import Moved, Record
from sparsewire.bench.variants import in_table
from sparsewire.coding.values import PRECISIONS
from sparsewire.cost import HEADER_BYTES, CostFigures, Shape
from sparsewire.drivers import simulator
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector, value_dtype

__all__ = ["Prediction", "parse_duration", "run_simulation", "scale_of"]

# All ranks' results together, were they dense.  Scripts hold a few times that.
ROOM_BYTES = 1 << 30
FEWEST_ENTRIES = 1024  # of an input: with fewer, chance decides how they spread
# Merging four sorted runs of 100,000 float32 entries; adding, copying and scanning values: on one core of an
# ordinary server.
SECONDS_PER_ENTRY = 6e-9
SECONDS_PER_VALUE = 0.4e-9
PER_SECOND = {"": 1.0, "s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True)
class Prediction:
    """What a simulation says."""

    rows: list[Row]  # fastest first
    scale: int  # how many times smaller the simulated problem was
    network: CostFigures
    model_seconds: dict[str, float]  # what the formulas say
    skipped: dict[str, str]  # what was not simulated, and why


def parse_duration(text: str) -> float:
    """Seconds.

    >>> parse_duration("50us"), parse_duration("0.1ms"), parse_duration("0")
    (5e-05, 0.0001, 0.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|ms|us|ns|)", text.strip().lower())
    if match is None or (match[2] == "" and float(match[1]) != 0):
        raise InputError(f"duration {text!r} is not understood; write for example 50us, 1.5ms or 0")
    return float(match[1]) / PER_SECOND[match[2]]


def run_simulation(
    case: Case,
    algorithms: Sequence[str],
    latency_s: float,
    bits_per_second: int,
    network_name: str,
    tell: Callable[[str, int, int], None],
    precisions: Sequence[str] = ("exact",),
    seconds_per_entry: float = SECONDS_PER_ENTRY,
    seconds_per_value: float = SECONDS_PER_VALUE,
) -> Prediction:
    """Each algorithm once in each precision: virtual time has no noise."""
    scale = scale_of(case)
    small = _shrunk(case, scale)
    inputs = [input_vector(small, rank) for rank in range(case.ranks)]
    expected = exact_sum(small)
    full = CostFigures(
        latency=latency_s,
        bandwidth=bits_per_second / 8,
        seconds_per_entry=seconds_per_entry,
        seconds_per_value=seconds_per_value,
    )
    runs, skipped = entrants(algorithms, precisions)
    bounds = Bounds(small, expected)
    records = []
    for done, run in enumerate(runs):
        tell(str(run), done, len(runs))
        bound = bounds.of(run.precision)
        records.append(_simulate(run, case, small, inputs, expected, bound, _network(full, run), scale))
    rows = make_rows(
        case,
        list(zip(*records, strict=True)),
        nnz_out=int(np.count_nonzero(expected)) * scale,
        driver="simulator",
        network=network_name,
        bits_per_second=bits_per_second,
    )
    return Prediction(rows, scale, full, _formulas(case, runs, full), skipped)


def _network(network: CostFigures, run: Entrant) -> CostFigures:
    """Coding an index is free, or takes forever."""
    return replace(network, seconds_per_index=math.inf) if run.precision == "coo" else network


def scale_of(case: Case) -> int:
    """The power of two by which the problem has to shrink to fit into memory."""
    dense_bytes = case.ranks * case.length * value_dtype(case.dtype).itemsize
    scale = 1
    while dense_bytes > scale * ROOM_BYTES and case.nnz >= 2 * scale * FEWEST_ENTRIES:
        scale *= 2
    return 1 if isinstance(case.layout, TraceRows) else scale  # a trace is as long as it is


def _shrunk(case: Case, scale: int) -> Case:
    """The same problem, shorter; a table has whole rows."""
    row = case.layout.block if case.layout and case.layout.is_table else 1
    return replace(case, length=case.length // (scale * row) * row)


def _simulate(
    run: Entrant,
    case: Case,
    small_case: Case,
    inputs: Sequence[SparseVector],
    expected: Values,
    bound: Values | None,
    full: CostFigures,
    scale: int,
) -> list[dict[str, Any]]:
    """What each rank would have recorded."""
    small = replace(
        full,
        bandwidth=full.bandwidth / scale,
        seconds_per_entry=full.seconds_per_entry * scale,
        seconds_per_value=full.seconds_per_value * scale,
    )
    is_dense = takes_dense(run.algorithm, small_case, inputs[0])
    vectors = [vector.as_dense() for vector in inputs] if is_dense else inputs
    scripts = [script(run, small_case, rank, vector) for rank, vector in enumerate(vectors)]
    outcome = simulator.run(scripts, small)
    missing_s = _formula(run, case, full) - _formula(run, small_case, small)

    totals = (result.to_dense() for result in outcome.results)  # one at a time: they may be large

    def full_size(nbytes: int, messages: int) -> int:
        return (nbytes - messages * HEADER_BYTES) * scale + messages * HEADER_BYTES

    return [
        asdict(
            Record(
                *run,
                [outcome.finished_at[rank] + missing_s],
                Moved(
                    full_size(traffic.bytes_sent, traffic.messages_sent),
                    full_size(traffic.bytes_received, traffic.messages_received),
                    traffic.messages_sent,
                ),
                wrong=count_wrong(total, expected, bound),
                digests=[] if bound is None else [zlib.crc32(total.view(np.uint8).data)],
            )
        )
        for rank, (traffic, total) in enumerate(zip(outcome.traffic, totals, strict=True))
    ]


def _formulas(case: Case, runs: Sequence[Entrant], network: CostFigures) -> dict[str, float]:
    """The cost functions' seconds; they do not know how zipf's supports overlap, nor of clusters."""
    if case.layout or case.distribution in ("zipf", "rows"):
        return {}
    return {str(run): _formula(run, case, _network(network, run)) for run in runs}


def _formula(run: Entrant, case: Case, network: CostFigures) -> float:
    """The cost function's seconds."""
    algorithm = ALGORITHMS[in_table(run.algorithm)]
    shape = Shape(
        case.ranks,
        case.length,
        case.length if algorithm.dense else case.nnz,  # dense algorithms are given dense vectors
        value_dtype(case.dtype).itemsize,
        case.overlap,
        precision=PRECISIONS.get(run.precision),
        index_price=network.index_price,
    )
    return algorithm.cost(network, shape).seconds
