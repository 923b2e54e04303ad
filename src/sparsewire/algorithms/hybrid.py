"""Sparse rounds, then dense halving and doubling (SparCML's switch from sparse to dense, in one algorithm).

    agree      log2(P) tiny rounds: the largest number of entries that any rank has
    sparse     R rounds of recursive doubling: 2**R ranks in a row hold the sum of theirs
    dense      each of them keeps its part of the range; halving among the others, doubling among all

R is what promises the fewest bytes if supports are independent: a swap of entries saves a halving of dense
values as long as vectors are thin.  With R = log2(P) this is recursive doubling, with R = 0 the dense
baseline; in between it moves fewer bytes than both.  Exact; the same bits on every rank, because the order of
the sums is that of recursive doubling whatever R is.

After: Renggli et al., SparCML, SC'19.
"""

from __future__ import annotations

from sparsewire.algorithms.dense_halving_doubling import halve_and_double, halving_doubling_rounds
from sparsewire.algorithms.largest import largest, largest_rounds
from sparsewire.algorithms.patterns import folded
from sparsewire.algorithms.recursive_doubling import double, doubling_rounds, folded_cost, taking_in
from sparsewire.cost import Cost, CostFigures, Shape
from sparsewire.steps import Steps
from sparsewire.vector import SUM, Reduction, SparseVector
from sparsewire.work import NOTHING, Work

__all__ = ["cost", "hybrid", "sparse_rounds"]


def hybrid(rank: int, size: int, vec: SparseVector, op: Reduction = SUM) -> Steps[SparseVector]:
    [nnz] = yield from largest(rank, size, [vec.nnz])
    shape = Shape(size, vec.length, int(nnz), vec.dtype.itemsize)
    group = 1 << sparse_rounds(shape)

    def core(position: int, ranks: list[int], vec: SparseVector) -> Steps[SparseVector]:
        vec = yield from double(position, ranks, vec, op, group)
        if group == len(ranks):
            return vec
        return (yield from halve_and_double(position, ranks, vec, op, group)).smaller()

    return (yield from folded(rank, size, vec, core, op.merge))


def sparse_rounds(shape: Shape) -> int:
    """The number of sparse rounds with the fewest bytes.

    Only + - * / are used, which give the same bits on every machine: all ranks must find the same number.
    """
    rounds = shape.size.bit_length() - 1
    density = shape.nnz / max(1, shape.length)
    swapped, fewest, best = 0.0, 0.0, 0  # bytes of a rank, for each position of the vector
    for done in range(rounds + 1):
        dense = shape.value_bytes * (1 + 1 / 2**done - 2 / 2**rounds) if done < rounds else 0.0
        if done == 0 or swapped + dense <= fewest:
            fewest, best = swapped + dense, done
        swapped += shape.stored_bytes(density, 1)
        density *= 2 - density  # of the union of two supports that know nothing of each other
    return best


def cost(figures: CostFigures, shape: Shape) -> Cost:
    core, group = 1 << (shape.size.bit_length() - 1), 1 << sparse_rounds(shape)
    rounds, spreading = doubling_rounds(shape, group), NOTHING
    if group < core:
        entries = shape.union(group + min(group, shape.size - core))
        spreading = shape.spreading(entries / group, shape.length / group)
        rounds += halving_doubling_rounds(shape, core, group)
        scans = 1 if shape.is_dense(shape.union(shape.size), shape.length) else 2
        scanning = Work(values=rounds[-1].work.values + scans * shape.length)
        rounds[-1] = rounds[-1]._replace(work=scanning)
    return folded_cost(figures, shape, taking_in(shape, rounds), largest_rounds(shape.size, 1), spreading)
