"""The matrix: every algorithm x number of ranks x dtype x edge shape, against a dense oracle."""

from functools import partial, reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsewire.algorithms import ALGORITHMS, Context
from sparsewire.choosing.choose import Chooser, Key, choose, fullness
from sparsewire.cost import CostFigures, Shape
from sparsewire.reduction import MAX, MIN, SUM, concat
from sparsewire.testing import ORACLES, dense, run_local, same_bits
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype
from strategies import (
    EDGE_SHAPES,
    EPSILON,
    FLOATS,
    LONG_SHAPES,
    SIZES,
    SPECIAL,
    contribution,
    entries,
    in_one_test,
    rank_vectors,
    read_only,
)

SPARSE = [name for name, algorithm in ALGORITHMS.items() if not algorithm.dense]
SEEDS = st.integers(0, 2**32)
more = settings(max_examples=2 * settings.default.max_examples)  # where the dtype is drawn, too
ORDINARY = CostFigures(latency=50e-6, bandwidth=125e6, overhead=30e-6, seconds_per_entry=5e-9)
# Who sends to whom depends on the number of ranks, when a piece is dense on the bytes of a value, and how
# values are added on the dtype.  So every number of ranks meets a dtype of 2, 4 and 8 bytes, and the other
# dtypes a few numbers of ranks.  The largest groups take longer than all others together, and meet two.
DTYPES = {
    size: VALUE_DTYPES if size in (2, 3, 8) else ("float64", "bfloat16", "float32")[: 3 if size < 16 else 2]
    for size in SIZES
}


def run_twice(name, inputs, seeds=(0, 1), op=SUM):
    """The result, after checking what holds for any input: all ranks and both runs have the same bits."""
    inputs = [read_only(vector) for vector in inputs]
    before = [vector.values.tobytes() for vector in inputs]
    run = partial(ALGORITHMS[name].run, context=Context(op))
    runs = [run_local(run, inputs, seed) for seed in seeds]
    results = [result for results, _ in runs for result in results]
    first = results[0]
    assert all(same_bits(first, result) for result in results), (
        f"{name} of {first.dtype}: ranks or runs differ"
    )
    assert runs[0][1] == runs[1][1], f"{name} of {first.dtype}: the second run moved something else"
    assert [vector.values.tobytes() for vector in inputs] == before
    assert_canonical(first, inputs[0])
    return first


def assert_canonical(result, like):
    assert (result.length, result.start, result.stop) == (like.length, 0, like.length)
    assert result.dtype == like.dtype
    if result.is_dense:
        assert len(result.values) == result.length
    else:
        assert len(result.values) == len(result.indices)
        assert result.indices.dtype == (np.uint32 if result.length <= 2**32 else np.uint64)
        indices = result.indices.tolist()
        assert indices == sorted(set(indices))
        assert not indices or indices[-1] < result.length


def assert_sum(name, inputs, result, op=SUM):
    expected = ORACLES[name](inputs, op.name)
    wrong = np.flatnonzero(dense(result) != expected)
    assert len(wrong) == 0, (
        f"{name} of {result.dtype}: at {wrong}: {dense(result)[wrong]} instead of {expected[wrong]}"
    )


def test_oracles_have_the_keys_of_the_table():
    assert list(ORACLES) == list(ALGORITHMS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ALGORITHMS)
@in_one_test(shape=EDGE_SHAPES)
def test_every_rank_gets_what_the_oracle_says(name, size, shape):
    for dtype in DTYPES[size]:
        if size == max(SIZES) and dtype != "float64" and not shape.startswith("turns_dense"):
            continue  # what is dense, and when, is all that the dtype decides here
        inputs = EDGE_SHAPES[shape](size, dtype)
        assert_sum(name, inputs, run_twice(name, inputs))


@pytest.mark.parametrize("name", SPARSE)
@in_one_test(size=[1, 2, 3, 5, 8], dtype=VALUE_DTYPES, shape=LONG_SHAPES)
def test_long_vectors_are_summed_without_memory_of_their_length(name, size, dtype, shape):
    inputs = LONG_SHAPES[shape](size, dtype)
    result = run_twice(name, inputs)
    expected = {}
    for rank, vector in enumerate(inputs):
        for index in vector.indices.tolist():
            expected[index] = expected.get(index, 0) + contribution(rank, size, dtype)
    got = dict(zip(result.indices.tolist(), result.values.astype(np.float64).tolist(), strict=True))
    assert got == expected


@pytest.mark.parametrize("name", ALGORITHMS)
@more
@given(data=st.data(), dtype=st.sampled_from(VALUE_DTYPES))
def test_sum_of_exact_data_is_exact_in_any_delivery_order(name, dtype, data):
    numbers = st.integers(-8, 8)
    inputs = data.draw(rank_vectors(dtype, elements=numbers))
    result = run_twice(name, inputs, (data.draw(SEEDS), data.draw(SEEDS)))
    assert_sum(name, inputs, result)


@pytest.mark.parametrize("name", ALGORITHMS)
@more
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_sum_of_floats_has_the_error_of_its_additions_at_most(name, dtype, data):
    inputs = data.draw(rank_vectors(dtype))
    result = run_twice(name, inputs, (data.draw(SEEDS), data.draw(SEEDS)))
    magnitude = ORACLES[name]([vector.with_values(np.abs(vector.values)) for vector in inputs])
    error = np.abs(dense(result) - ORACLES[name](inputs))
    assert (error <= (len(inputs) - 1) * EPSILON[dtype] * magnitude).all()


@pytest.mark.parametrize("name", ALGORITHMS)
@more
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_nan_and_infinity_travel_like_any_value(name, dtype, data):
    inputs = data.draw(rank_vectors(dtype, elements=SPECIAL))
    result = run_twice(name, inputs)
    assert np.array_equal(dense(result), ORACLES[name](inputs), equal_nan=True)


@pytest.mark.parametrize("name", ALGORITHMS)
@in_one_test(dtype=FLOATS, size=[1, 2, 3, 8])
def test_denormal_numbers_are_not_flushed_to_zero(name, dtype, size):
    tiny = np.array([1], np.uint64 if dtype == "float64" else np.uint32 if dtype == "float32" else np.uint16)
    inputs = [SparseVector(30, [size + rank], tiny.view(value_dtype(dtype))) for rank in range(size)]
    result = run_twice(name, inputs)
    assert np.count_nonzero(dense(result)) == size
    assert_sum(name, inputs, result)


@pytest.mark.parametrize("name", ALGORITHMS)
@in_one_test(dtype=["float32", "float64", "float16"], size=[1, 2, 3, 8])
def test_sum_that_overflows_is_infinite_and_no_warning(name, dtype, size):
    inputs = [SparseVector(5, [3], np.full(1, np.finfo(dtype).max, dtype)) for _ in range(size)]
    result = run_twice(name, inputs)
    assert dense(result)[3] == (np.inf if size > 1 else np.finfo(dtype).max)


@pytest.mark.parametrize("name", ALGORITHMS)
@in_one_test(dtype=["int32", "int64"], stored=["entries", "dense"], size=[2, 3, 8])
def test_integers_wrap_around_like_numpy(name, dtype, stored, size):
    top = np.iinfo(dtype).max
    inputs = [SparseVector(3, [1, 2], np.array([top, top - rank], dtype)) for rank in range(size)]
    inputs = [vector.as_dense() for vector in inputs] if stored == "dense" else inputs
    result = run_twice(name, inputs)
    expected = [0, size * top, size * top - sum(range(size))]
    modulus = 2 ** (8 * np.dtype(dtype).itemsize)
    assert [(int(got) - want) % modulus for got, want in zip(dense(result), expected, strict=True)] == [0] * 3


@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if row.in_rank_order])
@in_one_test(dtype=["float32", "float64"], density=[0.01, 0.3, 1.0], size=[2, 3, 8, 16])
def test_sum_has_the_bits_of_adding_up_in_rank_order(name, dtype, density, size):
    rng = np.random.default_rng(size)
    arrays = [np.where(rng.random(300) < density, rng.normal(size=300), 0).astype(dtype) for _ in range(size)]
    result = run_twice(name, [SparseVector.from_dense(array).smaller() for array in arrays])
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected += array
    assert np.array_equal(dense(result), expected)


def random_arrays(size, density, dtype):
    rng = np.random.default_rng(size)
    return [np.where(rng.random(300) < density, rng.normal(size=300), 0).astype(dtype) for _ in range(size)]


@pytest.mark.parametrize("name", ["recursive_doubling", "hybrid", "dense_halving_doubling"])
@in_one_test(density=[0.01, 0.1, 0.3, 1.0], size=[2, 4, 16])
def test_sum_has_the_bits_of_adding_up_neighbours_first(name, density, size):
    arrays = random_arrays(size, density, "float32")
    result = run_twice(name, [SparseVector.from_dense(array).smaller() for array in arrays])
    while len(arrays) > 1:
        arrays = [left + right for left, right in zip(arrays[::2], arrays[1::2], strict=True)]
    assert np.array_equal(dense(result), arrays[0])


@pytest.mark.parametrize("name", ["sparse_ring", "dense_ring"])
@in_one_test(density=[0.01, 0.3, 1.0], size=[2, 3, 8])
def test_sum_has_the_bits_of_adding_up_around_the_ring(name, density, size):
    arrays = random_arrays(size, density, "float32")
    result = run_twice(name, [SparseVector.from_dense(array).smaller() for array in arrays])
    for first, where in enumerate(np.array_split(np.arange(300), size)):
        in_turn = [arrays[(first + step) % size][where] for step in range(size)]
        assert np.array_equal(dense(result)[where], reduce(np.add, in_turn))


# -- maximum and minimum -------------------------------------------------------------------------


def signed(inputs):
    """The same supports with values of both signs, which differ between ranks and between indices."""
    return [
        vector.with_values((vector.values * (-1) ** (np.arange(vector.nnz) + r)).astype(vector.dtype))
        for r, vector in enumerate(inputs)
    ]


each_extreme = pytest.mark.parametrize("op", [MAX, MIN], ids=["max", "min"])


@each_extreme
@pytest.mark.parametrize("name", ALGORITHMS)
@in_one_test(size=[1, 2, 3, 5, 8], dtype=["float32", "bfloat16", "int64"], shape=EDGE_SHAPES)
def test_extreme_is_that_of_the_dense_vectors(name, size, dtype, shape, op):
    inputs = signed(EDGE_SHAPES[shape](size, dtype))
    assert_sum(name, inputs, run_twice(name, inputs, op=op), op)


@pytest.mark.parametrize("name", ALGORITHMS)
@in_one_test(size=[2, 3, 4, 7])
def test_an_absent_entry_counts_as_zero_for_max_and_min(name, size):
    one = SparseVector(8, [2, 5], np.array([-3.0, 3.0]))
    inputs = [SparseVector.empty(8, "float64")] * (size - 1) + [one]
    assert dense(run_twice(name, inputs, op=MAX)).tolist() == [0, 0, 0, 0, 0, 3, 0, 0]
    assert dense(run_twice(name, inputs, op=MIN)).tolist() == [0, 0, -3, 0, 0, 0, 0, 0]
    assert dense(run_twice(name, [one] * size, op=MAX)).tolist() == [0, 0, -3, 0, 0, 3, 0, 0]


@each_extreme
@more
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_extremes_of_anything_have_the_same_bits_in_every_algorithm(dtype, op, data):
    """NaN and -0.0 included: no order of merging makes a difference, and zero is never negative."""
    inputs = data.draw(rank_vectors(dtype, sizes=st.integers(2, 9), elements=SPECIAL))
    expected = ORACLES["allgather_sum"](inputs, op.name)
    for name in ALGORITHMS:
        result = dense(run_twice(name, inputs, op=op))
        assert np.array_equal(result, expected, equal_nan=True)
        assert not np.signbit(result[result == 0]).any()


@pytest.mark.parametrize("name", ALGORITHMS)
@given(data=st.data())
def test_twice_the_input_gives_twice_the_sum(name, data):
    inputs = data.draw(rank_vectors("float32"))
    doubled = [vector.with_values(vector.values * np.float32(2)) for vector in inputs]
    once, twice = run_twice(name, inputs), run_twice(name, doubled)
    assert same_bits(twice, once.with_values(once.values * np.float32(2)))


@pytest.mark.parametrize("name", ALGORITHMS)
@given(data=st.data())
def test_concatenated_vectors_give_the_concatenated_sums(name, data):
    size = data.draw(st.integers(1, 9))
    head, tail = (
        data.draw(rank_vectors("int64", sizes=st.just(size), elements=st.integers(-8, 8))) for _ in range(2)
    )
    both = [
        SparseVector.from_dense(np.concatenate([dense(a), dense(b)])) for a, b in zip(head, tail, strict=True)
    ]
    sums = [dense(run_twice(name, inputs)) for inputs in (head, tail, both)]
    assert np.array_equal(np.concatenate(sums[:2]), sums[2])


@pytest.mark.parametrize("name", ALGORITHMS)
@given(data=st.data())
def test_order_of_ranks_does_not_matter_to_exact_data(name, data):
    inputs = data.draw(rank_vectors("int32"))
    shuffled = data.draw(st.permutations(inputs))
    assert np.array_equal(dense(run_twice(name, inputs)), dense(run_twice(name, shuffled)))


@pytest.mark.parametrize("name", SPARSE)
@in_one_test(size=SIZES)
def test_nothing_plus_nothing_has_no_entries(name, size):
    result = run_twice(name, [SparseVector.empty(1000)] * size)
    assert (result.nnz, result.is_dense) == (0, False)


@pytest.mark.parametrize("name", SPARSE)
@in_one_test(size=[2, 3, 8, 16])
def test_sum_is_stored_as_is_smaller(name, size):
    few = run_twice(name, EDGE_SHAPES["turns_dense_and_sparse_again"](size, "float32"))
    many = run_twice(name, EDGE_SHAPES["dense"](size, "float32"))
    assert (few.is_dense, few.indices.tolist(), many.is_dense) == (False, [7], True)


def auto(rank, size, vec):
    """What a communicator does in a call without a name: the ranks agree on an algorithm, and run it."""
    chooser, key = Chooser(size, ORDINARY), Key(None, vec.length, vec.dtype.itemsize)
    choice = yield from chooser.agree(key, rank, fullness(vec, size))
    context = Context(options=choice.options)
    return choice.algorithm, (yield from ALGORITHMS[choice.algorithm].run(rank, size, vec, context))


@pytest.mark.parametrize("size", SIZES)
@in_one_test(shape=EDGE_SHAPES)
def test_auto_gives_the_exact_sum_and_one_name_on_every_rank(shape, size):
    inputs = EDGE_SHAPES[shape](size, "float64")
    results, _ = run_local(auto, inputs)
    name, total = results[0]
    assert {chosen for chosen, _ in results} == {name}
    assert all(same_bits(total, other) for _, other in results)
    assert_sum(name, inputs, total)


@pytest.mark.parametrize("size", [2, 4, 7, 16])
@pytest.mark.parametrize("nnz", [0, 1, 1000, 2**20])
def test_cheapest_is_as_good_as_the_lowest_predicted_time(size, nnz):
    network, shape = CostFigures(), Shape(size, 2**20, nnz)
    seconds = {name: algorithm.cost(network, shape).seconds for name, algorithm in ALGORITHMS.items()}
    chosen = choose(network, shape).algorithm
    assert seconds[chosen] <= 1.05 * min(seconds.values())


@pytest.mark.parametrize("size", SIZES)
def test_pieces_concatenate_to_the_vector_they_were_cut_from(size):
    whole = entries(100, range(0, 100, 7), 1.0, "float64")
    assert same_bits(concat(whole.split_evenly(size)), whole)
