"""Gaussian-k: the threshold is a quantile of a normal distribution that is fitted to the values."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from sparsewire.compress.compressor import Counting
from sparsewire.compress.schedule import Density, checked_density, density_at
from sparsewire.compress.source import Source
from sparsewire.compress.state import StepState
from sparsewire.vector import SparseVector

__all__ = ["GaussianK"]

# The constants of Ok-Topk's implementation of Gaussian-k for VGG.  Counts are in units of the wanted one.
FEWEST, MOST = 0.75, 1.25
CORRECTIONS = 20
FACTOR = 1.02


@dataclass(frozen=True)
class GaussianK(Counting):
    """The entries above the threshold that would give the density if values were normally distributed.

    For comparison with other methods.  Gradients are not normal, and what error feedback accumulates is even
    less so.  Therefore the threshold is corrected, by a factor of up to 1.5, until a sample has 3/4 to 5/4 of
    the entries.  That is not always enough for a density below 1%; if all values are equal, all are sent.
    `ControlledThreshold` costs the same pass and holds the density.  (Shi et al., Understanding top-k
    sparsification in distributed deep learning, 2019; corrections as in the code of Ok-Topk, PPoPP'22.)
    """

    density: Density

    def __post_init__(self) -> None:
        checked_density(self.density)

    def take(self, source: Source, state: StepState) -> tuple[SparseVector, StepState]:
        sample = source.sample().astype(np.float64)
        sample = sample[np.isfinite(sample)]  # a single infinity would leave no distribution
        density = density_at(self.density, state.step)
        threshold = _corrected(_two_sided_quantile(sample, density), np.abs(sample), density * len(sample))
        return source.vector(*source.take(threshold)), StepState(state.step + 1)


def _two_sided_quantile(sample: npt.NDArray[np.float64], density: float) -> float:
    if len(sample) == 0 or density == 1:
        return 0.0
    deviations = NormalDist().inv_cdf(1 - density / 2)
    with np.errstate(over="ignore", invalid="ignore"):
        threshold = abs(sample.mean()) + deviations * sample.std()
    return float(np.nan_to_num(threshold))  # float64 values that are too large to be squared


def _corrected(threshold: float, magnitudes: npt.NDArray[np.float64], wanted: float) -> float:
    """The threshold, moved in one direction until about the wanted number of magnitudes exceed it."""

    def exceeding() -> int:
        return int(np.count_nonzero(magnitudes > threshold))

    has_too_many = exceeding() > MOST * wanted
    for _ in range(CORRECTIONS):
        if has_too_many and exceeding() > MOST * wanted:
            threshold *= FACTOR
        elif not has_too_many and exceeding() < FEWEST * wanted:
            threshold /= FACTOR
        else:
            break
    return threshold
