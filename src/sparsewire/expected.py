"""What a script expects of the messages that it receives.

A frame that decodes is valid by itself, but it may still not belong to the call: another length, range or
dtype, a list instead of a piece.  Sums write by index, so nothing of the kind may reach them.  A script says
with every ``Recv`` what it expects, and the driver compares before the script goes on: whatever else comes is
a ``WireError`` that names the sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from sparsewire.errors import WireError
from sparsewire.steps import Expectation
from sparsewire.vector import SparseVector

__all__ = ["Expected", "Numbers", "Pieces", "like"]


class Expected(NamedTuple):
    """One piece.  None stands for what only the sender knows.

    Of a vector whose length only the sender knows, the piece is the whole.  A piece whose start is known and
    whose stop is not, has at least one position, unless the vector has none.

    >>> Expected(9, 0, 5, np.dtype("int32")).check(3, SparseVector.empty(9))
    Traceback (most recent call last):
    sparsewire.errors.WireError: rank 3 sent 0 entries in [0, 9) of 9 float32, expected were [0, 5) of 9 int32
    """

    length: int | None = None
    start: int | None = None
    stop: int | None = None
    dtype: np.dtype[Any] | None = None
    is_dense: bool | None = None
    most: int | None = None  # entries

    def check(self, source: int, payload: Any) -> None:
        """Raise WireError unless the payload of the source is such a piece."""
        if isinstance(payload, SparseVector):
            length, start, stop, dtype, is_dense, most = self
            came = payload.values.dtype
            if (
                payload.start == start
                and payload.stop == stop
                and payload.length == length
                and (came is dtype or came == dtype)
                and is_dense is most is None
            ):
                return  # most pieces are known by their range alone, and short calls are many
            if self._fits(payload):
                return
        _refuse(source, payload, self)

    def _fits(self, piece: SparseVector) -> bool:
        length, start, stop, dtype, is_dense, most = self
        if dtype is not None and piece.values.dtype != dtype:
            return False
        if length is None:
            if piece.start or piece.stop != piece.length:
                return False
        elif piece.length != length or (start is not None and piece.start != start):
            return False
        elif stop is None:
            if start is not None and length and piece.stop == start:
                return False
        elif piece.stop != stop:
            return False
        return (is_dense is None or piece.is_dense == is_dense) and (most is None or piece.nnz <= most)

    def __str__(self) -> str:
        limit = "" if self.most is None else f"at most {self.most:,} entries in "
        if self.start is None:
            where = "all" if self.length is None else "a range"
        else:
            where = f"[{self.start:,}, {'...' if self.stop is None else f'{self.stop:,}'})"
        length = "a vector" if self.length is None else f"{self.length:,}"
        form = {None: "", True: "dense ", False: "sparse "}[self.is_dense]
        return f"{limit}{where} of {length} {form}{self.dtype or 'values'}"


class Numbers(NamedTuple):
    """A dense vector of ``length`` numbers, each a whole one from 0 to ``largest``."""

    length: int
    dtype: np.dtype[Any]
    largest: int

    def check(self, source: int, payload: Any) -> None:
        """As ``Expected.check``."""
        Expected(self.length, 0, self.length, self.dtype, is_dense=True).check(source, payload)
        values = payload.values
        # NaN is not equal to anything, and the smallest and the largest of numbers with a NaN are NaN.
        if self.length and not (values.min() >= 0 and values.max() <= self.largest):
            raise WireError(f"rank {source} sent numbers that are not from 0 to {self.largest:,}: {values}")
        if values.dtype.kind == "f" and (np.floor(values) != values).any():
            raise WireError(f"rank {source} sent numbers that are not whole: {values}")


class Pieces(NamedTuple):
    """A list of pieces."""

    pieces: Sequence[Expectation]

    def check(self, source: int, payload: Any) -> None:
        """As ``Expected.check``."""
        if not isinstance(payload, list) or len(payload) != len(self.pieces):
            _refuse(source, payload, self)
        for piece, expected in zip(payload, self.pieces, strict=True):
            expected.check(source, piece)

    def __str__(self) -> str:
        return f"a list of {len(self.pieces)} pieces"


def like(piece: SparseVector) -> Expected:
    """A piece with the length, range and dtype of this one."""
    return Expected(piece.length, piece.start, piece.stop, piece.values.dtype)


def _refuse(source: int, payload: Any, expected: Expected | Pieces) -> NoReturn:
    if isinstance(payload, SparseVector):
        stored = f"{payload.nnz:,} {'dense values' if payload.is_dense else 'entries'}"
        came = f"{stored} in [{payload.start:,}, {payload.stop:,}) of {payload.length:,} {payload.dtype}"
    else:
        came = f"a list of {len(payload)} pieces" if isinstance(payload, list) else f"a {type(payload)}"
    raise WireError(f"rank {source} sent {came}, expected were {expected}")
