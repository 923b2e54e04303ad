"""Sparse rounds, then dense halving and doubling: a switch from sparse to dense within one algorithm.

    agree      log2(P) tiny rounds: the largest number of entries that any rank has
    sparse     R rounds of recursive doubling: 2**R ranks in a row hold the sum of theirs
    dense      each of them keeps its part of the range; halving among the others, doubling among all

R is the number with the fewest expected bytes if supports are independent: as long as vectors have few
entries, a sparse round sends less than the dense round that it replaces.  With R = log2(P) this is recursive
doubling, with R = 0 the dense baseline; in between it moves fewer bytes than both.  Exact; the same bits on
every rank, because the order of the sums is that of recursive doubling whatever R is.

After the code of SparCML (Renggli et al., SC'19), which switches between sparse and dense rounds; its paper
does not describe this algorithm.  How R is chosen is ours.
"""

from __future__ import annotations

from sparsewire.algorithms.context import PLAIN, Context
from sparsewire.algorithms.dense_halving_doubling import halve_and_double, halving_doubling_rounds
from sparsewire.algorithms.largest import largest, largest_rounds
from sparsewire.algorithms.patterns import folded
from sparsewire.algorithms.recursive_doubling import double, doubling_rounds, folded_cost, taking_in
from sparsewire.cost import Cost, CostFigures, Shape
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector
from sparsewire.work import NOTHING, Work

__all__ = ["cost", "hybrid", "sparse_rounds"]


def hybrid(rank: int, size: int, vec: SparseVector, context: Context = PLAIN) -> Steps[SparseVector]:
    [nnz] = yield from largest(rank, size, [vec.nnz], vec.length)
    shape = Shape(size, vec.length, nnz, vec.dtype.itemsize)
    group = 1 << sparse_rounds(shape)

    def core(position: int, ranks: list[int], vec: SparseVector) -> Steps[SparseVector]:
        vec = yield from double(position, ranks, vec, context.op, group)
        if group == len(ranks):
            return vec
        return (yield from halve_and_double(position, ranks, vec, context.op, group)).smaller()

    return (yield from folded(rank, size, vec, core, context.op.merge))


def sparse_rounds(shape: Shape) -> int:
    """The number of sparse rounds with the fewest bytes.

    Only + - * / are used, which give the same bits on every machine: all ranks must find the same number.
    """
    rounds = shape.size.bit_length() - 1
    density = shape.nnz / max(1, shape.length)
    swapped, fewest, best = 0.0, 0.0, 0  # the first two: bytes that a rank sends for each position
    for done in range(rounds + 1):
        dense = shape.value_bytes * (1 + 1 / 2**done - 2 / 2**rounds) if done < rounds else 0.0
        if done == 0 or swapped + dense <= fewest:
            fewest, best = swapped + dense, done
        swapped += shape.stored_bytes(density, 1)
        density *= 2 - density  # of the union of two independent supports
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
