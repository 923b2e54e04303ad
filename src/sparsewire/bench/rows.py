"""From what each rank recorded to the numbers that are reported: one Row feeds the table and the JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.cases import Case
from sparsewire.bench.peers import PEERS
from sparsewire.bench.touched import Touched
from sparsewire.bench.variants import DEDICATED, takes_blocks
from sparsewire.coding.values import PRECISIONS

__all__ = [
    "ENOUGH_SELECTED",
    "MemoryRow",
    "OverlapRow",
    "Row",
    "StepRow",
    "best",
    "fastest_step",
    "make_memory_row",
    "make_overlap_rows",
    "make_rows",
    "make_step_rows",
    "slowest_rank",
    "times_longer_alone",
]

ENTRY_BYTES = 8  # a u32 index and a float32 value
WORD_BYTES = 4  # an entry is two words
ENOUGH_SELECTED = 0.8  # of k
PEER_NAMES = [name for names in PEERS.values() for name in names]


@dataclass(frozen=True)
class Row:
    """One algorithm on one case; docs/benchmarking.md says how each number is derived."""

    algorithm: str
    ranks: int
    length: int
    dtype: str
    distribution: str
    seed: int
    density_in: float
    density_out: float
    nnz_in: int
    nnz_out: int
    seconds_min: float
    seconds_median: float
    seconds: list[float]
    bytes_sent_max: int | None
    bytes_received_max: int | None
    messages_max: int | None
    interface_bytes_max: int | None
    wire_limit_seconds: float | None
    speedup_vs_dense: float | None
    speedup_vs_gloo_dense: float | None
    speedup_vs_gloo_sparse: float | None
    speedup_vs_mpi_dense: float | None
    speedup_vs_mpi_same_bytes: float | None
    wrong: int
    driver: str
    network: str | None
    chosen: str | None  # what "auto" took
    precision: str = "exact"
    speedup_vs_coo: float | None = None
    bytes_per_nonzero: float | None = None  # this and the next three: of rank 0's input as one frame
    compression_vs_coo: float | None = None
    encode_seconds: float | None = None
    decode_seconds: float | None = None
    aggregators: int = 0  # dedicated ones
    model_seconds: float | None = None  # this and the next: of OmniReduce on blocks
    times_touched_bytes: float | None = None

    @property
    def is_rounded(self) -> bool:
        return self.precision in PRECISIONS

    @property
    def times_wire_limit(self) -> float | None:
        return self.seconds_median / self.wire_limit_seconds if self.wire_limit_seconds else None

    @property
    def times_model(self) -> float | None:
        return self.seconds_median / self.model_seconds if self.model_seconds else None


@dataclass(frozen=True)
class MemoryRow:
    """What one algorithm needs beyond its caller's vector, at the rank that needs most."""

    algorithm: str
    ranks: int
    length: int
    dtype: str
    distribution: str
    seed: int
    density_in: float
    nnz_in: int
    peak_bytes_max: int
    peak_in_inputs: float  # in units of nnz_in x 8 bytes: an input of float32 and u32
    result_bytes_max: int
    wrong: int


@dataclass(frozen=True)
class OverlapRow:
    """How long the calls in flight, the loop, or both took."""

    name: str  # communication, computing, together
    ranks: int
    length: int
    dtype: str
    distribution: str
    seed: int
    density_in: float
    nnz_in: int
    seconds_min: float
    seconds_median: float
    seconds: list[float]
    wrong: int
    driver: str
    network: str | None


@dataclass(frozen=True)
class StepRow:
    """The whole step by one method; docs/benchmarking.md says how each number is derived."""

    method: str
    kind: str  # steady, renewal, dense
    ranks: int
    length: int
    dtype: str
    seed: int
    density: float
    k: int | None
    seconds_min: float
    seconds_median: float
    seconds: list[float]
    select_seconds: float
    exchange_seconds: float
    apply_seconds: float
    bytes_sent_max: int | None
    bytes_received_max: int | None
    bytes_sent_over_4k: float | None
    bytes_received_over_4k: float | None
    selected: list[int]  # entries of the mean, step by step, from a cold start
    speedup_vs_gloo_dense: float | None
    speedup_vs_mpi_dense: float | None
    speedup_min_vs_gloo_dense: float | None
    speedup_min_vs_mpi_dense: float | None
    wrong: int
    driver: str
    network: str | None

    @property
    def selected_over_k(self) -> list[float]:
        return [count / self.k for count in self.selected] if self.k else []


def make_step_rows(
    case: Case, records: Sequence[Sequence[Mapping[str, Any]]], driver: str, network: str | None
) -> list[StepRow]:
    """One row per method and kind, fastest median first; ``records[r]`` is what rank r recorded."""
    rows = [_step_row(case, of_ranks, driver, network) for of_ranks in zip(*records, strict=True)]
    dense = {row.method: row for row in rows if row.kind == "dense"}

    def speedup(peer: str, seconds: str, row: StepRow) -> float | None:
        return getattr(dense[peer], seconds) / getattr(row, seconds) if peer in dense else None

    with_speedups = [
        replace(
            row,
            speedup_vs_gloo_dense=speedup("gloo-dense", "seconds_median", row),
            speedup_vs_mpi_dense=speedup("mpi-dense", "seconds_median", row),
            speedup_min_vs_gloo_dense=speedup("gloo-dense", "seconds_min", row),
            speedup_min_vs_mpi_dense=speedup("mpi-dense", "seconds_min", row),
        )
        for row in rows
    ]
    return sorted(with_speedups, key=lambda row: row.seconds_median)


def fastest_step(rows: Iterable[StepRow]) -> StepRow | None:
    """The fastest steady row that was right and selected enough: who sends nothing is quick."""
    able = [
        row
        for row in rows
        if row.kind == "steady"
        and not row.wrong
        and statistics.median(row.selected_over_k) >= ENOUGH_SELECTED
    ]
    return min(able, key=lambda row: row.seconds_median, default=None)


def _step_row(case: Case, of_ranks: Sequence[Mapping[str, Any]], driver: str, network: str | None) -> StepRow:
    first, seconds = of_ranks[0], slowest_rank(of_ranks)
    sent, received = (_most_in_a_step(of_ranks, name) for name in ("bytes_sent", "bytes_received"))
    k_bytes = WORD_BYTES * first["k"] if first["k"] else None
    select, exchange, apply = (statistics.median(phase) for phase in zip(*_phases(of_ranks), strict=True))
    return StepRow(
        method=first["method"],
        kind=first["kind"],
        ranks=case.ranks,
        length=case.length,
        dtype=case.dtype,
        seed=case.seed,
        density=case.density,
        k=first["k"],
        seconds_min=min(seconds),
        seconds_median=statistics.median(seconds),
        seconds=seconds,
        select_seconds=select,
        exchange_seconds=exchange,
        apply_seconds=apply,
        bytes_sent_max=max(sent, default=None),
        bytes_received_max=max(received, default=None),
        bytes_sent_over_4k=statistics.median(sent) / k_bytes if k_bytes else None,
        bytes_received_over_4k=statistics.median(received) / k_bytes if k_bytes else None,
        selected=first["selected"],
        speedup_vs_gloo_dense=None,
        speedup_vs_mpi_dense=None,
        speedup_min_vs_gloo_dense=None,
        speedup_min_vs_mpi_dense=None,
        wrong=sum(record["wrong"] for record in of_ranks) + _disagreeing(of_ranks),
        driver=driver,
        network=network,
    )


def _phases(of_ranks: Sequence[Mapping[str, Any]]) -> list[Sequence[float]]:
    """Of each iteration, the phases at its slowest rank."""
    iterations = zip(
        *(zip(record["seconds"], record["phases"], strict=True) for record in of_ranks), strict=True
    )
    return [max(iteration)[1] for iteration in iterations]


def _most_in_a_step(of_ranks: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """The most that any rank moved in each step, from a cold start; nothing if nobody knows."""
    steps = zip(*(record["traffic"] for record in of_ranks), strict=True)
    return [max(moved[name] for moved in step) for step in steps if step[0][name] is not None]


def make_overlap_rows(
    case: Case, records: Sequence[Sequence[Mapping[str, Any]]], driver: str, network: str | None
) -> list[OverlapRow]:
    """One row for each of the three; ``records[r]`` is what rank r recorded."""
    rows = []
    for of_ranks in zip(*records, strict=True):
        seconds = slowest_rank(of_ranks)
        row = OverlapRow(
            name=of_ranks[0]["name"],
            **_problem(case),
            seconds_min=min(seconds),
            seconds_median=statistics.median(seconds),
            seconds=seconds,
            wrong=sum(record["wrong"] for record in of_ranks),
            driver=driver,
            network=network,
        )
        rows.append(row)
    return rows


def times_longer_alone(rows: Sequence[OverlapRow]) -> float:
    """Time of both together in units of the longer of the two alone, by medians."""
    medians = {row.name: row.seconds_median for row in rows}
    return medians["together"] / max(medians["communication"], medians["computing"])


def make_memory_row(case: Case, of_ranks: Sequence[Mapping[str, Any]]) -> MemoryRow:
    """One row from what every rank recorded about one algorithm."""
    peak = max(record["peak_bytes"] for record in of_ranks)
    return MemoryRow(
        algorithm=of_ranks[0]["name"],
        **_problem(case),
        peak_bytes_max=peak,
        peak_in_inputs=peak / (case.nnz * ENTRY_BYTES),
        result_bytes_max=max(record["result_bytes"] for record in of_ranks),
        wrong=sum(record["wrong"] for record in of_ranks),
    )


def make_rows(
    case: Case,
    records: Sequence[Sequence[Mapping[str, Any]]],
    *,
    nnz_out: int,
    driver: str,
    network: str | None = None,
    bits_per_second: int | None = None,
    aggregators: int = 0,
) -> list[Row]:
    """One row per contender, fastest median first; ``records[r]`` is what rank r recorded."""
    by_contender = list(zip(*records, strict=True))
    rows = [
        _row(case, of_ranks, nnz_out, driver, network, bits_per_second, aggregators)
        for of_ranks in by_contender
    ]
    if case.layout:
        touched = Touched.of(case)
        rows = [
            _with_blocks(row, case, touched, of_ranks, bits_per_second)
            for row, of_ranks in zip(rows, by_contender, strict=True)
        ]
    return sorted(_with_speedups(rows), key=lambda row: row.seconds_median)


def best(rows: Iterable[Row]) -> Row | None:
    """The fastest of our rows that are exact and were right."""
    ours = [row for row in rows if row.algorithm not in PEER_NAMES and not row.is_rounded and not row.wrong]
    return min(ours, key=lambda row: row.seconds_median, default=None)


def slowest_rank(of_ranks: Sequence[Mapping[str, Any]], times: str = "seconds") -> list[float]:
    """The time of each iteration, which is that of its slowest rank."""
    return [max(iteration) for iteration in zip(*(record[times] for record in of_ranks), strict=True)]


def _row(
    case: Case,
    of_ranks: Sequence[Mapping[str, Any]],
    nnz_out: int,
    driver: str,
    network: str | None,
    bits_per_second: int | None,
    aggregators: int,
) -> Row:
    moved = [record["moved"] for record in of_ranks]
    interface = _most([record["interface_sent"] for record in of_ranks])
    interface_received = _most([record["interface_received"] for record in of_ranks])
    sent, received = (_most([m[name] for m in moved]) for name in ("bytes_sent", "bytes_received"))
    if sent is None:  # a peer does not say what it moved; the interface does
        sent, received = interface, interface_received
    seconds = slowest_rank(of_ranks)
    name = of_ranks[0]["name"]
    return Row(
        algorithm=name,
        **_problem(case),
        density_out=nnz_out / case.length,
        nnz_out=nnz_out,
        seconds_min=min(seconds),
        seconds_median=statistics.median(seconds),
        seconds=seconds,
        bytes_sent_max=sent,
        bytes_received_max=received,
        messages_max=_most([m["messages"] for m in moved]),
        interface_bytes_max=_most([interface, interface_received]),
        wire_limit_seconds=_wire_limit(sent, received, bits_per_second),
        speedup_vs_dense=None,
        speedup_vs_gloo_dense=None,
        speedup_vs_gloo_sparse=None,
        speedup_vs_mpi_dense=None,
        speedup_vs_mpi_same_bytes=None,
        wrong=sum(record["wrong"] for record in of_ranks) + _disagreeing(of_ranks),
        driver=driver,
        network=network,
        chosen=moved[0]["algorithm"] if name == "auto" else None,
        precision=of_ranks[0]["precision"],
        aggregators=aggregators if name == DEDICATED else 0,
    )


def _with_blocks(
    row: Row,
    case: Case,
    touched: Touched,
    of_ranks: Sequence[Mapping[str, Any]],
    bits_per_second: int | None,
) -> Row:
    """The row, with what there is to say about it where non-zeros come in blocks."""
    if bits_per_second and takes_blocks(row.algorithm, case):
        row = replace(row, model_seconds=touched.seconds(bits_per_second, row.aggregators))
    sent = [record["moved"]["bytes_sent"] for record in of_ranks]
    if len(sent) == case.ranks and None not in sent:
        times = max(nbytes / touched.bytes_sent(rank) for rank, nbytes in enumerate(sent))
        row = replace(row, times_touched_bytes=times)
    return row


def _disagreeing(of_ranks: Sequence[Mapping[str, Any]]) -> int:
    """How many rounded results have other bits than the first: an entry each, at least."""
    digests = [digest for record in of_ranks for digest in record["digests"]]
    return sum(digest != digests[0] for digest in digests)


def _problem(case: Case) -> dict[str, Any]:
    """What every row says about the problem."""
    return {
        "ranks": case.ranks,
        "length": case.length,
        "dtype": case.dtype,
        "distribution": case.distribution_name,
        "seed": case.seed,
        "density_in": case.nnz / case.length,
        "nnz_in": case.nnz,
    }


def _most(counts: Sequence[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _wire_limit(sent: int | None, received: int | None, bits_per_second: int | None) -> float | None:
    if sent is None or received is None or bits_per_second is None:
        return None
    return max(sent, received) * 8 / bits_per_second


def _with_speedups(rows: Sequence[Row]) -> list[Row]:
    medians = {(row.algorithm, row.precision): row.seconds_median for row in rows}
    peers = {name: medians.get((name, "exact")) for name in PEER_NAMES}
    dense = [medians[key] for key in medians if key[0] in ALGORITHMS and ALGORITHMS[key[0]].dense]

    def speedup(baseline: float | None, row: Row) -> float | None:
        return baseline / row.seconds_median if baseline else None

    return [
        replace(
            row,
            speedup_vs_dense=speedup(min(dense, default=None), row),
            speedup_vs_gloo_dense=speedup(peers["gloo-dense"], row),
            speedup_vs_gloo_sparse=speedup(peers["gloo-sparse"], row),
            speedup_vs_mpi_dense=speedup(peers["mpi-dense"], row),
            speedup_vs_mpi_same_bytes=speedup(peers["mpi-same-bytes"], row),
            speedup_vs_coo=speedup(medians.get((row.algorithm, "coo")), row),
        )
        for row in rows
    ]
