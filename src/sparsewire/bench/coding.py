"""What index coding and low precision cost and save, on one core, without ranks.

The limit of a support with a share d of N positions is its entropy if all such supports are equally likely:
N H(d) bits, with H(d) = -d log2 d - (1 - d) log2(1 - d).  Times are processor time, the best of several.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.bench.cases import Case, Values, count_wrong, make_input
from sparsewire.coding.indices import (
    BITMAP,
    COO,
    ELIAS_FANO,
    TILES,
    best_form,
    decode_indices,
    encode_indices,
)
from sparsewire.coding.values import PRECISIONS
from sparsewire.errors import InputError
from sparsewire.vector import index_dtype

__all__ = ["DENSITIES", "SUPPORTS", "PrecisionRow", "SupportRow", "bits_at_the_limit", "run"]

SUPPORTS = ("uniform", "zipf", "rows")  # distributions of ``cases``
DENSITIES = (1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
SHORTEST = 1 << 10
FORMS = {
    COO: "coo",
    ELIAS_FANO: "elias_fano",
    BITMAP: "bitmap",
    TILES: "tiles",
}
VALUES = 1 << 20
GAP = 100  # between the positions of values that are rounded, as at a density of 1%
PLACE = (0, 0, 0)  # where the chance of rounding comes from: any will do
ROUNDS = 7
ROUND_S = 2e-3  # of processor time: far above what its clock resolves


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


def run(
    length: int,
    densities: Sequence[float] = DENSITIES,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> tuple[list[SupportRow], list[PrecisionRow]]:
    """A row for each support and density, and one for each precision; ``tell`` hears what is next."""
    if length < SHORTEST:
        raise InputError(f"the size is {length}; to code indices takes at least {SHORTEST:,}")
    cases = [Case(1, length, density, distribution=name) for name in SUPPORTS for density in densities]
    total = len(cases) + len(PRECISIONS)
    supports = []
    for done, case in enumerate(cases):
        tell(f"{case.distribution} at density {case.density:g}", done, total)
        supports.append(_measure_support(case))
    precisions = []
    for done, name in enumerate(PRECISIONS, start=len(cases)):
        tell(name, done, total)
        precisions.append(_measure_precision(name))
    return supports, precisions


def bits_at_the_limit(density: float) -> float:
    """Bits per index, H(d) / d.

    >>> round(bits_at_the_limit(0.01), 2), bits_at_the_limit(0.5)
    (8.08, 2.0)
    """
    return -math.log2(density) - (1 - density) / density * math.log2(1 - density)


def _measure_support(case: Case) -> SupportRow:
    indices = make_input(case, 0)[0].astype(index_dtype(case.length))
    form = best_form(indices, 0, case.length)

    def encode() -> Values:
        return encode_indices(indices, 0, case.length, best_form(indices, 0, case.length))

    def decode() -> Values | None:
        if form.code == COO:
            return coded if kernels.first_invalid(coded, 0, case.length) < 0 else None
        return decode_indices(form.code, coded, case.nnz, 0, case.length, indices.dtype)

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
    """Processor time of a call: the best of several rounds, each of as many calls as a clock needs."""
    calls = 1
    while (seconds := _round_seconds(call, calls)) < ROUND_S:
        calls *= 2
    return min(seconds, *(_round_seconds(call, calls) for _ in range(ROUNDS))) / calls


def _round_seconds(call: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return time.process_time() - start
