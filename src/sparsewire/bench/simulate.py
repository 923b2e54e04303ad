"""Predictions in virtual time: the same scripts, real vectors, a network that is only computed.

All ranks live in this process, so a large problem is simulated smaller: length, bandwidth and the speed of
computing are all divided by ``scale``, which leaves every time as it is but for what does not shrink with the
length: headers, reports, the number of segments.  By how much these are wrong, the cost formulas know, and
times and bytes are put right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.cases import Case, Values, count_wrong, exact_sum
from sparsewire.bench.contenders import input_vector
from sparsewire.bench.rows import Row, make_rows
from sparsewire.bench.timing import Moved, Record
from sparsewire.drivers import simulator
from sparsewire.errors import InputError
from sparsewire.model import HEADER_BYTES, Network, Shape
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
    """Rows, fastest first; how much smaller the simulated problem was; the network; what the formulas say."""

    rows: list[Row]
    scale: int
    network: Network
    model_seconds: dict[str, float]


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
    seconds_per_entry: float = SECONDS_PER_ENTRY,
    seconds_per_value: float = SECONDS_PER_VALUE,
) -> Prediction:
    """Each algorithm once: virtual time has no noise."""
    scale = scale_of(case)
    small = replace(case, length=case.length // scale)
    inputs = [input_vector(small, rank) for rank in range(case.ranks)]
    expected = exact_sum(small)
    full = Network(
        latency=latency_s,
        bandwidth=bits_per_second / 8,
        seconds_per_entry=seconds_per_entry,
        seconds_per_value=seconds_per_value,
    )
    records = []
    for done, name in enumerate(algorithms):
        tell(name, done, len(algorithms))
        records.append(_simulate(name, case, inputs, expected, full, scale))
    rows = make_rows(
        case,
        list(zip(*records, strict=True)),
        nnz_out=int(np.count_nonzero(expected)) * scale,
        driver="simulator",
        network=network_name,
        bits_per_second=bits_per_second,
    )
    return Prediction(rows, scale, full, _formulas(case, algorithms, full))


def scale_of(case: Case) -> int:
    """The power of two by which the problem has to shrink to fit into memory."""
    dense_bytes = case.ranks * case.length * value_dtype(case.dtype).itemsize
    scale = 1
    while dense_bytes > scale * ROOM_BYTES and case.nnz >= 2 * scale * FEWEST_ENTRIES:
        scale *= 2
    return scale


def _simulate(
    name: str, case: Case, inputs: Sequence[SparseVector], expected: Values, full: Network, scale: int
) -> list[dict[str, Any]]:
    """What each rank would have recorded."""
    small = replace(
        full,
        bandwidth=full.bandwidth / scale,
        seconds_per_entry=full.seconds_per_entry * scale,
        seconds_per_value=full.seconds_per_value * scale,
    )
    algorithm, size = ALGORITHMS[name], len(inputs)
    vectors = [vector.as_dense() for vector in inputs] if algorithm.dense else inputs
    outcome = simulator.run([algorithm.run(r, size, vector) for r, vector in enumerate(vectors)], small)
    small_case = replace(case, length=inputs[0].length)
    missing_s = (
        algorithm.cost(full, _shape(case, name)).seconds
        - algorithm.cost(small, _shape(small_case, name)).seconds
    )

    def full_size(nbytes: int, messages: int) -> int:
        return (nbytes - messages * HEADER_BYTES) * scale + messages * HEADER_BYTES

    return [
        asdict(
            Record(
                name,
                [outcome.finished_at[rank] + missing_s],
                Moved(
                    full_size(traffic.bytes_sent, traffic.messages_sent),
                    full_size(traffic.bytes_received, traffic.messages_received),
                    traffic.messages_sent,
                ),
                wrong=count_wrong(outcome.results[rank].to_dense(), expected),
            )
        )
        for rank, traffic in enumerate(outcome.traffic)
    ]


def _formulas(case: Case, algorithms: Sequence[str], network: Network) -> dict[str, float]:
    """The cost functions' seconds; they know how supports overlap for all distributions but zipf."""
    if case.distribution == "zipf":
        return {}
    return {name: ALGORITHMS[name].cost(network, _shape(case, name)).seconds for name in algorithms}


def _shape(case: Case, name: str) -> Shape:
    """The problem as a cost formula sees it."""
    nnz = case.length if ALGORITHMS[name].dense else case.nnz  # dense algorithms are given dense vectors
    overlap = "uniform" if case.distribution == "zipf" else case.distribution
    return Shape(case.ranks, case.length, nnz, value_dtype(case.dtype).itemsize, overlap)
