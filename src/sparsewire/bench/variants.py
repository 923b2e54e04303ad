"""OmniReduce as rows of a benchmark: one algorithm of the table, called in several ways.

omnireduce             every rank also aggregates.  Where non-zeros come in blocks it gets the dense array,
                       which has two dimensions if blocks are the rows of a table, and sums it in place;
                       elsewhere it gets the sparse vector
omnireduce-dedicated   the same, with the ranks of --aggregators, which do nothing else
omnireduce-arrival     as the first, but adds up in the order of arrival
omnireduce-pairs       as the first, but always on the sparse vector
"""

from __future__ import annotations

from sparsewire.algorithms.omnireduce import OmniReduce
from sparsewire.bench.cases import Case, Values

__all__ = [
    "DEDICATED",
    "VARIANTS",
    "as_called",
    "as_given",
    "in_table",
    "script_options",
    "takes_blocks",
]

OMNIREDUCE = "omnireduce"
DEDICATED = "omnireduce-dedicated"
ARRIVAL = "omnireduce-arrival"
PAIRS = "omnireduce-pairs"
VARIANTS = (DEDICATED, ARRIVAL, PAIRS)


def in_table(algorithm: str) -> str:
    """The algorithm's name in the table."""
    return OMNIREDUCE if algorithm in VARIANTS else algorithm


def takes_blocks(algorithm: str, case: Case) -> bool:
    """Whether it is given the dense array, to find the blocks in it that are not zero."""
    return case.layout is not None and in_table(algorithm) == OMNIREDUCE and algorithm != PAIRS


def script_options(algorithm: str, case: Case) -> OmniReduce | None:
    """What the script is told; None if it is not OmniReduce's."""
    if in_table(algorithm) != OMNIREDUCE:
        return None
    block = case.layout.block if case.layout and takes_blocks(algorithm, case) else None
    return OmniReduce(block=block, arrival=algorithm == ARRIVAL)


def as_called(algorithm: str, case: Case) -> str | OmniReduce:
    """What a communicator is told: the name, unless there is more to say than the rows of a table do."""
    options = script_options(algorithm, case)
    rows = case.layout.block if case.layout and case.layout.is_table else None
    return in_table(algorithm) if options in (None, OmniReduce(), OmniReduce(block=rows)) else options


def as_given(dense: Values, case: Case) -> Values:
    """The dense array as whoever takes blocks is given it: a table has two dimensions."""
    return dense.reshape(-1, case.layout.block) if case.layout and case.layout.is_table else dense
