"""``bench kernels``: the speed of kernels on one thread, in turns with `torch.add` of the same length.

The ratio of two passes over memory in one run is more reliable than seconds, because other processes on the
machine slow down both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire import kernels
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.clock import seconds_of
from sparsewire.bench.harness.options import Json, Options, option
from sparsewire.bench.harness.table import format_seconds

# Some keys are those of a ratio and others those of a rate.
Row: TypeAlias = Mapping[str, Any]
Values: TypeAlias = npt.NDArray[np.float32]

LENGTH = 2**24
REPEATS = 15
DENSITY = 0.01
# What the top 1 % of a standard normal distribution exceeds in magnitude.
TOP_PERCENT = 2.5758


@dataclass(frozen=True)
class Case:
    """One call to time; the bar is an upper limit on the ratio, or a lower limit on entries per second."""

    name: str
    call: Callable[[], object]
    density: float
    entries: int | None = None
    bar: float | None = None


@dataclass(frozen=True, kw_only=True)
class KernelOptions(Options):
    """Every kernel against the bar it is held to."""

    isa: str | None = option(None, "Instruction set to force; default: the best.")
    json: Json = None


def run(options: KernelOptions, on_progress: OnProgress) -> list[Result[Row]]:
    """A row per kernel: seconds, ratio to a dense addition or entries per second, and if the bar holds."""
    peer_name, peer = _dense_addition(LENGTH)
    rows = []
    with kernels.use_isa(options.isa or kernels.active_isa()):
        cases = _cases()
        for done, case in enumerate(cases):
            on_progress(case.name, done, len(cases))
            rows.append(_measure(case, peer_name, peer))
    return [Result(rows)]


def _cases() -> list[Case]:
    rng = np.random.default_rng(1)
    gradient = rng.standard_normal(LENGTH, np.float32)
    long_run = np.arange(LENGTH, dtype=np.uint32)
    return [
        *_selecting(gradient),
        *_blocks(rng, gradient),
        Case("histogram", lambda: kernels.histogram(gradient), 1.0),
        *_merging(rng, gradient),
        Case("first_invalid", lambda: kernels.first_invalid(long_run, 0, LENGTH), 1.0),
        Case("checksum", lambda: kernels.checksum(gradient), 1.0),
        *_coding(rng, "elias_fano", DENSITY, bar=400e6),
        *_coding(rng, "bitmap", 0.3),
        *_rounding(gradient, long_run),
    ]


def _selecting(gradient: Values) -> list[Case]:
    residual, k = np.zeros_like(gradient), int(DENSITY * LENGTH)
    # Each call cancels what the last one left behind, so that the residual stays bounded.
    signed = cycle([gradient, -gradient])

    def select() -> object:
        return kernels.accumulate_select(residual, next(signed), TOP_PERCENT)

    def select_buckets(k: int) -> Case:
        def call() -> object:
            return kernels.accumulate_select_buckets(residual, next(signed), k)

        return Case(f"accumulate_select_buckets, {k} of 512", call, k / 512)

    return [
        Case("accumulate_select", select, DENSITY, bar=1.3),
        Case("threshold_for_k", lambda: kernels.threshold_for_k(gradient, k), DENSITY, bar=3.0),
        select_buckets(4),
        select_buckets(8),
    ]


def _blocks(rng: np.random.Generator, gradient: Values) -> list[Case]:
    residual, signed = np.zeros_like(gradient), cycle([gradient, -gradient])
    zeros = np.full(LENGTH, -0.0, np.float32)
    is_nonzero = rng.random(LENGTH // 256) < DENSITY
    blocks = np.where(np.repeat(is_nonzero, 256), gradient, np.float32(0))
    numbers = np.flatnonzero(is_nonzero)
    added = gradient[: 256 * len(numbers)]

    def norms() -> object:
        return kernels.accumulate_block_norms(residual, next(signed), 256)

    def add_blocks() -> None:
        kernels.add_blocks(residual, numbers, added, 256)

    return [
        Case("block_norms of 256", lambda: kernels.block_norms(gradient, 256), 1.0),
        Case("accumulate_block_norms", norms, 1.0),
        Case("nonzero_blocks, all zero", lambda: kernels.nonzero_blocks(zeros, 256), 0.0, bar=0.5),
        Case("nonzero_blocks of 256", lambda: kernels.nonzero_blocks(blocks, 256), DENSITY, bar=0.5),
        Case("add_blocks of 256", add_blocks, DENSITY, len(added), 400e6),
    ]


def _merging(rng: np.random.Generator, gradient: Values) -> list[Case]:
    sparse = np.where(np.abs(gradient) > TOP_PERCENT, gradient, np.float32(0))
    runs = [_random_run(rng) for _ in range(8)]

    def merge(count: int, bar: float) -> Case:
        entries = sum(len(indices) for indices, _ in runs[:count])
        name = f"merge_sum of {count} runs"
        return Case(name, lambda: kernels.merge_sum(runs[:count]), DENSITY, entries, bar)

    return [
        Case("without", lambda: kernels.without(*runs[0], runs[1][0]), DENSITY, 2 * len(runs[0][0])),
        Case("dense_to_sparse", lambda: kernels.dense_to_sparse(sparse), DENSITY),
        merge(2, 150e6),
        merge(8, 100e6),
    ]


def _coding(rng: np.random.Generator, code: str, density: float, bar: float | None = None) -> list[Case]:
    """Encoding, which includes checking the indices, decoding, and one after the other."""
    support = np.flatnonzero(rng.random(LENGTH, np.float32) < density).astype(np.uint32)
    count = len(support)
    encode, decode = getattr(kernels, f"encode_{code}"), getattr(kernels, f"decode_{code}")
    words = encode(support, 0, LENGTH)

    def both() -> object:
        return decode(encode(support, 0, LENGTH), count, 0, LENGTH)

    return [
        Case(f"encode_{code}", lambda: encode(support, 0, LENGTH), density, count),
        Case(f"decode_{code}", lambda: decode(words, count, 0, LENGTH), density, count),
        Case(f"{code}, both ways", both, density, count, bar),
    ]


def _rounding(gradient: Values, positions: npt.NDArray[np.uint32]) -> list[Case]:
    halves = kernels.narrow(gradient, np.float16)
    scales, codes = kernels.quantize(gradient, 4)

    def quantize(positions: npt.NDArray[np.uint32] | int) -> object:
        return kernels.dequantize(*kernels.quantize(gradient, 4, positions=positions), LENGTH, 4)

    return [
        Case("narrow to float16", lambda: kernels.narrow(gradient, np.float16), 1.0),
        Case("widen from float16", lambda: kernels.widen(halves), 1.0),
        Case("quantize to 4 bits", lambda: kernels.quantize(gradient, 4), 1.0, LENGTH),
        Case("dequantize", lambda: kernels.dequantize(scales, codes, LENGTH, 4), 1.0, LENGTH),
        # 1 GB of float32 values per second, there and back.
        Case("quantize + dequantize", lambda: quantize(0), 1.0, LENGTH, 250e6),
        Case("the same at indices", lambda: quantize(positions), 1.0, LENGTH, 250e6),
    ]


def _random_run(rng: np.random.Generator) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    indices = np.unique(rng.integers(0, LENGTH, int(DENSITY * LENGTH), dtype=np.uint32))
    return indices, rng.standard_normal(len(indices), np.float32)


def _dense_addition(n: int) -> tuple[str, Callable[[], object]]:
    a, b, out = (np.ones(n, np.float32) for _ in range(3))
    try:
        import torch
    except ImportError:
        return "numpy.add", lambda: np.add(a, b, out=out)

    def add() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.add(tensors[0], tensors[1], out=tensors[2])
        torch.set_num_threads(threads)

    tensors = [torch.from_numpy(x) for x in (a, b, out)]
    return "torch.add", add


def _measure(case: Case, peer_name: str, peer: Callable[[], object]) -> Row:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(REPEATS + 1):
        ours.append(seconds_of(case.call))
        theirs.append(seconds_of(peer))
    del ours[0], theirs[0]  # the first round pays for pages touched for the first time
    row: dict[str, Any] = {
        "name": case.name,
        "isa": kernels.active_isa(),
        "n": LENGTH,
        "density": case.density,
        "seconds_min": min(ours),
        "seconds_median": median(ours),
        "peer": peer_name,
        "bar": case.bar,
    }
    if case.entries is None:
        # Ratios are taken round by round, so that a noisy moment counts for both sides.
        row["ratio_vs_torch_add"] = median(a / b for a, b in zip(ours, theirs, strict=True))
        row["ok"] = case.bar is None or row["ratio_vs_torch_add"] <= case.bar
    else:
        row["entries_per_second"] = case.entries / median(ours)
        row["ok"] = case.bar is None or row["entries_per_second"] >= case.bar
    return row


def _reached(row: Row) -> str:
    """A ratio to one dense addition, or entries per second."""
    if "entries_per_second" in row:
        return f"{row['entries_per_second'] / 1e6:.0f} M entries/s"
    return f"{row['ratio_vs_torch_add']:.2f} x {row.get('peer', 'torch.add')}"


def _bar(row: Row) -> str:
    bar = row["bar"]
    if not bar:
        return "-"
    return f">= {bar / 1e6:.0f} M" if "entries_per_second" in row else f"<= {bar:g}"


COLUMNS: Columns[Row] = {
    "kernel": lambda row: row["name"],
    "isa": lambda row: row["isa"],
    "length": lambda row: f"{row['n']:,}",
    "density": lambda row: f"{row['density']:g}",
    "min": lambda row: format_seconds(row["seconds_min"]),
    "median": lambda row: format_seconds(row["seconds_median"]),
    "reached": _reached,
    "bar": _bar,
    "ok": lambda row: "[green]yes[/green]" if row["ok"] else "[bold red]no[/bold red]",
}

BENCHMARK = Benchmark("bench kernels", KernelOptions, run, COLUMNS, to_json=lambda row: row)
