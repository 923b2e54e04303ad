"""``bench coding``: what index coding and low precision cost and save, on one core, without ranks.

The limit of a support with a share d of N positions is its entropy if all such supports are equally likely:
N H(d) bits, with H(d) = -d log2 d - (1 - d) log2(1 - d).  Times are processor time, the best of several.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Group

from sparsewire import kernels
from sparsewire.bench.harness import table
from sparsewire.bench.harness.benchmark import Benchmark, Columns, OnProgress, Result
from sparsewire.bench.harness.figure import power_of_two, saved_figure, tidy
from sparsewire.bench.harness.options import Json, Options, Plot, Size
from sparsewire.bench.harness.problem import Case, Values, count_wrong, make_input, parse_size
from sparsewire.coding import indices as codes
from sparsewire.coding.values import PRECISIONS
from sparsewire.errors import InputError
from sparsewire.vector import index_dtype

SUPPORTS = ("uniform", "zipf", "rows")  # distributions of ``problem``
DENSITIES = (1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
SHORTEST = 1 << 10
FORMS = {codes.COO: "coo", codes.ELIAS_FANO: "elias_fano", codes.BITMAP: "bitmap", codes.TILES: "tiles"}
VALUES = 1 << 20
GAP = 100  # between the positions of values that are rounded, as at a density of 1%
PLACE = (0, 0, 0)  # the seed of rounding, whose value does not matter
ROUNDS = 7
ROUND_S = 2e-3  # of processor time, far above the resolution of its clock
# Colour, marker and its size, so that supports are visible where they need the same.
STYLES = {"uniform": ("#2a6fbb", "o", 12), "zipf": ("#e07b39", "s", 7), "rows": ("#2a9d6f", "^", 4)}
BITS_OF_COO = 32
CURVE_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class CodingOptions(Options):
    """What index coding and low precision cost and save, on one core."""

    size: Size = "16M"
    json: Json = None
    plot: Plot = None


@dataclass(frozen=True)
class SupportRow:
    """The indices of one vector, coded and decoded."""

    distribution: str
    length: int
    density: float
    nnz: int
    form: str
    bits_per_index: float
    bits_per_index_limit: float
    times_limit: float
    compression_vs_coo: float
    encoded_per_second: float
    decoded_per_second: float
    coded_per_second: float  # one after the other
    wrong: int


@dataclass(frozen=True)
class PrecisionRow:
    """Values, rounded and decoded; rates are in bytes of float32."""

    precision: str
    values: int
    bytes_per_value: float
    rounded_bytes_per_second: float
    decoded_bytes_per_second: float
    both_bytes_per_second: float  # one after the other


def run(options: CodingOptions, on_progress: OnProgress) -> list[Result[SupportRow]]:
    """A row for each support and density; the rows of precisions are a second table."""
    length = parse_size(options.size)
    if length < SHORTEST:
        raise InputError(f"the size is {length}; to code indices takes at least {SHORTEST:,}")
    cases = [Case(1, length, density, distribution=name) for name in SUPPORTS for density in DENSITIES]
    total = len(cases) + len(PRECISIONS)
    supports = []
    for done, case in enumerate(cases):
        on_progress(f"{case.distribution} at density {case.density:g}", done, total)
        supports.append(_measure_support(case))
    precisions = []
    for done, name in enumerate(PRECISIONS, start=len(cases)):
        on_progress(name, done, total)
        precisions.append(_measure_precision(name))
    return [make_result(supports, precisions)]


def make_result(supports: Sequence[SupportRow], precisions: Sequence[PrecisionRow]) -> Result[SupportRow]:
    """The rows of supports; those of precisions are a further key of the JSON file."""
    header = [f"{table.describe_machine()}  one core, processor time  length {supports[0].length:,}"]
    return Result(supports, header, more={"precisions": [asdict(row) for row in precisions]})


COLUMNS: Columns[SupportRow] = {
    "support": lambda row: row.distribution,
    "density": lambda row: f"{row.density:g}",
    "indices": lambda row: f"{row.nnz:,}",
    "form": lambda row: row.form,
    "bits per\nindex": lambda row: f"{row.bits_per_index:.2f}",
    "limit": lambda row: f"{row.bits_per_index_limit:.2f}",
    "x limit": lambda row: f"{row.times_limit:.3f}",
    "vs coo": lambda row: table.format_times(row.compression_vs_coo),
    "encode\nM/s": lambda row: f"{row.encoded_per_second / 1e6:,.0f}",
    "decode\nM/s": lambda row: f"{row.decoded_per_second / 1e6:,.0f}",
    "both\nM/s": lambda row: f"{row.coded_per_second / 1e6:,.0f}",
    "wrong": lambda row: table.format_wrong(row.wrong),
}
PRECISION_COLUMNS: Columns[PrecisionRow] = {
    "precision": lambda row: row.precision,
    "bytes per\nvalue": lambda row: f"{row.bytes_per_value:.3f}",
    "round\nGB/s": lambda row: f"{row.rounded_bytes_per_second / 1e9:.2f}",
    "decode\nGB/s": lambda row: f"{row.decoded_bytes_per_second / 1e9:.2f}",
    "both\nGB/s": lambda row: f"{row.both_bytes_per_second / 1e9:.2f}",
}


def conclusion(result: Result[SupportRow]) -> Group:
    """The table of precisions."""
    rows = [PrecisionRow(**fields) for fields in result.more["precisions"]]
    return Group("", table.make_table(PRECISION_COLUMNS, rows))


def plot(rows: Sequence[SupportRow], path: Path) -> None:
    """Draw the bits per index of every support, between plain indices and the information limit."""
    lowest, highest = (edge(row.density for row in rows) for edge in (min, max))
    densities = [lowest * (highest / lowest) ** (step / CURVE_STEPS) for step in range(CURVE_STEPS + 1)]
    with saved_figure(path, 8.0, 5.0) as figure:
        panel = figure.subplots()
        panel.axhline(BITS_OF_COO, color="#888888", linestyle="--", label="COO: 32 bits each")
        panel.plot(densities, [1 / d for d in densities], color="#888888", linestyle=":", label="bitmap")
        for distribution, (colour, marker, size) in STYLES.items():
            mine = [row for row in rows if row.distribution == distribution]
            points = [row.density for row in mine], [row.bits_per_index for row in mine]
            line = {"color": colour, "marker": marker, "markersize": size}
            panel.plot(*points, label=f"ours, {distribution}", **line)
        limits = [bits_at_the_limit(d) for d in densities]
        panel.plot(densities, limits, color="black", linewidth=1.0, label="entropy of uniform supports")
        panel.set_yscale("log", base=2)
        panel.set(xscale="log", ylim=(0.9, 2 * BITS_OF_COO), xlabel="density", ylabel="bits per index")
        panel.yaxis.set_major_formatter(lambda bits, _: f"{bits:g}")
        panel.set_title(f"What an index takes on the wire, in a vector of {power_of_two(rows[0].length)}")
        tidy(panel)
        panel.legend(frameon=False, fontsize=9)


def bits_at_the_limit(density: float) -> float:
    """Bits per index, H(d) / d.

    >>> round(bits_at_the_limit(0.01), 2), bits_at_the_limit(0.5)
    (8.08, 2.0)
    """
    return -math.log2(density) - (1 - density) / density * math.log2(1 - density)


def _measure_support(case: Case) -> SupportRow:
    indices = make_input(case, 0)[0].astype(index_dtype(case.length))
    form = codes.best_form(indices, 0, case.length)

    def encode() -> Values:
        return codes.encode_indices(indices, 0, case.length, codes.best_form(indices, 0, case.length))

    def decode() -> Values | None:
        if form.code == codes.COO:
            return coded if kernels.first_invalid(coded, 0, case.length) < 0 else None
        return codes.decode_indices(form.code, coded, case.nnz, 0, case.length, indices.dtype)

    coded = encode()
    decoded = decode()
    bits, limit = 8 * form.nbytes / case.nnz, bits_at_the_limit(case.nnz / case.length)
    encode_s, decode_s = _cpu_seconds(encode), _cpu_seconds(decode)
    return SupportRow(
        distribution=case.distribution,
        length=case.length,
        density=case.density,
        nnz=case.nnz,
        form=FORMS[form.code],
        bits_per_index=bits,
        bits_per_index_limit=limit,
        times_limit=bits / limit,
        compression_vs_coo=8 * indices.itemsize / bits,
        encoded_per_second=case.nnz / encode_s,
        decoded_per_second=case.nnz / decode_s,
        coded_per_second=case.nnz / (encode_s + decode_s),
        wrong=case.nnz if decoded is None else count_wrong(decoded, indices),
    )


def _measure_precision(name: str) -> PrecisionRow:
    precision = PRECISIONS[name]
    values = np.random.default_rng(0).standard_normal(VALUES, np.float32)
    positions = np.arange(0, VALUES * GAP, GAP, dtype=np.uint32)
    packed = precision.pack(values, positions, PLACE)
    pack_s = _cpu_seconds(lambda: precision.pack(values, positions, PLACE))
    unpack_s = _cpu_seconds(lambda: precision.unpack(packed, VALUES))
    return PrecisionRow(
        precision=name,
        values=VALUES,
        bytes_per_value=precision.nbytes(VALUES) / VALUES,
        rounded_bytes_per_second=values.nbytes / pack_s,
        decoded_bytes_per_second=values.nbytes / unpack_s,
        both_bytes_per_second=values.nbytes / (pack_s + unpack_s),
    )


def _cpu_seconds(call: Callable[[], object]) -> float:
    """Processor time of a call: the best of several rounds, each of as many calls as the clock needs."""
    calls = 1
    while (seconds := _round_seconds(call, calls)) < ROUND_S:
        calls *= 2
    return min(seconds, *(_round_seconds(call, calls) for _ in range(ROUNDS))) / calls


def _round_seconds(call: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return time.process_time() - start


BENCHMARK = Benchmark("bench coding", CodingOptions, run, COLUMNS, conclusion, plot=plot)
