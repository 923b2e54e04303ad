"""Against the definition in big numbers: lower and upper part are one number each, bit by bit."""

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

each_index_dtype = pytest.mark.parametrize("index_dtype", cases.INDEX_DTYPES, ids=str)


def layout(count, span):
    """Low bits of an index, words of the lower part, bits of the upper part."""
    if count == 0:
        return 0, 0, 0
    low = max(low for low in range(64) if count << low <= span)
    return low, -(-count * low // 64), count + ((span - 1) >> low)


def expected_words(relative, span):
    low, lower_words, upper_bits = layout(len(relative), span)
    lower = sum((r % 2**low) << j * low for j, r in enumerate(relative))
    upper = sum(1 << (r >> low) + j for j, r in enumerate(relative))
    return np.concatenate([cases.words_of(lower, lower_words), cases.words_of(upper, -(-upper_bits // 64))])


def expected_indices(words, count, start, span):
    low, lower_words, upper_bits = layout(count, span)
    if len(words) != lower_words - (-upper_bits // 64):
        return None
    lower, upper = cases.number_of(words[:lower_words]), cases.ones_of(cases.number_of(words[lower_words:]))
    if len(upper) != count:
        return None
    relative = [(one - j << low) + (lower >> j * low) % 2**low for j, one in enumerate(upper)]
    is_valid = relative == sorted(set(relative)) and all(r < span for r in relative)
    return [start + r for r in relative] if is_valid else None


def decode(words, count, start, span, index_dtype):
    with cases.canaries_around_outputs():
        indices = kernels.decode_elias_fano(words, count, start, span, index_dtype)
    assert indices is None or indices.dtype == index_dtype
    return None if indices is None else indices.tolist()


def check_round_trip(indices, start, span, shift=0):
    array = cases.frozen(cases.misaligned(indices, shift))
    with cases.canaries_around_outputs():
        words = kernels.encode_elias_fano(array, start, span)
    assert words.tolist() == expected_words([int(i) - start for i in indices], span).tolist()
    assert kernels.elias_fano_words(len(indices), span) == len(words)
    code = cases.frozen(cases.misaligned(words, shift))
    assert decode(code, len(indices), start, span, indices.dtype) == indices.tolist()


@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts)
@cases.on_every_isa
def test_any_support(isa, data, index_dtype, shift):
    longest = data.draw(st.sampled_from([300, 5000, 2**32, 2**40, 2**63]))
    limit = min(longest, 2 ** (8 * index_dtype.itemsize))
    with kernels.use_isa(isa):
        check_round_trip(*data.draw(cases.supports(index_dtype, limit)), shift)


@cases.each_isa
@each_index_dtype
@pytest.mark.parametrize("low", range(32))
def test_every_width_of_the_low_bits(isa, index_dtype, low):
    counts = [c for c in (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100) if c << low <= 2**32]
    with kernels.use_isa(isa):
        for number, count in enumerate(counts):
            span = min((count << low) + (count << low) // 2, 2**32)
            start = (0, 5, 2**32 - span)[number % 3] if 5 + span <= 2**32 else 0
            indices = cases.support(cases.SHAPES[number % 4], count, start, span, index_dtype)
            assert layout(count, span)[0] >= low
            check_round_trip(indices, start, span)


@cases.each_isa
@each_index_dtype
@pytest.mark.parametrize("density", [0.0003, 0.01, 0.1, 0.4, 0.9])
def test_long_supports(isa, index_dtype, density):
    span, start = 70_000, 123_456
    with kernels.use_isa(isa):
        check_round_trip(
            cases.support("scattered", int(density * span), start, span, index_dtype), start, span
        )


@cases.each_isa
@pytest.mark.parametrize(("low", "span"), [(32, 2**32), (40, 2**40), (62, 2**63 - 1), (63, 2**63)])
def test_a_single_index_in_a_huge_span(isa, low, span):
    with kernels.use_isa(isa):
        for position in (0, 1, span // 2, span - 1):
            check_round_trip(np.array([position], np.uint64), 0, span)
            assert layout(1, span)[0] == low


@given(data=st.data(), index_dtype=cases.index_dtypes)
@cases.on_every_isa
def test_damaged_words_decode_to_what_they_say_or_not_at_all(isa, data, index_dtype):
    indices, start, span = data.draw(
        cases.supports(index_dtype, data.draw(st.sampled_from([20, 100, 3000, 2**32])))
    )
    words = expected_words([int(i) - start for i in indices], span)
    bits = data.draw(st.lists(st.integers(0, 64 * len(words) - 1), max_size=3)) if len(words) else []
    damaged = cases.with_flipped_bits(words, bits)
    count = max(0, len(indices) + data.draw(st.sampled_from([0, 0, 0, 1, -1])))
    with kernels.use_isa(isa):
        found = decode(damaged, count, start, span, index_dtype)
    assert found == (expected_indices(damaged, count, start, span) if count <= span else None)


@given(data=st.data(), index_dtype=cases.index_dtypes)
@cases.on_every_isa
def test_any_words_at_all(isa, data, index_dtype):
    span = data.draw(st.integers(0, 200))
    count = data.draw(st.integers(0, span))
    word = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
    size = kernels.elias_fano_words(count, span) + data.draw(st.sampled_from([0, 0, 0, 1]))
    words = np.array(data.draw(st.lists(word, min_size=size, max_size=size)), np.uint64)
    with kernels.use_isa(isa):
        assert decode(words, count, 7, span, index_dtype) == expected_indices(words, count, 7, span)


@cases.each_isa
@each_index_dtype
@pytest.mark.parametrize(
    ("relative", "span"),
    [
        ([5, 5], 10),  # equal
        ([3, 2], 10),  # the same upper part, the lower ones in the wrong order
        ([1, 11], 10),  # beyond the span, though in the last upper part
        ([11, 8], 10),  # the first beyond the span: at the end of the dtype it wraps around
        ([40, 41], 10),
        ([0, 1, 2, 9, 8, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 31, 32], 64),
    ],
)
def test_what_is_not_a_support_is_refused(isa, index_dtype, relative, span):
    limit = min(2 ** (8 * index_dtype.itemsize), 2**63)
    words = expected_words(relative, span)[: kernels.elias_fano_words(len(relative), span)]
    with kernels.use_isa(isa):
        assert decode(words, len(relative), 0, span, index_dtype) is None
        assert decode(words, len(relative), limit - span, span, index_dtype) is None


@cases.each_isa
@pytest.mark.parametrize("count", [1, 2, 100, 1000])
def test_a_number_of_ones_other_than_the_count_is_refused(isa, count):
    indices = cases.support("scattered", count, 0, 8 * count, np.uint32)
    words = expected_words(indices.tolist(), 8 * count)
    upper_words = len(words) - layout(count, 8 * count)[1]
    full = words.copy()
    full[-upper_words:] = 2**64 - 1
    empty = words.copy()
    empty[-upper_words:] = 0
    with kernels.use_isa(isa):
        assert decode(words, count, 0, 8 * count, np.uint32) == indices.tolist()
        assert decode(full, count, 0, 8 * count, np.uint32) is None
        assert decode(empty, count, 0, 8 * count, np.uint32) is None


@cases.each_isa
@pytest.mark.parametrize(("index_dtype", "span"), [(np.uint32, 2**32), (np.uint64, 2**63)])
@pytest.mark.parametrize("bit", [1, 2, 63])
def test_a_one_behind_the_upper_part_is_refused_even_where_it_wraps_around(isa, index_dtype, span, bit):
    with kernels.use_isa(isa):
        assert decode(np.array([5, 1], np.uint64), 1, 0, span, index_dtype) == [5]
        assert decode(np.array([5, 1 << bit], np.uint64), 1, 0, span, index_dtype) is None


@cases.each_isa
def test_spare_bits_of_the_lower_part_may_be_anything(isa):
    words = expected_words([3, 17, 60], 64)  # low = 4: twelve bits
    words[0] |= np.uint64(2**64 - 2**12)
    with kernels.use_isa(isa):
        assert decode(words, 3, 0, 64, np.uint32) == [3, 17, 60]


@cases.each_isa
def test_a_count_that_cannot_be_costs_no_memory(isa):
    words = np.zeros(4, np.uint64)
    with kernels.use_isa(isa):
        assert kernels.decode_elias_fano(words, 2**60, 0, 2**61, np.uint64) is None
        assert kernels.decode_elias_fano(words, 2**70, 0, 2**61, np.uint64) is None
