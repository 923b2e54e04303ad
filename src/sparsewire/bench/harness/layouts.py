"""Distributions whose non-zeros come in whole blocks, as ``--distribution`` names them.

blocks:256             blocks of 256 positions, any of them equally likely, independently on each rank
blocks:256,identical   the same blocks on every rank
blocks:256,disjoint    no block on two ranks
rows:64,zipf           rows of 64 positions of a table, touched by words of a text: row i by a share of
                       1 / (i + 1)^1.1.  Tables are sorted by frequency, so the first rows are the hot ones
trace:FILE             rows that a real text touched; see ``trace_file``

The density is the share of blocks that a rank has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sparsewire.bench.harness import draws
from sparsewire.bench.harness.draws import Indices
from sparsewire.bench.harness.trace_file import Trace, read_trace
from sparsewire.errors import InputError

if TYPE_CHECKING:
    from sparsewire.bench.harness.problem import Case

EXAMPLES = ("blocks:256", "blocks:256,identical", "blocks:256,disjoint", "rows:64,zipf", "trace:FILE")
OVERLAPS = ("identical", "disjoint")
EXPONENT = 1.1  # of English text and of source code, approximately


class Layout(Protocol):
    """Where the blocks of a rank are."""

    @property
    def is_table(self) -> bool:
        """Whether blocks are the rows of a table, which has two dimensions."""

    @property
    def name(self) -> str:
        """The layout as ``--distribution`` has it, without the folder of a file."""

    @property
    def block(self) -> int:
        """Positions of a block; the last one may have fewer."""

    @property
    def overlap(self) -> str:
        """How the ranks' supports overlap, as a name of ``Shape.overlap``."""

    def check(self, case: Case) -> None:
        """Raise InputError, with the remedy, if the case is impossible."""

    def touched(self, case: Case, rank: int, chance: np.random.Generator) -> Indices:
        """The numbers of the blocks in which a rank has entries."""


@dataclass(frozen=True)
class Blocks:
    """Blocks at any place of the vector."""

    is_table = False

    block: int
    overlap: str = "uniform"

    @property
    def name(self) -> str:
        return f"blocks:{self.block}" + (f",{self.overlap}" if self.overlap in OVERLAPS else "")

    def check(self, case: Case) -> None:
        if self.overlap == "disjoint" and _count(case) > case.blocks // case.ranks:
            raise InputError(
                f"{_count(case)} of {case.blocks} blocks do not fit {case.ranks} times without overlap; "
                f"the density must be at most 1/{case.ranks}"
            )

    def touched(self, case: Case, rank: int, chance: np.random.Generator) -> Indices:
        if self.overlap == "disjoint":
            return draws.disjoint(chance, case.blocks, _count(case), rank, case.ranks)
        if self.overlap == "identical":
            chance = case.common_chance()
        return draws.uniform(chance, case.blocks, _count(case))


@dataclass(frozen=True)
class ZipfRows:
    """Rows of a table that a text touches, by Zipf's law."""

    is_table = True
    overlap = "uniform"

    block: int

    @property
    def name(self) -> str:
        return f"rows:{self.block},zipf"

    def check(self, case: Case) -> None:
        if case.length % self.block:
            below = case.length // self.block * self.block
            raise InputError(
                f"the size is {case.length}, which is no number of whole rows of {self.block}; "
                f"{below + self.block} is"
            )

    def touched(self, case: Case, rank: int, chance: np.random.Generator) -> Indices:
        return draws.weighted(chance, np.arange(1.0, case.blocks + 1) ** EXPONENT, _count(case))


@dataclass(frozen=True)
class TraceRows:
    """Rows that a real text touched; the seed is the number of the step."""

    is_table = True
    overlap = "uniform"

    trace: Trace

    @property
    def name(self) -> str:
        return f"trace:{self.trace.path.name}"

    @property
    def block(self) -> int:
        return self.trace.row

    def check(self, case: Case) -> None:
        self.trace.check(case.ranks, case.seed)
        if case.length != self.trace.length:
            raise InputError(
                f"the size is {case.length}, and {self.trace} has {self.trace.length} positions: "
                "leave out --size"
            )

    def touched(self, case: Case, rank: int, chance: np.random.Generator) -> Indices:
        return self.trace.touched(case.seed, rank)


def parse_layout(text: str) -> Layout:
    """The layout of that name.

    >>> parse_layout("blocks:256,identical"), parse_layout("rows:64,zipf")
    (Blocks(block=256, overlap='identical'), ZipfRows(block=64))
    """
    kind, _, rest = text.partition(":")
    if kind == "trace" and rest:
        return TraceRows(read_trace(Path(rest)))
    match = re.fullmatch(r"(\d+)(?:,(\w+))?", rest)
    if match and kind == "blocks" and match[2] in (None, *OVERLAPS):
        return Blocks(_positions(text, match[1]), match[2] or "uniform")
    if match and kind == "rows" and match[2] == "zipf":
        return ZipfRows(_positions(text, match[1]))
    raise InputError(f"distribution {text!r} is not understood; write for example {', '.join(EXAMPLES)}")


def _positions(text: str, digits: str) -> int:
    if int(digits) < 1:
        raise InputError(f"distribution {text!r}: a block needs at least one position")
    return int(digits)


def _count(case: Case) -> int:
    """The number of blocks in which a rank has entries."""
    return max(1, round(case.blocks * case.density))
