"""The chooser against decisions done by hand: what is remembered, when ranks ask each other again."""

from dataclasses import replace

import numpy as np
import pytest

from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS, OmniReduce, named
from sparsewire.algorithms.largest import largest
from sparsewire.choosing import choose as choose_module
from sparsewire.choosing.choose import UNSEEN_CALLS, Choice, Chooser, Key, choose, choose_topk, fullness
from sparsewire.coding.values import PRECISIONS
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers import local
from sparsewire.vector import SparseVector

LENGTH = 2**16
DENSE = ("dense_ring", "dense_halving_doubling")
KEY = Key("layer", LENGTH, 4)
GIGABIT = CostFigures(2.0**-14, 2.0**27, 2.0**-15, 2.0**-28, 2.0**-30)


def vector(nnz, length=LENGTH, first=0):
    return SparseVector(length, np.arange(first, first + nnz), np.ones(nnz, np.float32))


def spread(nnz, length=LENGTH):
    """Entries at even distances."""
    return SparseVector(length, np.arange(nnz) * (length // nnz), np.ones(nnz, np.float32))


def dense(length=LENGTH):
    return SparseVector.from_dense(np.ones(length, np.float32))


def make_choosers(size):
    return [Chooser(size, GIGABIT) for _ in range(size)]


def agreements(choosers, key, vectors):
    return [c.agree(key, rank, fullness(vectors[rank], len(choosers))) for rank, c in enumerate(choosers)]


def agree(choosers, key, vectors):
    choices, _ = local.run(agreements(choosers, key, vectors))
    return [choice.algorithm for choice in choices]


def agreed(size=4, nnz=2**10):
    """A chooser, of several that have agreed, in a call whose sum told nothing."""
    choosers = make_choosers(size)
    agree(choosers, KEY, [spread(nnz)] * size)
    choosers[0].saw(KEY, dense())
    choosers[0]._facts[KEY].unseen = 0
    return choosers[0]


def fastest(shape, network=GIGABIT):
    seconds = {name: algorithm.cost(network, shape).seconds for name, algorithm in ALGORITHMS.items()}
    tied = [name for name in seconds if seconds[name] <= 1.05 * min(seconds.values())]
    dense = {name: seconds[name] for name in tied if ALGORITHMS[name].dense}
    return min(dense, key=dense.get) if dense else tied[0]


# -- agreement -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 16])
def test_every_rank_learns_the_largest_of_each_number(size):
    numbers = [[rank, size - rank, 2**53 - 1 if rank == size // 2 else 0] for rank in range(size)]
    results, traffic = local.run([largest(rank, size, numbers[rank]) for rank in range(size)], seed=size)
    assert results == [[size - 1, size, 2**53 - 1]] * size
    assert {rank.messages_sent for rank in traffic} == {(size - 1).bit_length()}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_all_ranks_choose_alike_from_the_fullest_rank(size):
    choosers = make_choosers(size)
    vectors = [spread(1 << rank) for rank in range(size)]
    [name] = set(agree(choosers, KEY, vectors))
    assert name == fastest(Shape(size, LENGTH, 1 << (size - 1)))


def test_an_empty_vector_on_every_rank_can_be_agreed_on():
    choosers = make_choosers(2)
    names = agree(choosers, KEY, [SparseVector.empty(LENGTH)] * 2)
    assert set(names) <= set(ALGORITHMS)


def test_a_vector_without_positions_can_be_agreed_on():
    choosers = make_choosers(2)
    key = Key("empty", 0, 4)
    names = agree(choosers, key, [SparseVector.empty(0)] * 2)
    choosers[0].saw(key, SparseVector.empty(0))
    assert choosers[0].known(key).algorithm == names[0]


def test_skewed_vectors_are_chosen_for_as_skewed():
    choosers = make_choosers(5)
    first = SparseVector(LENGTH, np.arange(0, 2**13, 64), np.ones(2**7, np.float32))
    [name] = set(agree(choosers, KEY, [first] * 5))  # all of them in the first of five ranges
    assert name == fastest(Shape(5, LENGTH, 2**7, skew=5.0, blocks=32))


def test_whole_blocks_are_chosen_for_as_blocks():
    choosers = make_choosers(5)
    choices, _ = local.run(agreements(choosers, KEY, [vector(2**13)] * 5))
    shape = Shape(5, LENGTH, 2**13, skew=5.0, blocks=32)
    assert set(choices) == {Choice("omnireduce", OmniReduce(block=256))}
    assert fastest(shape) == "omnireduce"
    assert fastest(replace(shape, blocks=None)) != "omnireduce"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 100])
def test_a_vector_is_as_full_as_in_its_smaller_form(every, dtype):
    array = np.zeros(1000, dtype)
    array[::every] = 1
    for stored in (SparseVector.from_dense(array), SparseVector.from_dense(array).as_sparse()):
        smaller = stored.smaller()
        counts = [piece.nnz for piece in smaller.split_evenly(3)]
        assert fullness(stored, 3) == (smaller.nnz, max(counts), smaller.count_blocks(256))


# -- what is asked for ---------------------------------------------------------------------------


def test_in_rank_order_only_algorithms_that_add_up_so_are_chosen():
    for nnz in (1, 2**8, 2**12, LENGTH):
        for size in (1, 2, 5, 16):
            shape = Shape(size, LENGTH, nnz, in_rank_order=True)
            chosen = choose(GIGABIT, shape).algorithm
            assert ALGORITHMS[chosen].in_rank_order
            able = [name for name, row in ALGORITHMS.items() if row.in_rank_order]
            best = min(ALGORITHMS[name].cost(GIGABIT, shape).seconds for name in able)
            assert ALGORITHMS[chosen].cost(GIGABIT, shape).seconds <= 1.05 * best


@pytest.mark.parametrize("size", [1, 2, 5, 16, 256, 1024])
@pytest.mark.parametrize("k", [1, 2**8, LENGTH])
def test_the_sum_of_the_largest_entries_is_as_good_as_the_lowest_predicted_time(k, size):
    shape = Shape(size, LENGTH, k)
    seconds = {name: row.cost(GIGABIT, shape).seconds for name, row in TOPK_ALGORITHMS.items()}
    assert seconds[choose_topk(GIGABIT, shape)] <= 1.05 * min(seconds.values())


def test_few_ranks_take_ok_topk_and_many_take_few_messages():
    ethernet = CostFigures(overhead=60e-6, seconds_per_entry=6e-9, seconds_per_value=0.4e-9)
    chosen = [choose_topk(ethernet, Shape(size, 2**22, 2**22 // 100)) for size in (2, 4, 64, 256)]
    assert chosen == ["ok_topk", "ok_topk", "spardl", "spardl"]


def test_blocks_are_chosen_in_rank_order_too_but_not_with_a_precision():
    shape = Shape(5, LENGTH, 2**13, skew=5.0, blocks=32, in_rank_order=True)
    assert choose(GIGABIT, shape) == Choice("omnireduce", OmniReduce(block=256))
    rounding = choose(GIGABIT, replace(shape, precision=PRECISIONS["qsgd4"]))
    assert ALGORITHMS[rounding.algorithm].supports_precision


def test_options_that_a_row_is_tuned_to_are_its_own_and_name_it():
    shape = Shape(4, LENGTH, 2**10, blocks=8)
    tuned = {name: row.tune(GIGABIT, shape) for name, row in ALGORITHMS.items() if row.tune}
    assert tuned
    for name, options in tuned.items():
        assert isinstance(options, ALGORITHMS[name].options)
        assert named(options) == (name, options)


# -- memory --------------------------------------------------------------------------------------


def test_nothing_is_known_before_the_ranks_have_agreed():
    assert Chooser(4, GIGABIT).known(KEY) is None


def test_a_promise_needs_no_agreement():
    for key in (KEY, KEY._replace(name=None)):
        assert Chooser(4, GIGABIT).known(key, nnz=2**10).algorithm == fastest(Shape(4, LENGTH, 2**10))


def test_of_calls_without_a_name_nothing_is_remembered():
    choosers, key = make_choosers(2), KEY._replace(name=None)
    [name] = set(agree(choosers, key, [spread(2**10)] * 2))
    assert name == fastest(Shape(2, LENGTH, 2**10))
    choosers[0].saw(key, vector(2**10))
    assert choosers[0].known(key) is None
    assert choosers[0].known(key, nnz=8).algorithm == fastest(Shape(2, LENGTH, 8))


def test_what_was_agreed_on_is_known():
    assert agreed().known(KEY).algorithm == fastest(Shape(4, LENGTH, 2**10))


@pytest.mark.parametrize(
    "other", [KEY._replace(name="other"), KEY._replace(length=99), Key("layer", LENGTH, 8)]
)
def test_another_key_is_not_known(other):
    assert agreed().known(other) is None


def test_the_seen_sum_is_chosen_from():
    chooser = agreed(nnz=2**13)
    chooser.saw(KEY, vector(2**13))  # identical supports: the sum has no more entries than each
    assert chooser.known(KEY).algorithm == fastest(Shape(4, LENGTH, 2**13, union_nnz=2**13))


def test_entries_are_taken_to_move_with_the_sum():
    chooser = agreed(nnz=2**13)
    chooser.saw(KEY, vector(2**14))
    chooser.saw(KEY, vector(2**13))
    assert chooser.known(KEY).algorithm == fastest(Shape(4, LENGTH, 2**12, union_nnz=2**13))


@pytest.mark.parametrize(
    ("later", "knows"), [(2**9, True), (2**9 - 1, False), (2**11, True), (2**11 + 1, False)]
)
def test_a_sum_that_moved_too_far_is_not_trusted(later, knows):
    chooser = agreed(nnz=2**8)
    chooser.saw(KEY, vector(2**10))
    chooser.saw(KEY, vector(later))
    assert (chooser.known(KEY) is not None) == knows


def test_entries_that_appear_where_there_were_none_are_agreed_on():
    chooser = agreed(nnz=1)
    chooser.saw(KEY, SparseVector.empty(LENGTH))
    assert chooser.known(KEY) is not None
    chooser.saw(KEY, vector(5))
    assert chooser.known(KEY) is None


def test_after_dense_sums_the_ranks_agree_again_now_and_then():
    chooser = agreed(nnz=LENGTH // 2)
    for _ in range(UNSEEN_CALLS):
        assert chooser.known(KEY) is not None
        chooser.saw(KEY, dense())
    assert chooser.known(KEY) is None


def test_a_sum_with_entries_starts_the_count_of_dense_ones_again():
    chooser = agreed()
    for total in [dense()] * (UNSEEN_CALLS - 1) + [vector(2**10), dense()]:
        chooser.saw(KEY, total)
    assert chooser.known(KEY) is not None


def test_a_promise_replaces_asking_again():
    chooser = agreed(nnz=LENGTH // 2)
    for _ in range(3 * UNSEEN_CALLS):
        chooser.saw(KEY, dense())
    assert chooser.known(KEY) is None
    assert chooser.known(KEY, nnz=8).algorithm == fastest(Shape(4, LENGTH, 8))


def test_a_promise_of_more_entries_than_positions_is_everything():
    assert agreed().known(KEY, nnz=10 * LENGTH).algorithm == fastest(Shape(4, LENGTH, LENGTH))


def test_a_call_that_fails_leaves_no_trace():
    """Some ranks of a failed call have agreed, some have not, and one refused it and knows no key."""
    one, other = make_choosers(2)
    agree([one, other], KEY, [spread(2**10)] * 2)
    one.failed(KEY)  # and the other may end before it learns of the failure
    assert one.known(KEY) is None
    assert other.known(KEY) is None


def test_a_promise_of_a_call_that_fails_leaves_no_trace():
    chooser = Chooser(4, GIGABIT)
    chooser.known(KEY, nnz=8)
    chooser.failed(KEY)
    chooser.saw(KEY, vector(3))
    assert chooser.known(KEY) is None


def test_what_was_known_before_a_failed_call_is_known_after_it():
    chooser = agreed(nnz=2**10)
    chooser.saw(KEY, vector(2**10))
    chooser.saw(KEY, vector(2**13))
    assert chooser.known(KEY) is None  # outdated
    chooser.known(KEY, nnz=8)
    chooser.failed(KEY)
    assert chooser.known(KEY) is None
    assert chooser.known(KEY, nnz=8).algorithm == fastest(Shape(4, LENGTH, 8))


def test_a_key_is_forgotten_by_the_number_of_calls_since_its_last_one(monkeypatch):
    monkeypatch.setattr(choose_module, "FORGOTTEN_CALLS", 4)
    chooser = Chooser(1, GIGABIT)
    keys = [Key("layer", length, 4) for length in range(10, 16)]
    for place, key in enumerate(keys):
        agree([chooser], key, [vector(1, key.length)])
        chooser.saw(key, vector(1, key.length), place)
    assert [chooser.known(key, 6) is not None for key in keys] == [False] * 2 + [True] * 4


def test_memory_is_bounded_and_ranks_whose_calls_end_in_another_order_forget_alike(monkeypatch):
    monkeypatch.setattr(choose_module, "FORGOTTEN_CALLS", 8)
    rng = np.random.default_rng(0)
    choosers = make_choosers(2)
    for first in range(0, 400, 4):
        keys = [Key(f"layer {rng.integers(12)}", LENGTH, 4) for _ in range(4)]
        calls = {key: place for place, key in enumerate(keys, first)}
        for key, place in calls.items():
            names = {chooser.known(key, place) is None for chooser in choosers}
            assert len(names) == 1
            agree(choosers, key, [spread(8)] * 2)
        for chooser in choosers:
            for key in rng.permutation(len(calls)):
                chooser.saw([*calls][key], vector(8), [*calls.values()][key])
            if rng.random() < 0.5:
                chooser.tidy(first + 4)
    for chooser in choosers:
        chooser.tidy(400)
        assert len(chooser._facts) <= 8 + 4
        assert not chooser._learnt


def test_choosers_that_see_the_same_choose_the_same():
    rng = np.random.default_rng(0)
    choosers = make_choosers(3)
    for _ in range(200):
        nnz = int(2 ** rng.uniform(0, 14))
        names = {chooser.known(KEY) for chooser in choosers}
        if names == {None}:
            names = set(agree(choosers, KEY, [spread(nnz), spread(1), spread(1)]))
        assert len(names) == 1
        total = dense() if rng.random() < 0.5 else vector(nnz)
        for chooser in choosers:
            chooser.saw(KEY, total)


# -- ties ----------------------------------------------------------------------------------------


def test_a_dense_algorithm_wins_a_tie():
    free = CostFigures(latency=0.0, bandwidth=2.0**27)  # bytes alone count
    assert ALGORITHMS[choose(free, Shape(2, 2**16, 2**16)).algorithm].dense


def test_of_two_dense_algorithms_in_a_tie_the_first_of_the_table_wins():
    network = CostFigures(latency=2.0**-16, bandwidth=2.0**27, overhead=2.0**-16)
    shape = Shape(4, 2**20, 2**20)  # the ring has more messages
    ring, halving = (ALGORITHMS[name].cost(network, shape).seconds for name in DENSE)
    assert halving < ring < 1.05 * halving
    assert choose(network, shape).algorithm == "dense_ring"


def test_the_first_of_the_table_wins_a_tie_of_sparse_algorithms():
    slow_start = CostFigures(latency=1.0, bandwidth=2.0**40)  # rounds alone count
    one_round = [
        name
        for name, algorithm in ALGORITHMS.items()
        if algorithm.cost(slow_start, Shape(2, 2**20, 8)).rounds == 1
    ]
    assert choose(slow_start, Shape(2, 2**20, 8)).algorithm == one_round[0]


def test_one_rank_alone_keeps_its_entries():
    assert not ALGORITHMS[choose(GIGABIT, Shape(1, 1000, 10)).algorithm].dense
