"""Gaussian-k: the threshold is a quantile of a normal distribution that is fitted to the values."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from sparsewire.compress.base import Counting, Source, StepState
from sparsewire.compress.schedule import Density, checked_density, density_at
from sparsewire.vector import Array, SparseVector

__all__ = ["GaussianK"]


@dataclass(frozen=True)
class GaussianK(Counting):
    """The entries above the threshold that would give the density if values were normally distributed.

    For comparison.  Gradients are not normal: it sends too many of a heavy tail, and too few of what error
    feedback has accumulated, and none if all are equal.  `ControlledThreshold` costs the same pass and holds
    the density.  (Shi et al., Understanding top-k sparsification in distributed deep learning, 2019.)
    """

    density: Density

    def __post_init__(self) -> None:
        checked_density(self.density)

    def take(self, source: Source, state: StepState) -> tuple[SparseVector, StepState]:
        threshold = _two_sided_quantile(source.sample(), density_at(self.density, state.step))
        return source.vector(*source.take(threshold)), StepState(state.step + 1)


def _two_sided_quantile(sample: Array, density: float) -> float:
    values = sample.astype(np.float64)
    values = values[np.isfinite(values)]  # a single infinity would leave no distribution
    if len(values) == 0 or density == 1:
        return 0.0
    deviations = NormalDist().inv_cdf(1 - density / 2)
    with np.errstate(over="ignore", invalid="ignore"):
        threshold = abs(values.mean()) + deviations * values.std()
    return float(np.nan_to_num(threshold))  # float64 values that are too large to be squared
