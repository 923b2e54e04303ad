"""Benchmarks: every algorithm and its peers, measured in turns in one run, each result checked.

``harness`` is what they are made of.  Each other file or folder is one benchmark, which ends with its record
``BENCHMARK``.  To add one, write such a file and its line in ``BENCHMARKS``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsewire.bench.harness.benchmark import Benchmark

# The words of a command -> the module of its record, which is imported when the command is asked for.
BENCHMARKS = {
    "bench allreduce": "sparsewire.bench.allreduce",
    "bench trace": "sparsewire.bench.trace",
    "bench grid": "sparsewire.bench.grid",
    "bench overlap": "sparsewire.bench.overlap",
    "bench step": "sparsewire.bench.step",
    "bench train": "sparsewire.bench.train",
    "bench linear": "sparsewire.bench.linear",
    "bench memory": "sparsewire.bench.memory",
    "bench kernels": "sparsewire.bench.kernels",
    "bench coding": "sparsewire.bench.coding",
    "bench libsvm": "sparsewire.bench.libsvm",
    "simulate allreduce": "sparsewire.bench.simulate",
}


def load_benchmark(name: str) -> Benchmark[Any, Any]:
    """The record of the benchmark with that command."""
    benchmark: Benchmark[Any, Any] = import_module(BENCHMARKS[name]).BENCHMARK
    return benchmark
