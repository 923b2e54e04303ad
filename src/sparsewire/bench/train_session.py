"""Training from the outside: a job of ranks for each seed, the first of them timed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial

from sparsewire.bench.contenders import choose_names
from sparsewire.bench.session import Tell, run_ranks
from sparsewire.bench.tasks import TASKS, Task
from sparsewire.bench.train import REFERENCE, TrainPlan
from sparsewire.bench.train_methods import OURS
from sparsewire.bench.train_rows import FLOOR, TrainRow, make_train_rows
from sparsewire.compress.schedule import checked_density
from sparsewire.errors import MissingExtraError
from sparsewire.launch.emulation import parse_rate

__all__ = ["choose_methods", "run_train"]


def choose_methods(text: str | None, task: Task) -> tuple[str, ...]:
    """The names in ``a,b,c``, checked; by default those that suit the task."""
    return task.methods if text is None else tuple(choose_names(text, "method", list(OURS)))


def run_train(plan: TrainPlan, seeds: int, network: str | None, tell: Tell) -> list[TrainRow]:
    """The plan's methods beside the task's peers, from ``seeds`` beginnings.

    The first is timed.  The others are for the loss, which no network changes, and so they have none.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError.of("torch", "torch")
    checked_density(plan.density)
    task = TASKS[plan.task]
    rate = parse_rate(network) if network else None
    every = (*task.peers, *plan.methods)
    trained = tuple(method for method in every if method not in (FLOOR, REFERENCE))
    found = []
    for seed in range(seeds):
        of_seed = replace(plan, seed=plan.seed + seed, methods=trained if seed else every)
        doing = f"training {seed + 1} of {seeds}"
        [event] = run_ranks(of_seed, "tcp", None if seed else rate, partial(tell, doing))
        found.append(event["found"])
    return make_train_rows(plan, task, found, network)
