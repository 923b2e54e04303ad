"""Against the definition in big numbers: a bitmap is one number, tiles are its words that are not zero."""

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

each_index_dtype = pytest.mark.parametrize("index_dtype", cases.INDEX_DTYPES, ids=str)
each_code = pytest.mark.parametrize("code", ["bitmap", "tiles"])


def expected_words(code, relative, span):
    bitmap = cases.words_of(sum(1 << r for r in relative), -(-span // 64))
    if code == "bitmap":
        return bitmap
    tiles = sorted({r // 64 for r in relative})
    directory = cases.words_of(sum(1 << tile for tile in tiles), -(-len(bitmap) // 64))
    return np.array([*directory.tolist(), *(int(bitmap[tile]) for tile in tiles)], np.uint64)


def expected_indices(code, words, count, start, span):
    tiles = -(-span // 64)
    if code == "bitmap":
        ones = cases.ones_of(cases.number_of(words)) if len(words) == tiles else None
    else:
        before = -(-tiles // 64)
        listed = cases.ones_of(cases.number_of(words[:before]))
        kept = [cases.ones_of(int(word)) for word in words[before:]]
        is_right = len(words) >= before and len(kept) == len(listed) and all(kept)
        ones = (
            [64 * tile + one for tile, row in zip(listed, kept, strict=False) for one in row]
            if is_right
            else None
        )
    return (
        None
        if ones is None or len(ones) != count or (ones and ones[-1] >= span)
        else [start + r for r in ones]
    )


def encode(code, indices, start, span):
    with cases.canaries_around_outputs():
        if code == "bitmap":
            return kernels.encode_bitmap(indices, start, span)
        return kernels.encode_tiles(indices, start, span, kernels.count_tiles(indices, start))


def decode(code, words, count, start, span, index_dtype):
    with cases.canaries_around_outputs():
        indices = getattr(kernels, f"decode_{code}")(words, count, start, span, index_dtype)
    assert indices is None or indices.dtype == index_dtype
    return None if indices is None else indices.tolist()


def check_round_trip(code, indices, start, span, shift=0):
    words = encode(code, cases.frozen(cases.misaligned(indices, shift)), start, span)
    assert words.tolist() == expected_words(code, [int(i) - start for i in indices], span).tolist()
    received = cases.frozen(cases.misaligned(words, shift))
    assert decode(code, received, len(indices), start, span, indices.dtype) == indices.tolist()


@each_code
@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts)
@cases.on_every_isa
def test_any_support(isa, code, data, index_dtype, shift):
    with kernels.use_isa(isa):
        check_round_trip(
            code, *data.draw(cases.supports(index_dtype, data.draw(st.sampled_from([300, 9000])))), shift
        )


@cases.each_isa
@each_code
@each_index_dtype
@pytest.mark.parametrize("span", [0, 1, 63, 64, 65, 64 * 64 - 1, 64 * 64, 64 * 64 + 1])
def test_full_and_empty_at_the_borders_of_words(isa, code, index_dtype, span):
    with kernels.use_isa(isa):
        for start in (0, 1, 2**32 - span):
            check_round_trip(code, cases.support("first", span, start, span, index_dtype), start, span)
            check_round_trip(code, cases.support("first", 0, start, span, index_dtype), start, span)
            check_round_trip(code, cases.support("last", min(span, 1), start, span, index_dtype), start, span)


@cases.each_isa
@each_code
@each_index_dtype
@pytest.mark.parametrize("density", [0.001, 0.1, 0.3, 0.9])
def test_long_supports(isa, code, index_dtype, density):
    span, start = 30_011, 123_456
    with kernels.use_isa(isa):
        check_round_trip(
            code, cases.support("scattered", int(density * span), start, span, index_dtype), start, span
        )


@each_code
@given(data=st.data(), index_dtype=cases.index_dtypes)
@cases.on_every_isa
def test_damaged_words_decode_to_what_they_say_or_not_at_all(isa, code, data, index_dtype):
    indices, start, span = data.draw(cases.supports(index_dtype, data.draw(st.sampled_from([20, 100, 3000]))))
    words = expected_words(code, [int(i) - start for i in indices], span)
    bits = data.draw(st.lists(st.integers(0, 64 * len(words) - 1), max_size=3)) if len(words) else []
    damaged = cases.with_flipped_bits(words, bits)
    damaged = damaged[: max(0, len(damaged) - data.draw(st.sampled_from([0, 0, 0, 1])))]
    count = max(0, len(indices) + data.draw(st.sampled_from([0, len(bits), -len(bits), 1, -1])))
    with kernels.use_isa(isa):
        found = decode(code, damaged, count, start, span, index_dtype)
    assert found == expected_indices(code, damaged, count, start, span)


@each_code
@given(data=st.data(), index_dtype=cases.index_dtypes)
@cases.on_every_isa
def test_any_words_at_all(isa, code, data, index_dtype):
    word = st.sampled_from([0, 1, 3, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
    words = np.array(data.draw(st.lists(word, max_size=6)), np.uint64)
    span = data.draw(st.integers(0, 64 * len(words) + 1) | st.integers(0, 9000))
    ones = sum(bin(int(word)).count("1") for word in words)
    count = data.draw(st.sampled_from([0, 1, ones]) | st.integers(0, ones))
    with kernels.use_isa(isa):
        found = decode(code, words, count, 7, span, index_dtype)
    assert found == expected_indices(code, words, count, 7, span)


@cases.each_isa
@each_code
@each_index_dtype
@pytest.mark.parametrize(
    "relative", [[10], [3, 63], [9, 10]], ids=["first beyond", "last of the word", "last and beyond"]
)
def test_bits_beyond_the_span_are_refused(isa, code, index_dtype, relative):
    words = expected_words(code, relative, 64)
    limit = min(2 ** (8 * index_dtype.itemsize), 2**63)
    with kernels.use_isa(isa):
        assert decode(code, words, len(relative), 0, 10, index_dtype) is None
        assert decode(code, words, len(relative), limit - 10, 10, index_dtype) is None


@cases.each_isa
@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([0b11, 1, 0], 1),  # a tile that is listed, and empty
        ([0b11, 1], 1),  # one word too few
        ([0b01, 1, 1], 1),  # one too many
        ([0b101, 1, 1], 2),  # a third tile, where there are only two
        ([], 0),
    ],
)
def test_directories_that_lie_are_refused(isa, words, count):
    with kernels.use_isa(isa):
        assert decode("tiles", np.array(words, np.uint64), count, 0, 128, np.uint32) is None
        assert decode("tiles", np.array([0b11, 1, 2**63], np.uint64), 2, 0, 128, np.uint32) == [0, 127]


@cases.each_isa
@each_index_dtype
@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 17, 63, 64, 65, 1000])
def test_tiles_are_counted_from_the_start_of_the_range(isa, index_dtype, length):
    with kernels.use_isa(isa):
        for start in (0, 1, 70):
            dense = cases.support("first", length, 70, length, index_dtype)
            assert kernels.count_tiles(dense, start) == len({(int(i) - start) // 64 for i in dense})
        assert kernels.count_tiles(dense * index_dtype.type(64), 64) == length


@cases.each_isa
def test_a_wrong_number_of_tiles_is_refused(isa):
    indices = np.array([0, 64, 128, 130], np.uint32)
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        for tiles in (0, 1, 2, 4):
            with pytest.raises(ValueError, match=f"the indices lie in 3 tiles, not in {tiles}"):
                kernels.encode_tiles(indices, 0, 200, tiles)


@cases.each_isa
def test_a_count_that_cannot_be_costs_no_memory(isa):
    with kernels.use_isa(isa):
        assert kernels.decode_bitmap(np.zeros(1, np.uint64), 2**50, 0, 64) is None
        assert kernels.decode_tiles(np.zeros(1, np.uint64), 2**50, 0, 64) is None
