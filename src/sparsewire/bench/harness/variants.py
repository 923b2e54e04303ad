"""Our algorithms as rows of a benchmark: those of the table, some of them called in several ways.

omnireduce             every rank also aggregates.  Where non-zeros come in blocks it gets the dense array,
                       which has two dimensions if blocks are the rows of a table, and sums it in place.
                       Elsewhere it gets the sparse vector
omnireduce-dedicated   the same, with the ranks of --aggregators, which do nothing else
omnireduce-arrival     as the first, but adds up in the order of arrival
omnireduce-pairs       as the first, but always on the sparse vector

This is the only file of the benchmarks that knows what is in a row of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire.algorithms import ALGORITHMS, Context, OmniReduce
from sparsewire.bench.harness.problem import Case, Values
from sparsewire.coding.rounding import PrecisionRounding
from sparsewire.coding.values import PRECISIONS, precision_of
from sparsewire.cost import CostFigures, Shape
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector, value_dtype


@dataclass(frozen=True)
class Variant:
    """A way to call an algorithm of the table."""

    algorithm: str
    takes_blocks: bool = True  # gets the dense array where non-zeros come in blocks
    arrival: bool = False  # adds up in the order of arrival
    dedicated: bool = False  # needs ranks that only aggregate


VARIANTS = {
    "omnireduce": Variant("omnireduce"),
    "omnireduce-dedicated": Variant("omnireduce", dedicated=True),
    "omnireduce-arrival": Variant("omnireduce", arrival=True),
    "omnireduce-pairs": Variant("omnireduce", takes_blocks=False),
}
[DEDICATED] = [name for name, variant in VARIANTS.items() if variant.dedicated]
# Those that are no rows of the table.
FURTHER = [name for name in VARIANTS if name not in ALGORITHMS]


def in_table(name: str) -> str:
    """The algorithm's name in the table."""
    return VARIANTS[name].algorithm if name in VARIANTS else name


def is_dense(name: str) -> bool:
    """Whether the algorithm's cost does not depend on zeros; false for `auto` and for peers."""
    return name in ALGORITHMS and ALGORITHMS[name].dense


def supports_precision(name: str) -> bool:
    """Whether the algorithm can round what it sends."""
    return ALGORITHMS[in_table(name)].supports_precision


def takes_blocks(name: str, case: Case) -> bool:
    """Whether the algorithm is given the dense array, to find the blocks in it that are not zero."""
    return case.layout is not None and name in VARIANTS and VARIANTS[name].takes_blocks


def takes_dense(name: str, case: Case, vector: SparseVector) -> bool:
    """Whether the algorithm is given the vector as a dense array; `auto` gets whichever is smaller."""
    if name == "auto":
        return vector.length * vector.dtype.itemsize <= vector.nbytes
    return is_dense(name) or takes_blocks(name, case)


def script_options(name: str, case: Case) -> OmniReduce | None:
    """The options of the script; None for an algorithm without any."""
    if name not in VARIANTS:
        return None
    block = case.layout.block if case.layout and takes_blocks(name, case) else None
    return OmniReduce(block=block, arrival=VARIANTS[name].arrival)


def as_called(name: str, case: Case) -> str | OmniReduce:
    """What a communicator is given: the name, unless there are options that it could not find out itself."""
    options = script_options(name, case)
    rows = case.layout.block if case.layout and case.layout.is_table else None
    return in_table(name) if options in (None, OmniReduce(), OmniReduce(block=rows)) else options


def as_given(dense: Values, case: Case) -> Values:
    """The dense array as an algorithm that takes blocks is given it: a table has two dimensions."""
    return dense.reshape(-1, case.layout.block) if case.layout and case.layout.is_table else dense


def script(
    name: str, precision: str, case: Case, rank: int, vector: SparseVector, figures: CostFigures
) -> Steps[SparseVector]:
    """A rank's script, for drivers that run all ranks in one process."""
    shape = _shape(name, precision, case, figures)
    context = Context(options=script_options(name, case), figures=figures, shape=shape)
    if precision in PRECISIONS and (rounds_to := precision_of(precision, vector.dtype, "sum")):
        context = context._replace(rounding=PrecisionRounding(rounds_to, rank, number=1))
    return ALGORITHMS[in_table(name)].run(rank, case.ranks, vector, context)


def predicted_seconds(name: str, precision: str, case: Case, figures: CostFigures) -> float:
    """What the algorithm's cost function says."""
    shape = _shape(name, precision, case, figures)
    return ALGORITHMS[in_table(name)].cost(figures, shape).seconds


def _shape(name: str, precision: str, case: Case, figures: CostFigures) -> Shape:
    return Shape(
        case.ranks,
        case.length,
        case.length if is_dense(name) else case.nnz,  # dense algorithms are given dense vectors
        value_dtype(case.dtype).itemsize,
        case.overlap,
        precision=PRECISIONS.get(precision),
        index_price=figures.index_price,
    )
