"""Options of a command, as fields of a dataclass: its command line and its recorded command follow from them.

@dataclass(frozen=True, kw_only=True)
class SleepOptions(Options):
    '''Sleep, and measure for how long.'''

    ranks: Ranks = 4
    deeply: bool = option(False, "Do not wake up at noise.")
    json: Json = None
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from sparsewire.bench.harness.problem import Case, parse_size, trace_case
from sparsewire.errors import InputError

Number = TypeVar("Number", int, float)
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What the command line has to know about a field besides its name, type and default."""

    help: str
    flags: tuple[str, ...] = ()  # two dashes and the field's name if there are none
    min: float | None = None
    by_position: bool = False  # an argument without a flag
    is_output: bool = False  # a file that is written, which is no part of the recorded command


def option(default: T, help_text: str, **more: Any) -> T:
    """A field that only one command has: its default, and the fields of ``Option``."""
    described: T = field(default=default, metadata={"option": Option(help_text, **more)})
    return described


# Fields that several commands have.
Ranks = Annotated[int, Option("Number of ranks.", ("-n", "--ranks"), min=1)]
Size = Annotated[str, Option("Length of the vector: 16M is 16 * 2^20, k is 2^10, G is 2^30.")]
Density = Annotated[float, Option("Share of each rank's entries that are not zero.")]
DensityText = Annotated[str, Option("Share of each rank's entries that are not zero.")]
Selected = Annotated[float, Option("Share of the gradient that a step selects.")]
Names = Annotated[str, Option("Names, separated by commas, or 'all'.")]
Precisions = Annotated[
    str,
    Option(
        "Names, separated by commas: exact, coo (indices are not coded), float16, bfloat16, "
        "qsgd2, qsgd4, qsgd8."
    ),
]
Distribution = Annotated[
    str,
    Option(
        "uniform, zipf, rows, identical or disjoint; in whole blocks: blocks:256, blocks:256,identical, "
        "blocks:256,disjoint, rows:64,zipf or trace:FILE, which has a size and a density of its own."
    ),
]
Dtype = Annotated[str, Option("Type of the values.")]
Seed = Annotated[int, Option("The same seed gives the same input.")]
Driver = Annotated[str, Option("tcp or mpi.")]
Network = Annotated[str | None, Option("Rate of an emulated link per rank, e.g. 1gbit (Linux, root).")]
NoPeers = Annotated[bool, Option("Leave out gloo (tcp) and MPI (mpi).")]
Seconds = Annotated[float, Option("Time to spend on measuring.", min=0.1)]
Json = Annotated[Path | None, Option("Also write the rows to this file.", is_output=True)]
Plot = Annotated[Path | None, Option("Also draw the rows into this file (.png, .svg).", is_output=True)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the options of all commands; the class's docstring is the command's help."""

    def unused(self) -> tuple[str, ...]:
        """Options that have no effect beside the others, and are not recorded."""
        return ()

    def recorded(self) -> dict[str, Any]:
        """The values of the recorded command, without what only holds on this machine."""
        unused = self.unused()
        return {name: getattr(self, name) for name, _, _ in options_of(type(self)) if name not in unused}

    def words(self) -> list[str]:
        """The words that make these options again; outputs and what is not set are left out."""
        arguments, words, values = [], [], self.recorded()
        for name, option, flags in options_of(type(self)):
            value = values.get(name)
            if option.is_output or value is None:
                continue
            if option.by_position:
                arguments.append(_word(value))
            elif isinstance(value, bool):
                if_true, _, if_false = flags[0].partition("/")
                words += [word for word in [if_true if value else if_false] if word]
            else:
                words += [flags[0], _word(value)]
        return [*arguments, *words]


def options_of(kind: type[Options]) -> list[tuple[str, Option, tuple[str, ...]]]:
    """The name, the description and the flags of every option, in order."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for one in fields(kind):
        option: Option = one.metadata.get("option") or get_args(hints[one.name])[1]
        found.append((one.name, option, option.flags or (f"--{one.name.replace('_', '-')}",)))
    return found


def _word(value: Any) -> str:
    """A value as the command line takes it; a file without its folder."""
    if isinstance(value, Path):
        return value.name
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


@dataclass(frozen=True, kw_only=True)
class ProblemOptions(Options):
    """The options that say what is added up."""

    ranks: Ranks = 4
    size: Size = "16M"
    density: DensityText = "0.01"  # as text, because some commands take several
    dtype: Dtype = "float32"
    distribution: Distribution = "uniform"
    seed: Seed = 0

    def unused(self) -> tuple[str, ...]:
        return ("size", "density") if self._is_trace else ()

    def recorded(self) -> dict[str, Any]:
        values = super().recorded()
        if self._is_trace:
            values["distribution"] = f"trace:{Path(self.distribution.removeprefix('trace:')).name}"
        return values

    def cases(self) -> list[Case]:
        """One case for each density; a trace is one case, whose size and density follow from it."""
        if not self._is_trace:
            length = parse_size(self.size)
            densities = parse_numbers(float, self.density)
            return [
                Case(self.ranks, length, density, self.dtype, self.distribution, self.seed)
                for density in densities
            ]
        for name in ("size", "density"):
            if getattr(self, name) != getattr(type(self), name):
                raise InputError(f"a trace has a {name} of its own: leave out --{name}")
        return [trace_case(self.ranks, self.dtype, self.distribution, self.seed)]

    def case(self) -> Case:
        """The one case of a command that takes a single density."""
        cases = self.cases()
        if len(cases) > 1:
            raise InputError(f"the density is {self.density}; this command takes one at a time")
        return cases[0]

    @property
    def _is_trace(self) -> bool:
        return self.distribution.startswith("trace:")


def parse_numbers(kind: Callable[[str], Number], text: str) -> list[Number]:
    """The numbers in ``a,b,c``.

    >>> parse_numbers(int, "2,4"), parse_numbers(float, "1e-3")
    ([2, 4], [0.001])
    """
    numbers = []
    for word in text.split(","):
        try:
            numbers.append(kind(word))
        except ValueError:
            raise InputError(f"{word!r} is not a number") from None
    return numbers
