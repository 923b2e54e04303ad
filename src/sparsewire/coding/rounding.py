"""Rounding is a step of a script, because where it happens decides whether ranks agree.

A rounded piece has the rounded values, in the dtype that they had, and carries the bytes that they are made
of: ``packed`` is what travels.  So the rank that rounds goes on with the values that all others decode, sums
are made in the dtype of the vector, and whoever forwards the piece does not round again.

A script rounds in two places: a rank's own values once, before they are sent, and the sum of a range once, by
its owner.  Feedback keeps the error of both for the next call.

With feedback the nearest level is taken instead of a random one.  Random rounding to few bits may miss a
value by more than the value itself, on average: its feedback would grow from call to call.  Rounding to the
nearest never does, and its errors are corrected by the next calls.

S. Karimireddy et al., Error feedback fixes SignSGD and other gradient compression schemes, ICML 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sparsewire.coding.values import Place, Precision
from sparsewire.errors import InputError
from sparsewire.vector import Array, Packed, SparseVector

__all__ = ["EXACT", "Feedback", "NoRounding", "PrecisionRounding", "Rounding", "rounded"]

CONTRIBUTION, OWNED = 0, 1  # what is rounded: a rank's own values, or the sum of everybody's in a range


@dataclass(eq=False)
class Feedback:
    """The rounding errors so far, at each position; the next call adds them, so that nothing is lost.

    Each tensor has one on each rank.  Give it to every call for that tensor, and save it with the model.
    ``contribution`` has the errors of this rank's own values, ``owned`` those of the sums that it made.
    """

    contribution: Array | None = None
    owned: Array | None = None

    def make_room(self, length: int, dtype: np.dtype[Any]) -> None:
        """Begin with zeros; raises InputError if it was made for another length or dtype."""
        for name in ("contribution", "owned"):
            residual: Array | None = getattr(self, name)
            if residual is None:
                setattr(self, name, np.zeros(length, dtype))
            elif (len(residual), residual.dtype) != (length, dtype):
                raise InputError(
                    f"the feedback is for {len(residual):,} {residual.dtype} values and the vector has "
                    f"{length:,} {dtype} values; give each tensor a Feedback of its own"
                )


class Rounding(Protocol):
    """What a script asks for at the two places where it may round."""

    def contribution(self, piece: SparseVector) -> SparseVector:
        """A rank's own values, before they are sent."""

    def owned(self, piece: SparseVector) -> SparseVector:
        """The sum of a range, before its owner sends it to all ranks."""


class NoRounding:
    """Gives every piece back as it is."""

    def contribution(self, piece: SparseVector) -> SparseVector:
        return piece

    def owned(self, piece: SparseVector) -> SparseVector:
        return piece


EXACT = NoRounding()


class PrecisionRounding:
    """Rounds the values of one call at one rank to a precision.

    It is used in a ``with`` statement around the call: if the call fails, the feedback is as before.

    ``packed`` is that of the vector which the caller gives.  If it is rounded to the nearest already, its
    pieces are as well: a random level would lose what the caller's own feedback does not know of.
    """

    def __init__(
        self,
        precision: Precision,
        rank: int,
        number: int,
        feedback: Feedback | None = None,
        packed: Packed | None = None,
    ) -> None:
        self._precision, self._rank, self._number = precision, rank, number
        is_rounded = packed is not None and packed.precision == precision.nearest
        self._precision_of_own = precision.nearest if is_rounded else precision
        self._residuals = (feedback.contribution, feedback.owned) if feedback else (None, None)  # by stage
        self._open: list[_Taken] = []

    def contribution(self, piece: SparseVector) -> SparseVector:
        return self._round(piece, CONTRIBUTION)

    def owned(self, piece: SparseVector) -> SparseVector:
        return self._round(piece, OWNED)

    def _round(self, piece: SparseVector, stage: int) -> SparseVector:
        residual = self._residuals[stage]
        if residual is None:
            precision = self._precision_of_own if stage == CONTRIBUTION else self._precision
            return rounded(piece, precision, (self._number, self._rank, stage))
        taken = _Taken(residual, piece)
        self._open.append(taken)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = piece.with_values(piece.values + taken.values)
            result = rounded(wanted, self._precision, None)
            error = wanted.values - result.values
        taken.lost = np.where(np.isfinite(error), error, 0)
        return result

    def __enter__(self) -> None:
        """Nothing is taken out of the feedback yet."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for taken in self._open:
            taken.settle(failed=kind is not None)


def rounded(piece: SparseVector, precision: Precision, place: Place | None) -> SparseVector:
    """The piece with rounded values; without a place each becomes the nearest level.

    ``packed`` of the result names the precision in which the values are written: without a place it is
    ``precision.nearest``.
    """
    if place is None:
        precision = precision.nearest
    with np.errstate(over="ignore", invalid="ignore"):  # a float64 may be too large, or a signalling NaN
        values = piece.values.astype(np.float32, copy=False)
    positions = piece.start if piece.indices is None else piece.indices
    data = precision.pack(values, positions, place)
    decoded = precision.unpack(data, piece.nnz).astype(piece.dtype, copy=False)
    return piece.with_values(decoded, Packed(precision, data))


class _Taken:
    """What was taken out of a residual at the positions of a piece, and what is put back in the end."""

    def __init__(self, residual: Array, piece: SparseVector) -> None:
        self._residual = residual
        self._where = slice(piece.start, piece.stop) if piece.indices is None else piece.indices
        self.values: Array = residual[self._where].copy()
        self.lost: Array = self.values  # the rounding errors, once known; 0 where they are not finite
        residual[self._where] = 0

    def settle(self, failed: bool) -> None:
        self._residual[self._where] += self.values if failed else self.lost
