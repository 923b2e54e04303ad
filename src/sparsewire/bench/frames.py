"""What one rank's input takes as a frame on the wire, and how long it takes to make and to read one."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from sparsewire.bench.cases import Case
from sparsewire.bench.contenders import LOSSLESS, input_vector, takes_dense
from sparsewire.bench.rows import PEER_NAMES, Row
from sparsewire.bench.variants import takes_blocks
from sparsewire.coding import frame as wire
from sparsewire.coding.call import Envelope
from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import precision_of
from sparsewire.vector import SparseVector, index_dtype

__all__ = ["Frame", "measure_frame", "with_frames"]

REPEATS = 5
PLACE = (0, 0, 0)  # where chance comes from: any will do


@dataclass(frozen=True)
class Frame:
    """A vector as one frame, the header left out."""

    bytes_per_nonzero: float
    compression_vs_coo: float  # what it takes with plain indices and values / what it takes so
    encode_seconds: float  # rounding included
    decode_seconds: float


def with_frames(rows: Sequence[Row], case: Case, index_price: float) -> list[Row]:
    """The rows, with the frame of rank 0's input in each one's precision.

    Peers have no frames, and what is given blocks never makes one of all of them.
    """
    sparse = input_vector(case, 0)

    @cache
    def frame(is_dense: bool, precision: str) -> dict[str, Any]:
        vector = sparse.as_dense() if is_dense else sparse
        return asdict(measure_frame(vector, case.nnz, precision, index_price))

    return [
        row
        if row.algorithm in PEER_NAMES or takes_blocks(row.algorithm, case)
        else replace(row, **frame(takes_dense(row.algorithm, case, sparse), row.precision))
        for row in rows
    ]


def measure_frame(vector: SparseVector, nonzeros: int, precision: str, index_price: float) -> Frame:
    """What the frame takes where coding an index has to save so many bytes; medians of several."""
    price = math.inf if precision == "coo" else index_price
    rounds_to = None if precision in LOSSLESS else precision_of(precision, vector.dtype, "sum")

    def encode() -> list[Any]:
        piece = vector if rounds_to is None else rounded(vector, rounds_to, PLACE)
        return wire.encode(piece, Envelope(), price)

    message = b"".join(encode())
    plain = nonzeros * (index_dtype(vector.length).itemsize + vector.dtype.itemsize)
    nbytes = len(message) - wire.HEADER_BYTES
    return Frame(
        bytes_per_nonzero=nbytes / nonzeros,
        compression_vs_coo=plain / nbytes,
        encode_seconds=_median_seconds(encode),
        decode_seconds=_median_seconds(lambda: wire.decode(message)),
    )


def _median_seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
