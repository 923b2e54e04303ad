"""The rules for the parameters of a linear model."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np

from sparsewire.algorithms import ALGORITHMS
from sparsewire.coding.values import precision_of
from sparsewire.errors import InputError
from sparsewire.linear.exchange import EXACT, LOSSY
from sparsewire.linear.losses import Loss
from sparsewire.linear.schedule import SCHEDULES

__all__ = ["AUTO", "CD", "MINI_BATCH", "SDCA", "check_parameters", "choose_solver"]

# Solvers.
AUTO, SDCA, MINI_BATCH, CD = "auto", "sdca", "sgd", "cd"

Rule: TypeAlias = tuple[type, Callable[[Any], bool], str]  # the type, a condition, and both in words

NUMBERS: dict[str, Rule] = {
    "alpha": (Real, lambda alpha: 0 <= alpha < np.inf, "a number that is not negative"),
    "l1_ratio": (Real, lambda ratio: 0 <= ratio <= 1, "a number from 0 to 1"),
    "max_iter": (Integral, lambda passes: passes >= 1, "an integer from 1 on"),
    "n_iter_no_change": (Integral, lambda passes: passes >= 1, "an integer from 1 on"),
    "validation_fraction": (Real, lambda share: 0 < share < 1, "a number between 0 and 1"),
    "batch_size": (Integral, lambda rows: rows >= 1, "an integer from 1 on"),
    "power_t": (Real, lambda power: 0 <= power < np.inf, "a number that is not negative"),
    "decay": (Real, lambda decay: 0 < decay <= 1, "a number above 0 and at most 1"),
    "momentum": (Real, lambda momentum: 0 <= momentum < 1, "a number from 0 on and below 1"),
    "block_size": (Integral, lambda features: features >= 1, "an integer from 1 on"),
    "density": (Real, lambda share: 0 < share <= 1, "a number above 0 and at most 1"),
}
OPTIONAL_NUMBERS: dict[str, Rule] = {
    "tol": (Real, lambda tol: tol >= 0, "a number that is not negative, or None"),
    "eta0": (Real, lambda length: 0 < length < np.inf, "a positive number, or None to have it chosen"),
}
# Other parameters are checked where they are used.
CHOICES: dict[str, tuple[Any, ...]] = {
    "solver": (AUTO, SDCA, MINI_BATCH, CD),
    "penalty": ("l2", "l1", "elasticnet", None),
    "learning_rate": tuple(SCHEDULES),
    "method": (EXACT, *LOSSY),
    "algorithm": ("auto", *ALGORITHMS),
}


def check_parameters(model: Any) -> None:
    """Raise InputError if a parameter of the model breaks its rule."""
    for name, (kind, holds, what) in (NUMBERS | OPTIONAL_NUMBERS).items():
        value = getattr(model, name)
        if value is None and name in OPTIONAL_NUMBERS:
            continue
        if not isinstance(value, kind) or not holds(value):
            raise InputError(f"{name} must be {what}, got {value!r}")
    for name, known in CHOICES.items():
        if (value := getattr(model, name)) not in known:
            raise InputError(f"unknown {name} {value!r}; known are {', '.join(map(str, known))}")
    precision_of(model.precision, np.dtype(np.float32), "sum")


def choose_solver(model: Any, loss: Loss) -> str:
    """The solver that ``fit`` uses for a model with this loss; "auto" stands for one of the others.

    Dual coordinate ascent is the fastest, but needs an L2 penalty and exact sums.
    """
    lossy = next(
        (name for name in ("method", "precision") if getattr(model, name) not in (EXACT, None)), None
    )
    if model.solver == SDCA and lossy:
        raise InputError(
            f"solver {SDCA!r} needs exact sums, and {lossy} is {getattr(model, lossy)!r}: "
            f"leave {lossy} out, or take solver {MINI_BATCH!r}"
        )
    if model.solver != AUTO:
        return str(model.solver)
    if lossy:
        return MINI_BATCH
    if model.penalty == "l2" and model.alpha > 0:
        return SDCA
    return CD if np.isfinite(loss.curvature) else MINI_BATCH
