"""The grid: does `auto` take the best algorithm, whatever the size, the density, the ranks and the wires?

A cell is one problem in one environment.  One job for each environment and number of ranks goes through all
of its cells, and in each of them every algorithm and `auto` take turns.  What is far from the fastest is
dropped after its warm-up, so that time goes to those that could be best.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparsewire.algorithms import ALGORITHMS
from sparsewire.bench.cases import Case
from sparsewire.bench.rows import slowest_rank
from sparsewire.bench.session import Tell, run_ranks, timeout_s
from sparsewire.bench.worker import Plan
from sparsewire.errors import InputError
from sparsewire.launch.emulation import parse_rate

__all__ = [
    "Cell",
    "Environment",
    "Summary",
    "Turns",
    "cell_to_json",
    "grid_cases",
    "make_cell",
    "run_grid",
    "summarise",
]

DROP_ABOVE = 2.0


@dataclass(frozen=True)
class Environment:
    """A driver and its wires, written ``tcp@1gbit``, or ``tcp`` where nothing limits them."""

    driver: str
    network: str | None = None

    @classmethod
    def parse(cls, text: str) -> Environment:
        driver, _, network = text.strip().partition("@")
        if driver not in ("tcp", "mpi"):
            raise InputError(f"unknown environment {text!r}; write for example tcp@1gbit, tcp or mpi")
        if network:
            parse_rate(network)
        return cls(driver, network or None)

    def __str__(self) -> str:
        return f"{self.driver}@{self.network}" if self.network else self.driver


@dataclass(frozen=True)
class Turns:
    """One contender in one cell; without iterations it was dropped, and the times are its warm-up's."""

    algorithm: str
    seconds_median: float
    seconds_min: float
    iterations: int
    wrong: int
    chosen: str | None = None  # what "auto" took


@dataclass(frozen=True)
class Cell:
    """One problem in one environment, and how everybody did."""

    environment: str
    ranks: int
    length: int
    density: float
    nnz_in: int
    nnz_out: int
    figures: dict[str, float]  # of the network and of computing, by which `auto` chose
    turns: tuple[Turns, ...]

    @property
    def auto(self) -> Turns:
        return next(turns for turns in self.turns if turns.algorithm == "auto")

    @property
    def fastest(self) -> Turns:
        """The best single algorithm."""
        return self._fastest(list(ALGORITHMS))

    @property
    def fastest_dense(self) -> Turns:
        return self._fastest([name for name in ALGORITHMS if ALGORITHMS[name].dense])

    @property
    def auto_vs_best(self) -> float:
        return self.auto.seconds_median / self.fastest.seconds_median

    @property
    def auto_vs_dense(self) -> float:
        return self.auto.seconds_median / self.fastest_dense.seconds_median

    @property
    def wrong(self) -> int:
        return sum(turns.wrong for turns in self.turns)

    def _fastest(self, names: Sequence[str]) -> Turns:
        return min((t for t in self.turns if t.algorithm in names), key=lambda turns: turns.seconds_median)


@dataclass(frozen=True)
class Summary:
    """How far `auto` is from the best, over all cells."""

    cells: int
    within_10_percent: float
    within_25_percent: float
    worst_vs_best: float
    worst_vs_dense: float


def summarise(cells: Sequence[Cell]) -> Summary:
    ratios = [cell.auto_vs_best for cell in cells]
    return Summary(
        cells=len(cells),
        within_10_percent=sum(ratio <= 1.10 for ratio in ratios) / len(cells),
        within_25_percent=sum(ratio <= 1.25 for ratio in ratios) / len(cells),
        worst_vs_best=max(ratios),
        worst_vs_dense=max(cell.auto_vs_dense for cell in cells),
    )


def grid_cases(ranks: Sequence[int], lengths: Sequence[int], densities: Sequence[float]) -> list[Case]:
    """Every combination in which a rank has an entry at all."""
    cases = [
        Case(size, length, density)
        for size in ranks
        for length in lengths
        for density in densities
        if length * density >= 1
    ]
    if not cases:
        raise InputError("the grid has no cell: size x density must be at least 1 somewhere")
    return cases


def run_grid(
    environments: Sequence[Environment],
    cases: Sequence[Case],
    seconds: float,
    tune_s: float,
    tell: Tell,
    on_cell: Callable[[list[Cell]], None],
) -> list[Cell]:
    """Every case in every environment; ``on_cell`` hears all cells so far whenever there is one more."""
    cells: list[Cell] = []

    def keep(cell: Cell) -> None:
        cells.append(cell)
        on_cell(cells)

    def tell_where(where: str) -> None:
        tell(where, len(cells), len(environments) * len(cases))

    for environment in environments:
        for ranks in dict.fromkeys(case.ranks for case in cases):
            job = [case for case in cases if case.ranks == ranks]
            _run_job(environment, job, seconds, tune_s, tell_where, keep)
    return cells


def _run_job(
    environment: Environment,
    cases: Sequence[Case],
    seconds: float,
    tune_s: float,
    tell: Callable[[str], None],
    keep: Callable[[Cell], None],
) -> None:
    """All cases of one number of ranks, in one launch."""
    rate = parse_rate(environment.network) if environment.network else None
    plan = Plan(
        tuple(cases),
        (*ALGORITHMS, "auto"),
        budget_s=seconds,
        drop_above=DROP_ABOVE,
        tune_s=tune_s,
        timeout_s=max(timeout_s(case, rate) for case in cases),
    )
    left = list(cases)

    def tell_case(done: int, total: int) -> None:
        tell(f"{environment}, {left[0].ranks} ranks, {left[0].length:,} at density {left[0].density:g}")

    run_ranks(
        plan,
        environment.driver,
        rate,
        tell_case,
        lambda event: keep(make_cell(environment, left.pop(0), event)),
    )


def make_cell(environment: Environment, case: Case, event: Mapping[str, Any]) -> Cell:
    """A cell from what the ranks found."""
    return Cell(
        environment=str(environment),
        ranks=case.ranks,
        length=case.length,
        density=case.density,
        nnz_in=case.nnz,
        nnz_out=event["nnz_out"],
        figures=event["figures"],
        turns=tuple(_turns(of_ranks) for of_ranks in zip(*event["found"], strict=True)),
    )


def _turns(of_ranks: Sequence[Mapping[str, Any]]) -> Turns:
    name, seconds = of_ranks[0]["name"], slowest_rank(of_ranks)
    times = seconds or slowest_rank(of_ranks, "warm_up_seconds")
    return Turns(
        algorithm=name,
        seconds_median=statistics.median(times),
        seconds_min=min(times),
        iterations=len(seconds),
        wrong=sum(record["wrong"] for record in of_ranks),
        chosen=of_ranks[0]["moved"]["algorithm"] if name == "auto" else None,
    )


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """All that was measured, and what follows from it."""
    return {
        **asdict(cell),
        "chosen": cell.auto.chosen,
        "fastest": cell.fastest.algorithm,
        "auto_vs_best": cell.auto_vs_best,
        "auto_vs_dense": cell.auto_vs_dense,
    }
