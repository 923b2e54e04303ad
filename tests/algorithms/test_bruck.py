"""Bruck's allgather: everybody's part on every rank, in log2 P messages; and when it is taken."""

from functools import partial

import numpy as np
import pytest

from sparsewire.algorithms import ALGORITHMS, Context
from sparsewire.algorithms.bruck import bruck, gather, is_faster
from sparsewire.algorithms.bundles import Entries, Lists, Rows
from sparsewire.choosing.calibration import ASSUMED
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers import local
from sparsewire.errors import WireError
from sparsewire.expected import Expected, Numbers, Pieces, like
from sparsewire.testing import run_local, same_bits
from sparsewire.vector import SparseVector
from strategies import EDGE_SHAPES, SIZES, in_one_test

INT64 = np.dtype("int64")
DEAR = CostFigures(overhead=1.0)  # messages are so dear that every gather of four ranks takes the tree


def numbers(rank):
    """As many numbers as the rank says, none of them twice in all ranks."""
    return SparseVector.from_dense(100 * rank + np.arange(rank % 5))


def piece_of(rank, cuts):
    """Every second position of the rank's range."""
    indices = np.arange(cuts[rank], cuts[rank + 1], 2)
    whole = SparseVector(cuts[-1], indices, 1.0 + indices)
    return whole.range(cuts[rank], cuts[rank + 1])


def uneven_cuts(size):
    """Ranges of 0, 1, 2, ... positions."""
    return [rank * (rank - 1) // 2 for rank in range(size + 1)]


def parts_and_bundle(kind, size):
    cuts = uneven_cuts(size)
    pieces = [piece_of(rank, cuts) for rank in range(size)]
    if kind == "pieces":
        return pieces, Lists([like(piece) for piece in pieces])
    if kind == "lists":
        parts = [pieces[: 1 + rank % 3] for rank in range(size)]
        return parts, Lists([Pieces([like(piece) for piece in part]) for part in parts])
    if kind == "entries":
        return pieces, Entries(cuts[-1], cuts, [piece.nnz for piece in pieces], pieces[0].dtype)
    return [numbers(rank) for rank in range(size)], Rows(Expected(dtype=INT64, is_dense=True), 4, INT64)


def flat(part):
    return part if isinstance(part, list) else [part]


@pytest.mark.parametrize("kind", ["pieces", "lists", "entries", "numbers"])
@pytest.mark.parametrize("size", [*SIZES, 100])
def test_every_rank_gets_every_part_in_log_p_messages(size, kind):
    parts, bundle = parts_and_bundle(kind, size)
    results, traffic = local.run([bruck(rank, size, part, bundle) for rank, part in enumerate(parts)], size)
    for gathered in results:
        assert len(gathered) == size
        for got, part in zip(gathered, parts, strict=True):
            assert isinstance(got, list) == isinstance(part, list)
            assert all(same_bits(a, b) for a, b in zip(flat(got), flat(part), strict=True))
    assert {t.messages_sent for t in traffic} == {(size - 1).bit_length()}


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_sends_each_others_part_once(size):
    part = SparseVector.from_dense(np.ones(1000))
    bundle = Lists([like(part)] * size)
    _, tree = local.run([bruck(rank, size, part, bundle) for rank in range(size)])
    _, direct = local.run(
        [gather(rank, size, part, bundle, CostFigures(), lambda count: 8000 * count) for rank in range(size)]
    )
    assert [t.bytes_sent for t in tree] == [t.bytes_sent for t in direct]
    assert {t.messages_sent for t in direct} == {size - 1}


@pytest.mark.parametrize("name", ["allgather_sum", "split_allgather", "balanced"])
@in_one_test(size=[4, 7], shape=EDGE_SHAPES)
def test_sums_have_the_same_bits_along_the_tree_and_by_direct_messages(name, size, shape):
    inputs = EDGE_SHAPES[shape](size, "float32")
    (direct, sent), (tree, sent_along_tree) = (
        run_local(partial(ALGORITHMS[name].run, context=Context(figures=figures)), inputs)
        for figures in (CostFigures(), DEAR)
    )
    assert all(same_bits(direct[0], result) for result in [*direct, *tree])
    assert sent_along_tree[0].messages_sent < sent[0].messages_sent


# -- the choice ----------------------------------------------------------------------------------


def one_percent(size, length=2**24):
    """The bytes of an owner's sum, of vectors with one per cent of non-zeros."""
    shape = Shape(size, length, length // 100)
    return lambda owners: owners * shape.frame_bytes(shape.union(size) / size, length / size)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("network", [network for network in ASSUMED if network[0] != "local"])
def test_large_pieces_of_few_ranks_go_by_direct_messages(network, size):
    assert not is_faster(ASSUMED[network], size, one_percent(size))


@pytest.mark.parametrize("size", [16, 64, 1024])
@pytest.mark.parametrize("network", [("tcp", True), ("tcp", False), ("mpi", True)])
def test_small_pieces_of_many_ranks_go_along_the_tree(network, size):
    assert is_faster(ASSUMED[network], size, lambda count: 400 * count)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 64, 1024])
def test_without_figures_all_messages_are_direct(size):
    assert not is_faster(CostFigures(), size, lambda count: 400 * count)


# -- what does not belong to the call ------------------------------------------------------------


@pytest.mark.parametrize("count", [-1, 5, 2**40])
def test_a_row_that_tells_an_impossible_count_is_refused(count):
    rows = Rows(Expected(dtype=INT64, is_dense=True), 4, INT64)
    with pytest.raises(WireError, match=r"^rank 7 tells"):
        rows.unpack(SparseVector.from_dense(np.array([0, 0, 0, 0, 0, count, 1, 2, 3, 4])), [6, 7])


def test_numbers_of_a_row_that_cannot_be_are_refused_in_the_name_of_their_rank():
    rows = Rows(Numbers(2, INT64, largest=9), 2, INT64)
    with pytest.raises(WireError, match=r"^rank 0 sent numbers"):
        rows.unpack(SparseVector.from_dense(np.array([2, 1, 9, 2, 10, 0])), [6, 0])


def test_a_run_of_ranges_has_at_most_the_entries_of_its_ranks():
    bundle = Entries(8, [0, 4, 8], [1, 2], np.dtype("float64"))
    full = SparseVector(8, range(8), np.ones(8))
    bundle.expected([0, 1]).check(3, [full.largest(3)])
    with pytest.raises(WireError, match=r"^rank 3 sent .* at most 3 entries"):
        bundle.expected([0, 1]).check(3, [full.largest(4)])
