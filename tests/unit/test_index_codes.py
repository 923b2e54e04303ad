"""Indices as bytes: hardly more of them than the information in the indices."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire.coding.indices import (
    BITMAP,
    CALL_INDICES,
    COO,
    ELIAS_FANO,
    TILES,
    best_form,
    best_form_by_count,
    encode_indices,
)

LENGTH = 1 << 24


def entropy_bytes(length, count):
    """The information in random indices of this density, in bits per index."""
    d = count / length
    return length * -(d * math.log2(d) + (1 - d) * math.log2(1 - d)) / 8 if 0 < d < 1 else 0.0


def different(draws, count):
    """The first ``count`` different ones, sorted."""
    first = np.sort(np.unique(draws, return_index=True)[1])[:count]
    assert len(first) == count
    return np.sort(draws[first]).astype(np.uint32)


def uniform(length, density, seed=0):
    count = round(length * density)
    enough = round(-math.log1p(-density) * length * 1.1) + 99
    return different(np.random.default_rng(seed).integers(0, length, size=enough), count)


def zipf(length, count, seed=0):
    """Position i is taken with a chance of about 1/i: dense in the beginning, sparse in the end."""
    positions = length ** np.random.default_rng(seed).random(20 * count) - 1
    return different(positions.astype(np.int64), count)


def rows(length, count, width=64, seed=0):
    """Whole rows of an embedding."""
    chosen = np.random.default_rng(seed).permutation(length // width)[: count // width]
    return (np.sort(chosen)[:, None] * width + np.arange(width)).reshape(-1).astype(np.uint32)


@pytest.mark.parametrize("density", [1e-5, 1e-4, 1e-3, 0.003, 0.01, 0.02, 0.03, 0.05, 0.07, 0.0999])
def test_sparse_supports_take_at_most_15_percent_more_than_their_information(density):
    indices = uniform(LENGTH, density)
    written = encode_indices(indices, 0, LENGTH, best_form(indices, 0, LENGTH))
    assert written.nbytes <= 1.15 * entropy_bytes(LENGTH, len(indices))


@pytest.mark.parametrize("density", [0.1, 0.13, 0.17, 0.2, 0.22, 0.25, 0.27, 0.3, 0.4, 0.5])
def test_denser_supports_take_at_most_25_percent_more_than_their_information(density):
    indices = uniform(LENGTH // 16, density)
    written = encode_indices(indices, 0, LENGTH // 16, best_form(indices, 0, LENGTH // 16))
    assert written.nbytes <= 1.25 * entropy_bytes(LENGTH // 16, len(indices))


@pytest.mark.parametrize("make", [zipf, rows])
@pytest.mark.parametrize("density", [1e-4, 1e-3, 0.01, 0.03, 0.1])
def test_skewed_and_clustered_supports_are_no_larger_than_uniform_ones(make, density):
    length = LENGTH // 16
    indices = make(length, round(length * density))
    even = uniform(length, len(indices) / length)
    assert best_form(indices, 0, length).nbytes <= best_form(even, 0, length).nbytes


def test_rows_of_an_embedding_take_two_bits_and_a_half_per_index():
    indices = rows(LENGTH, LENGTH // 100)
    assert best_form(indices, 0, LENGTH).code == TILES
    assert best_form(indices, 0, LENGTH).nbytes * 8 < 2.6 * len(indices)


@given(st.integers(1, 5000), st.data())
def test_never_larger_than_plain_indices_or_a_bitmap(span, data):
    chosen = data.draw(st.sets(st.integers(0, span - 1)))
    indices = np.array(sorted(chosen), np.uint32) + np.uint32(77)
    form = best_form(indices, 77, 77 + span)
    assert form.nbytes <= -(-4 * len(indices) // 8) * 8
    assert form.nbytes <= -(-span // 64) * 8 + 64


def test_each_form_is_the_smallest_somewhere():
    spans = {ELIAS_FANO: 100_000, BITMAP: 1500, TILES: 100_000, COO: 1 << 31}
    indices = {
        ELIAS_FANO: range(0, 100_000, 100),
        BITMAP: range(0, 1500, 3),
        TILES: range(5000, 6000),
        COO: [1 << 30],
    }
    for code, span in spans.items():
        assert best_form(np.array(indices[code], np.uint32), 0, span).code == code


@pytest.mark.parametrize("density", [1e-3, 0.01, 0.1, 0.4])
def test_a_form_by_formula_is_that_of_a_uniform_support(density):
    indices = uniform(1 << 20, density)
    assert best_form_by_count(len(indices), 1 << 20, 4) == best_form(indices, 0, 1 << 20)


@pytest.mark.parametrize("make", [lambda n, k: uniform(n, k / n), zipf, rows])
def test_coding_must_save_more_than_its_price(make):
    indices = make(1 << 22, 1 << 15)
    free, plain = best_form(indices, 0, 1 << 22), 4 * len(indices)
    saved = (plain - free.nbytes) / (len(indices) + CALL_INDICES)
    assert best_form(indices, 0, 1 << 22, price=0.99 * saved) == free
    assert best_form(indices, 0, 1 << 22, price=1.01 * saved).code != free.code
    assert best_form(indices, 0, 1 << 22, price=math.inf) == (COO, plain, 0)


def test_few_indices_are_not_worth_a_call():
    indices = np.arange(0, 10_000, 100, dtype=np.uint32)
    assert best_form(indices, 0, 10_000).code == ELIAS_FANO
    assert best_form(indices, 0, 10_000, price=0.2).code == COO
