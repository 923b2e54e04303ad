"""How many bytes one rank's input has as a frame on the wire, and how long coding and decoding it takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from sparsewire.bench.allreduce.rows import Row
from sparsewire.bench.harness.clock import seconds_of
from sparsewire.bench.harness.contenders import LOSSLESS, input_vector
from sparsewire.bench.harness.peers import PEER_NAMES
from sparsewire.bench.harness.problem import Case
from sparsewire.bench.harness.variants import takes_blocks, takes_dense
from sparsewire.coding import frame as wire
from sparsewire.coding.call import Envelope
from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import precision_of
from sparsewire.vector import SparseVector, index_dtype

REPEATS = 5
PLACE = (0, 0, 0)  # the seed of rounding, whose value does not matter


@dataclass(frozen=True)
class Frame:
    """A vector as one frame, the header left out."""

    bytes_per_nonzero: float
    compression_vs_coo: float  # bytes with plain indices and values / bytes of the frame
    encode_seconds: float  # rounding included
    decode_seconds: float


def with_frames(rows: Sequence[Row], case: Case, index_price: float) -> list[Row]:
    """The rows, each with the frame of rank 0's input in its precision.

    Peers have no frames, and an algorithm that is given blocks never sends its input as one frame.
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
    """The frame, if coding an index must save ``index_price`` bytes; times are medians of several."""
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
    return statistics.median(seconds_of(call) for _ in range(REPEATS))
