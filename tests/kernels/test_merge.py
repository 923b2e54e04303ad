"""Merging runs of entries: sum, max and min."""

import functools
import operator

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from sparsewire import kernels
from sparsewire.kernels import _compiled

MERGES = {"sum": kernels.merge_sum, "max": kernels.merge_max, "min": kernels.merge_min}


@st.composite
def sorted_indices(draw, index_dtype):
    """Dense clusters that overlap between runs, some across the window boundary at 4096, some far away."""
    near = st.integers(0, 40) | st.integers(4080, 4110)
    far = st.integers(0, np.iinfo(index_dtype).max)
    chosen = draw(st.sets(near, max_size=30) | st.sets(near | far, max_size=60) | st.just(set(range(64))))
    return np.array(sorted(chosen), index_dtype)


@st.composite
def runs_of(draw, dtype, index_dtype, most=6):
    shift = draw(cases.shifts)
    indices = [draw(sorted_indices(index_dtype)) for _ in range(draw(st.integers(1, most)))]
    return [
        (
            cases.frozen(cases.misaligned(i, shift)),
            cases.frozen(cases.misaligned(draw(cases.values(dtype, len(i))), 15 - shift)),
        )
        for i in indices
    ]


def larger(a, b):
    return a if a != a or a > b else b


def smaller(a, b):
    return a if a != a or a < b else b


def expected(operation, runs):
    """Index after index, one scalar after the other; for max and min, a run without the index has a zero."""
    dtype = runs[0][1].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    zero = wide.type(0)
    columns = {}
    for indices, run_values in runs:
        for index, value in zip(indices.tolist(), run_values.astype(wide), strict=True):
            columns.setdefault(index, []).append(value)
    with np.errstate(all="ignore"):
        for index, column in columns.items():
            if operation == "sum":
                columns[index] = functools.reduce(operator.add, column)
            else:
                column += [zero] * (len(runs) - len(column))
                extreme = functools.reduce({"max": larger, "min": smaller}[operation], column)
                columns[index] = zero if extreme == 0 else extreme
        merged = np.array([columns[index] for index in sorted(columns)], wide).astype(dtype)
    return np.array(sorted(columns), runs[0][0].dtype), merged


@cases.each_dtype
@given(data=st.data(), index_dtype=cases.index_dtypes)
def test_merge_goes_through_an_index_in_run_order(dtype, data, index_dtype):
    runs = data.draw(runs_of(dtype, index_dtype))
    for operation, merge in MERGES.items():
        expected_indices, expected_values = expected(operation, runs)
        for isa in kernels.available_isas():
            note(f"{operation} with {isa}")
            with kernels.use_isa(isa):
                indices, merged = merge(runs)
            assert indices.dtype == index_dtype
            assert np.array_equal(indices, expected_indices)
            assert cases.same_bits(merged, expected_values)


@pytest.mark.parametrize("isa", kernels.available_isas()[1:])
@cases.each_dtype
@given(data=st.data(), operation=st.sampled_from(list(MERGES)))
def test_nothing_is_written_behind_the_output(isa, dtype, operation, data):
    runs = data.draw(runs_of(dtype, np.dtype(np.uint32), most=3))
    total = sum(len(indices) for indices, _ in runs)
    indices, merged = np.full(total + 50, 77, np.uint32), np.full(total + 50, 77, dtype)
    with kernels.use_isa(isa):
        count = _compiled.merge(operation, runs, indices[:total], merged[:total])
    expected_indices, expected_values = expected(operation, runs)
    assert np.array_equal(indices[:count], expected_indices)
    assert cases.same_bits(merged[:count], expected_values)
    assert np.all(indices[total:] == 77)
    assert np.all(merged[total:] == 77)


@cases.each_isa
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("relation", ["equal", "disjoint", "interleaved", "full", "empty", "one empty"])
def test_supports_of_every_relation(isa, count, relation):
    def support(r):
        return {
            "equal": np.arange(0, 9000, 7),
            "disjoint": np.arange(5000 * r, 5000 * r + 3000),
            "interleaved": np.arange(r, 9000, count),
            "full": np.arange(9000),
            "empty": np.arange(0),
            "one empty": np.arange(0 if r == 1 else 500),
        }[relation].astype(np.uint32)

    # rank r contributes 2^r, so a wrong sum names the guilty runs in its bits
    runs = [(support(r), np.full(len(support(r)), 2.0**r, np.float32)) for r in range(count)]
    with kernels.use_isa(isa):
        indices, merged = kernels.merge_sum(runs)
    dense, is_present = np.zeros(50_000), np.zeros(50_000, bool)
    for run_indices, run_values in runs:
        dense[run_indices] += run_values
        is_present[run_indices] = True
    assert np.array_equal(indices, np.flatnonzero(is_present))
    assert np.array_equal(merged, dense[is_present].astype(np.float32))


@cases.each_isa
@pytest.mark.parametrize("count", [2, 8])
def test_few_entries_over_a_huge_range_cost_what_the_entries_cost(isa, count):
    rng = np.random.default_rng(6)
    runs = [
        (np.sort(rng.choice(2**40, 16, replace=False).astype(np.uint64)), np.full(16, 2.0**r, np.float32))
        for r in range(count)
    ]
    with kernels.use_isa(isa):
        indices, merged = kernels.merge_sum(runs)
    expected_indices, expected_values = expected("sum", runs)
    assert np.array_equal(indices, expected_indices)
    assert np.array_equal(merged, expected_values)


@cases.each_isa
def test_half_types_are_rounded_once(isa):
    # 2048 + 1 + 1 is 2050 in float32; rounding to float16 after each addition would give 2048.
    runs = [(np.array([3], np.uint32), np.array([v], np.float16)) for v in (2048, 1, 1)]
    with kernels.use_isa(isa):
        assert kernels.merge_sum(runs)[1].tolist() == [2050.0]


@cases.each_isa
def test_zeros_keep_their_entries_and_their_sign(isa):
    index = np.array([1, 2], np.uint32)
    with kernels.use_isa(isa):
        for count in (1, 2, 3):
            runs = [
                (index, np.array([-0.0, 1.0], np.float32)),
                *[(index[:0], np.zeros(0, np.float32))] * (count - 1),
            ]
            indices, merged = kernels.merge_sum(runs)
            assert indices.tolist() == [1, 2]
            assert np.signbit(merged).tolist() == [True, False]
        indices, merged = kernels.merge_sum(
            [(index, np.array([1, -1], np.float32)), (index, np.array([-1, 1], np.float32))]
        )
    assert indices.tolist() == [1, 2]
    assert merged.tolist() == [0.0, 0.0]


@cases.each_isa
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_run_without_the_index_counts_as_zero_for_max_and_min(isa, count):
    indices = np.array([1, 2, 3, 5000], np.uint32)
    run = indices, np.array([-3, 3, np.nan, -0.0], np.float32)
    others = [(indices[:0], np.zeros(0, np.float32))] * (count - 1)
    with kernels.use_isa(isa):
        for runs in ([run, *others], [*others, run]):
            largest, smallest = kernels.merge_max(runs)[1], kernels.merge_min(runs)[1]
            assert largest.tolist()[:2] == [0, 3]
            assert smallest.tolist()[:2] == [-3, 0]
            for merged in (largest, smallest):
                assert np.isnan(merged[2])
                assert not np.signbit(merged[[0, 1, 3]][merged[[0, 1, 3]] == 0]).any()


@cases.each_isa
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_an_index_that_every_run_has_is_not_compared_with_zero(isa, count):
    index = np.array([7], np.uint32)
    with kernels.use_isa(isa):
        negative = [(index, np.array([-2 - r], np.int64)) for r in range(count)]
        positive = [(index, np.array([2 + r], np.int64)) for r in range(count)]
        assert kernels.merge_max(negative)[1].tolist() == [-2]
        assert kernels.merge_min(positive)[1].tolist() == [2]


def test_an_unknown_operation_is_refused():
    run = np.array([1], np.uint32), np.ones(1)
    with pytest.raises(ValueError, match="sum, max or min"):
        _compiled.merge("product", [run], run[0].copy(), run[1].copy())


def test_one_run_is_copied_and_none_is_refused():
    run = np.array([1], np.uint32), np.array([2.0], np.float32)
    indices, merged = kernels.merge_sum([run])
    indices[0], merged[0] = 9, 9
    assert run[0].tolist() == [1]
    assert run[1].tolist() == [2.0]
    with pytest.raises(ValueError, match="at least one run"):
        kernels.merge_sum([])


@cases.each_isa
def test_merge_sum_writes_to_the_beginning_of_out(isa):
    a = np.array([1, 5], np.uint32), np.array([1.0, 2.0])
    b = np.array([5, 9], np.uint32), np.array([-2.0, 4.0])
    out = np.full(6, 77, np.uint32), np.full(6, 77.0)
    with kernels.use_isa(isa):
        indices, merged = kernels.merge_sum([a, b], out)
    assert np.shares_memory(indices, out[0])
    assert np.shares_memory(merged, out[1])
    assert indices.tolist() == [1, 5, 9]
    assert merged.tolist() == [1, 0, 4]
    assert out[0][4:].tolist() == [77, 77]


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ((np.empty(3, np.uint32), np.empty(3)), ValueError, "room for 3 entries, and there may be 4"),
        ((np.empty(4, np.uint64), np.empty(4)), TypeError, "one dtype"),
        ((np.empty(4, np.uint32), np.empty(4, np.float32)), TypeError, "one dtype"),
        ((np.empty(8, np.uint32)[::2], np.empty(4)), TypeError, "contiguous"),
        ((np.empty(5, np.uint32), np.empty(4)), ValueError, "differ in length"),
    ],
)
def test_merge_sum_checks_out(out, error, message):
    run = np.array([1, 5], np.uint32), np.array([1.0, 2.0])
    with pytest.raises(error, match=message):
        kernels.merge_sum([run, run], out)
