"""The entries of largest magnitude; thresholds are magnitudes as bits (see magnitude.py)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsewire.kernels.checks import Indices, Values
from sparsewire.kernels.magnitude import CLASSES, classes, magnitudes
from sparsewire.kernels.reference.arithmetic import in_rows, quiet, wide

__all__ = [
    "accumulate_select",
    "accumulate_select_buckets",
    "histogram",
    "partition",
    "select",
    "select_buckets",
    "threshold_for_k",
]

Step = tuple[
    int, int, int
]  # the position that a pass has come to, entries written, ties that may still be taken


def select(x: Values, bits: int, offset: int, out_indices: Indices, out_values: Values, step: Step) -> Step:
    """Go on from a step as far as there is room.  If all is done, the new position is the number of values.

    Otherwise the room is full, and the value at the new position is the first entry that had none.
    """
    position, count, ties = step
    found = position + np.flatnonzero(_chosen(x[position:], bits, ties))
    taken = found[: len(out_indices) - count]
    stop = len(x) if len(taken) == len(found) else int(found[len(taken)])
    dtype, end = out_indices.dtype, count + len(taken)
    first = dtype.type(offset % 2 ** (8 * dtype.itemsize))  # an empty range may begin behind the last index
    out_indices[count:end], out_values[count:end] = taken.astype(dtype) + first, x[taken]
    return stop, end, ties - int(np.count_nonzero(magnitudes(x[taken]) == bits))


@quiet
def accumulate_select(
    residual: Values,
    gradient: Values,
    bits: int,
    out_indices: Indices,
    out_values: Values,
    step: Step,
    velocity: Values | None,
    momentum: float,
) -> Step:
    """As `select` of the sum.  Values at and after the new position are untouched."""
    added = gradient
    if velocity is not None:
        added = (wide(velocity) * momentum).astype(velocity.dtype)  # rounded here, and with the sum once more
        added = (wide(added) + wide(gradient)).astype(velocity.dtype)
    total = (wide(residual) + wide(added)).astype(residual.dtype)
    end = select(total, bits, 0, out_indices, out_values, step)
    done = slice(step[0], end[0])
    residual[done] = total[done]
    residual[out_indices[step[1] : end[1]]] = 0
    if velocity is not None:
        velocity[done] = added[done]
    return end


def _chosen(x: Values, bits: int, ties: int) -> npt.NDArray[np.bool_]:
    """Which values are above the threshold, or among the first `ties` that equal it."""
    magnitude = magnitudes(x)
    chosen = magnitude > bits
    chosen[np.flatnonzero(magnitude == bits)[:ties]] = True
    return chosen


def threshold_for_k(x: Values, k: int) -> tuple[int, int]:
    magnitude = magnitudes(x)
    kth = np.partition(magnitude, len(x) - k)[len(x) - k]
    return int(kth), k - int(np.count_nonzero(magnitude > kth))


def select_buckets(x: Values, k: int, bucket: int, out_indices: Indices, out_values: Values) -> int:
    rows = in_rows(magnitudes(x), bucket)
    largest_first = np.argsort(~rows, axis=1, kind="stable")  # ~ turns the order round
    first = bucket * np.arange(len(rows))
    positions = np.sort((first[:, None] + largest_first[:, :k]).reshape(-1))
    positions = positions[rows.reshape(-1)[positions] != 0]
    out_indices[: len(positions)], out_values[: len(positions)] = positions, x[positions]
    return len(positions)


@quiet
def accumulate_select_buckets(
    residual: Values, gradient: Values, k: int, bucket: int, out_indices: Indices, out_values: Values
) -> int:
    residual[:] = wide(residual) + wide(gradient)
    count = select_buckets(residual, k, bucket, out_indices, out_values)
    residual[out_indices[:count]] = 0
    return count


def histogram(x: Values, counts: npt.NDArray[np.int64]) -> None:
    counts[:] = np.bincount(classes(x), minlength=CLASSES)


def partition(
    indices: Indices,
    values: Values,
    bits: int,
    ties: int,
    large_indices: Indices,
    large_values: Values,
    rest_indices: Indices,
    rest_values: Values,
) -> int:
    is_large = _chosen(values, bits, ties)
    count = int(np.count_nonzero(is_large))
    others = len(indices) - count
    large_indices[:count], large_values[:count] = indices[is_large], values[is_large]
    rest_indices[:others], rest_values[:others] = indices[~is_large], values[~is_large]
    return count
