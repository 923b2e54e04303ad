"""From what each rank recorded about allreduces to the numbers of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsewire.bench.allreduce.touched import Touched
from sparsewire.bench.harness.peers import PEER_NAMES
from sparsewire.bench.harness.problem import Case
from sparsewire.bench.harness.records import (
    OfRanks,
    ProblemRow,
    TimedRow,
    count_wrong_results,
    problem_fields,
    slowest_rank,
    speedup,
    time_fields,
)
from sparsewire.bench.harness.variants import DEDICATED, is_dense, takes_blocks
from sparsewire.coding.values import PRECISIONS
from sparsewire.launch.emulation import parse_rate


@dataclass(frozen=True, kw_only=True)
class Row(ProblemRow, TimedRow):
    """One algorithm on one case; docs/benchmarking.md says how each number is derived."""

    algorithm: str
    density_out: float
    nnz_out: int
    bytes_sent_max: int | None
    bytes_received_max: int | None
    messages_max: int | None
    interface_bytes_max: int | None
    wire_limit_seconds: float | None
    wrong: int
    driver: str
    network: str | None
    chosen: str | None  # what "auto" took
    precision: str
    speedup_vs_dense: float | None = None
    speedup_vs_gloo_dense: float | None = None
    speedup_vs_gloo_sparse: float | None = None
    speedup_vs_mpi_dense: float | None = None
    speedup_vs_mpi_same_bytes: float | None = None
    speedup_vs_coo: float | None = None
    bytes_per_nonzero: float | None = None  # this and the next three: of rank 0's input as one frame
    compression_vs_coo: float | None = None
    encode_seconds: float | None = None
    decode_seconds: float | None = None
    aggregators: int = 0  # dedicated ones
    model_seconds: float | None = None  # this and the next: where non-zeros come in blocks
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


def make_rows(
    case: Case,
    records: Sequence[OfRanks],
    nnz_out: int,
    driver: str,
    network: str | None = None,
    aggregators: int = 0,
) -> list[Row]:
    """One row per contender, fastest median first; ``records[r]`` is what rank r recorded."""
    by_contender = list(zip(*records, strict=True))
    bits_per_second = parse_rate(network) if network else None
    common = {**problem_fields(case), "driver": driver, "network": network, "nnz_out": nnz_out}
    common["density_out"] = nnz_out / case.length
    rows = [_row(of_ranks, common, bits_per_second, aggregators) for of_ranks in by_contender]
    if case.layout:
        touched = Touched.of(case)
        rows = [
            _with_blocks(row, case, touched, of_ranks, bits_per_second)
            for row, of_ranks in zip(rows, by_contender, strict=True)
        ]
    return sorted(_with_speedups(rows), key=lambda row: row.seconds_median)


def best(rows: Iterable[Row]) -> Row | None:
    """The fastest of our rows that are exact and right."""
    ours = [row for row in rows if row.algorithm not in PEER_NAMES and not row.is_rounded and not row.wrong]
    return min(ours, key=lambda row: row.seconds_median, default=None)


def _row(of_ranks: OfRanks, common: Mapping[str, Any], bits_per_second: int | None, aggregators: int) -> Row:
    moved = [record["moved"] for record in of_ranks]
    interface = _most(record["interface_sent"] for record in of_ranks)
    interface_received = _most(record["interface_received"] for record in of_ranks)
    sent, received = (_most(m[name] for m in moved) for name in ("bytes_sent", "bytes_received"))
    if sent is None:  # a peer does not say what it moved; the interface does
        sent, received = interface, interface_received
    name = of_ranks[0]["name"]
    return Row(
        algorithm=name,
        **common,
        **time_fields(slowest_rank(of_ranks)),
        bytes_sent_max=sent,
        bytes_received_max=received,
        messages_max=_most(m["messages"] for m in moved),
        interface_bytes_max=_most([interface, interface_received]),
        wire_limit_seconds=_wire_limit(sent, received, bits_per_second),
        wrong=count_wrong_results(of_ranks),
        chosen=moved[0]["algorithm"] if name == "auto" else None,
        precision=of_ranks[0]["precision"],
        aggregators=aggregators if name == DEDICATED else 0,
    )


def _with_blocks(
    row: Row, case: Case, touched: Touched, of_ranks: OfRanks, bits_per_second: int | None
) -> Row:
    """The row, with the figures that only exist where non-zeros come in blocks."""
    if bits_per_second and takes_blocks(row.algorithm, case):
        row = replace(row, model_seconds=touched.seconds(bits_per_second, row.aggregators))
    sent = [record["moved"]["bytes_sent"] for record in of_ranks]
    if len(sent) == case.ranks and None not in sent:
        times = max(nbytes / touched.bytes_sent(rank) for rank, nbytes in enumerate(sent))
        row = replace(row, times_touched_bytes=times)
    return row


def _most(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _wire_limit(sent: int | None, received: int | None, bits_per_second: int | None) -> float | None:
    if sent is None or received is None or bits_per_second is None:
        return None
    return max(sent, received) * 8 / bits_per_second


def _with_speedups(rows: Sequence[Row]) -> list[Row]:
    medians = {(row.algorithm, row.precision): row.seconds_median for row in rows}
    dense = min((seconds for (name, _), seconds in medians.items() if is_dense(name)), default=None)

    def against(row: Row) -> dict[str, float | None]:
        baselines = {
            "dense": dense,
            "gloo_dense": medians.get(("gloo-dense", "exact")),
            "gloo_sparse": medians.get(("gloo-sparse", "exact")),
            "mpi_dense": medians.get(("mpi-dense", "exact")),
            "mpi_same_bytes": medians.get(("mpi-same-bytes", "exact")),
            "coo": medians.get((row.algorithm, "coo")),
        }
        return {f"speedup_vs_{name}": speedup(s, row.seconds_median) for name, s in baselines.items()}

    return [replace(row, **against(row)) for row in rows]  # type: ignore[arg-type]
