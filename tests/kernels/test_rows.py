"""Chosen rows of a sparse matrix: their columns, their products with weights, their sums times factors."""

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

FLOATS = [np.dtype(np.float32), np.dtype(np.float64)]
floats = st.sampled_from(FLOATS)
outputs_of_some = st.integers(1, 3)
# Columns are marked 64 at a time: none, a part of a word, exactly one, one more, and several.
widths = st.sampled_from([0, 1, 63, 64, 65, 128, 200])


@st.composite
def matrices(draw, width=widths):
    """(rows as lists of columns, width): rows may be empty, columns in any order and more than once."""
    width = draw(width) if not isinstance(width, int) else width
    columns = st.lists(st.integers(0, width - 1), max_size=12) if width else st.just([])
    return draw(st.lists(columns, max_size=6)), width


@st.composite
def choices(draw, count):
    """Numbers of rows, in any order, some more than once, or none."""
    return draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []


def starts_of(rows):
    return np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)


def chosen_entries(rows, chosen):
    """For each entry of the chosen rows, one after the other: (place of the row, entry's number, column)."""
    firsts = starts_of(rows).tolist()
    return [(i, firsts[r] + e, c) for i, r in enumerate(chosen) for e, c in enumerate(rows[r])]


@given(data=st.data(), matrix=matrices(), index_dtype=cases.index_dtypes, shift=cases.shifts)
@cases.on_every_isa
def test_columns_are_those_of_the_rows_and_every_entry_finds_its_own(isa, data, matrix, index_dtype, shift):
    rows, width = matrix
    chosen = data.draw(choices(len(rows)))
    starts = cases.frozen(cases.misaligned(starts_of(rows), shift))
    indices = cases.frozen(
        cases.misaligned(np.array([c for row in rows for c in row], index_dtype), 15 - shift)
    )
    numbers = cases.frozen(cases.misaligned(np.array(chosen, np.int64), shift))
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        columns, positions = kernels.row_columns(starts, indices, numbers, width)
    occurring = [column for _, _, column in chosen_entries(rows, chosen)]
    assert (columns.dtype, positions.dtype) == (index_dtype, np.uint32)
    assert columns.tolist() == sorted(set(occurring))
    assert columns[positions].tolist() == occurring


@cases.each_isa
@pytest.mark.parametrize("index_dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("width", [1, 63, 64, 65, 200])
def test_rows_that_have_every_column_or_only_the_last(isa, index_dtype, width):
    full, last = np.arange(width), np.array([width - 1])
    starts, indices = np.array([0, width, width + 1]), np.concatenate([full, last]).astype(index_dtype)
    with kernels.use_isa(isa):
        columns, positions = kernels.row_columns(starts, indices, np.array([0, 1]), width)
        only, first = kernels.row_columns(starts, indices, np.array([1]), width)
    assert columns.tolist() == full.tolist()
    assert positions.tolist() == [*full, width - 1]
    assert (only.tolist(), first.tolist()) == ([width - 1], [0])


def added_up(terms):
    """In order, from zero; Python's floats are what C calls double."""
    total = 0.0
    for x, y in terms:
        total += x * y
    return total


def random_values(draw, dtype, count):
    """Numbers whose sums depend on the order, and every awkward one."""
    known = [float(v) for v in cases.awkward(dtype)]
    usual = st.floats(-1e6, 1e6, width=8 * dtype.itemsize)
    return np.array(draw(st.lists(usual | st.sampled_from(known), min_size=count, max_size=count)), dtype)


@given(data=st.data(), matrix=matrices(), dtype=floats, outputs=outputs_of_some, shift=cases.shifts)
@cases.on_every_isa
def test_products_are_added_in_double_and_in_order(isa, data, matrix, dtype, outputs, shift):
    rows, _ = matrix
    chosen = data.draw(choices(len(rows)))
    entries = chosen_entries(rows, chosen)
    distinct = sorted({column for _, _, column in entries})
    values = cases.frozen(cases.misaligned(random_values(data.draw, dtype, sum(map(len, rows))), shift))
    weights = cases.frozen(random_values(data.draw, np.dtype(np.float64), len(distinct) * outputs))
    positions = cases.frozen(
        cases.misaligned(np.array([distinct.index(c) for _, _, c in entries], np.uint32), shift)
    )
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        products = kernels.row_products(
            starts_of(rows), values, np.array(chosen, np.int64), positions, weights, outputs
        )
    expected = [
        added_up(
            (float(values[e]), float(weights[distinct.index(c) * outputs + output]))
            for place, e, c in entries
            if place == i
        )
        for i in range(len(chosen))
        for output in range(outputs)
    ]
    assert cases.same_bits(products, np.array(expected, np.float64))


@given(data=st.data(), matrix=matrices(), dtype=floats, outputs=outputs_of_some, shift=cases.shifts)
@cases.on_every_isa
def test_sums_are_added_in_double_and_in_order(isa, data, matrix, dtype, outputs, shift):
    rows, _ = matrix
    chosen = data.draw(choices(len(rows)))
    entries = chosen_entries(rows, chosen)
    distinct = sorted({column for _, _, column in entries})
    values = cases.frozen(cases.misaligned(random_values(data.draw, dtype, sum(map(len, rows))), shift))
    factors = cases.frozen(random_values(data.draw, np.dtype(np.float64), len(chosen) * outputs))
    positions = cases.frozen(
        cases.misaligned(np.array([distinct.index(c) for _, _, c in entries], np.uint32), shift)
    )
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        sums = kernels.row_sums(
            starts_of(rows),
            values,
            np.array(chosen, np.int64),
            positions,
            factors,
            len(distinct),
            outputs,
        )
    expected = [
        added_up(
            (float(values[e]), float(factors[place * outputs + output]))
            for place, e, c in entries
            if c == column
        )
        for column in distinct
        for output in range(outputs)
    ]
    assert cases.same_bits(sums, np.array(expected, np.float64))


@cases.each_isa
def test_columns_that_no_row_has_get_a_sum_of_zero(isa):
    starts, values, positions = np.array([0, 1]), np.array([2.0]), np.array([1], np.uint32)
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        sums = kernels.row_sums(starts, values, np.array([0]), positions, np.array([3.0]), columns=3)
    assert sums.tolist() == [0, 6, 0]


@cases.each_isa
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_many_rows_against_a_dense_matrix(isa, dtype, outputs):
    # Small whole numbers: exact in any order.
    random = np.random.default_rng(5)
    dense = random.integers(-3, 4, (300, 500)) * (random.random((300, 500)) < 0.1)
    starts = np.cumsum([0, *np.count_nonzero(dense, axis=1)])
    where, indices = np.nonzero(dense)
    values, indices = dense[where, indices].astype(dtype), indices.astype(np.uint32)
    chosen = random.integers(0, 300, 200)
    with kernels.use_isa(isa):
        columns, positions = kernels.row_columns(starts, indices, chosen, 500)
        weights = random.integers(-3, 4, (500, outputs)).astype(np.float64)
        factors = random.integers(-3, 4, (200, outputs)).astype(np.float64)
        products = kernels.row_products(
            starts, values, chosen, positions, weights[columns].reshape(-1), outputs
        )
        sums = kernels.row_sums(starts, values, chosen, positions, factors.reshape(-1), len(columns), outputs)
    assert columns.tolist() == np.flatnonzero(dense[chosen].any(axis=0)).tolist()
    assert np.array_equal(products.reshape(-1, outputs), dense[chosen] @ weights)
    assert np.array_equal(sums.reshape(-1, outputs), (dense[chosen].T @ factors)[columns])
