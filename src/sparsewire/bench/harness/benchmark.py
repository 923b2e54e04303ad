"""The record of a benchmark: its command, options, table, JSON file, plot and exit code follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from sparsewire.bench.harness.options import Options

if TYPE_CHECKING:
    from rich.console import RenderableType

O = TypeVar("O", bound=Options)  # noqa: E741  # options
R = TypeVar("R")  # a row

# Is called with what is going on, and how many of how many steps are done.
OnProgress: TypeAlias = Callable[[str, int, int], None]
Columns: TypeAlias = "Mapping[str, Callable[[R], str]]"


@dataclass(frozen=True)
class Result(Generic[R]):
    """The rows of one table, and what else there is to say about them."""

    rows: Sequence[R]
    header: Sequence[str] = ()  # lines above the table
    skipped: Mapping[str, str] | None = None  # what did not run, and why; None if everything always runs
    more: Mapping[str, Any] = field(default_factory=dict)  # further keys of the JSON file
    columns: Columns[R] | None = None  # instead of the benchmark's

    @property
    def wrong(self) -> int:
        """How many results were wrong, of all rows that count them."""
        return sum(getattr(row, "wrong", 0) for row in self.rows)


@dataclass(frozen=True)
class Benchmark(Generic[O, R]):
    """One benchmark; ``run`` returns a result for each table that is printed."""

    name: str  # the words of its command, behind "sparsewire"
    options: type[O]
    run: Callable[[O, OnProgress], Sequence[Result[R]]]
    columns: Columns[R]
    conclusion: Callable[[Result[R]], RenderableType | None] = lambda result: None
    style: Callable[[R, Sequence[R]], str | None] = lambda row, rows: None  # how a row is printed
    plot: Callable[[Sequence[R], Path], None] | None = None
    to_json: Callable[[R], Mapping[str, Any]] = asdict  # type: ignore[assignment]  # rows are dataclasses

    def command(self, options: O) -> list[str]:
        """The command that measures this again."""
        return ["sparsewire", *self.name.split(), *options.words()]
