"""SparseVector: what it accepts, what it refuses, and that every form holds the same numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparsewire as sw
from sparsewire.reduction import MAX, MIN, REDUCTIONS, SUM, RangeSums, concat
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype


def plain(vector):
    """The numbers of a vector's range, found without the library."""
    if vector.indices is None:
        return vector.values.tolist()
    numbers = [0] * (vector.stop - vector.start)
    for index, value in zip(vector.indices.tolist(), vector.values.tolist(), strict=True):
        numbers[index - vector.start] = value
    return numbers


def from_numbers(numbers, dtype="float64", *, dense):
    vector = SparseVector.from_dense(np.array(numbers, dtype))
    return vector if dense else vector.as_sparse()


# Lengths 0 to 40, with long stretches of zeros and of numbers.
NUMBERS = st.lists(st.one_of(st.just(0), st.integers(-9, 9)), max_size=40)


# -- what is accepted ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
@pytest.mark.parametrize("index_dtype", ["uint32", "uint64", "int32", "int64", "int16"])
def test_constructor_accepts_every_dtype(dtype, index_dtype):
    vector = SparseVector(9, np.array([0, 4, 8], index_dtype), np.array([1, 2, 3], value_dtype(dtype)))
    assert plain(vector) == [1, 0, 0, 0, 2, 0, 0, 0, 3]
    assert vector.indices.dtype == np.uint32
    assert vector.dtype == value_dtype(dtype)
    assert (vector.nnz, vector.length, vector.span) == (3, 9, 9)


@pytest.mark.parametrize("length", [0, 1, 2**32, 2**32 + 1, 2**40])
def test_constructor_accepts_no_entries_at_any_length(length):
    vector = SparseVector(length, [], np.array([], "float32"))
    assert vector.nnz == 0
    assert vector.indices.dtype == (np.uint32 if length <= 2**32 else np.uint64)


def test_constructor_accepts_the_last_index_of_the_longest_u32_vector():
    assert SparseVector(2**32, [2**32 - 1], np.ones(1)).indices.tolist() == [2**32 - 1]


def test_constructor_does_not_copy_what_fits():
    indices, values = np.array([1, 2], np.uint32), np.ones(2, "float32")
    vector = SparseVector(5, indices, values)
    assert np.shares_memory(vector.indices, indices)
    assert np.shares_memory(vector.values, values)


def test_constructor_accepts_strided_and_read_only_arrays():
    indices, values = np.arange(0, 20, dtype=np.int64)[::4], np.arange(10.0)[::2]
    indices.flags.writeable = values.flags.writeable = False
    assert SparseVector(20, indices, values).to_dense()[16] == 8


def test_constructor_copies_arrays_that_lie_between_elements():
    indices, values = np.array([1, 4], np.uint32), np.array([2.5, -1], np.float32)
    shifted = [np.frombuffer(b"." + a.tobytes(), np.uint8)[1:].view(a.dtype) for a in (indices, values)]
    vector = SparseVector(6, *shifted)
    assert vector.indices.flags.aligned
    assert vector.values.flags.aligned
    assert vector.to_dense().tolist() == [0, 2.5, 0, 0, -1, 0]


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "indices", "message"),
    [
        (10, [3, 2], r"indices\[1\] is 2, which comes after the larger indices\[0\] = 3"),
        (10, [1, 5, 5], r"indices\[2\] is 5, which repeats indices\[1\] = 5"),
        (10, [-1, 5], r"indices\[0\] is -1, outside a vector of length 10"),
        (10, [0, 10], r"indices\[1\] is 10, outside a vector of length 10"),
        (10, [0, 2**32 + 1], r"indices\[1\] is 4294967297, outside"),  # would be 1 as a u32
        (1, [0, 0], "2 entries in a vector of length 1"),
        (0, [0], "1 entries in a vector of length 0"),
        (2**40, [5, 2**40], r"indices\[1\] is 1099511627776, outside"),
        (10, [0.5, 1], "must be integers"),
        (10, [[0, 1]], "must be integers in one row"),
        (10, [0, 1, 2], "3 indices but 2 values"),
    ],
)
def test_constructor_refuses_bad_indices_and_says_where(length, indices, message):
    nnz = 2 if "2 values" in message or np.ndim(indices) == 2 else len(indices)
    with pytest.raises(sw.InputError, match=message):
        SparseVector(length, indices, np.ones(nnz))


@pytest.mark.parametrize("bad", [1, 15, 16, 17, 63, 99])
@pytest.mark.parametrize("wrong", ["repeats", "goes back", "beyond"])
def test_constructor_names_the_first_bad_index_wherever_it_is(bad, wrong):
    indices = np.arange(100, dtype=np.uint32)
    indices[bad] = {"repeats": bad - 1, "goes back": 0 if bad > 1 else 1000, "beyond": 1000}[wrong]
    with pytest.raises(sw.InputError, match=rf"^indices\[{bad}\] is {indices[bad]}"):
        SparseVector(100, indices, np.ones(100))


@pytest.mark.parametrize("length", [-1, 1.5, "7", None, True, 2**63])
def test_constructor_refuses_what_is_no_length(length):
    with pytest.raises(sw.InputError, match="length is"):
        SparseVector(length, [], np.ones(0))


def test_constructor_refuses_values_of_two_dimensions():
    with pytest.raises(sw.InputError, match=r"shape \(1, 2\)"):
        SparseVector(4, [0, 1], np.ones((1, 2)))


def test_constructor_says_how_to_mend_unsorted_indices():
    with pytest.raises(sw.InputError, match=r"SparseVector\.coalesce"):
        SparseVector(4, [1, 0], np.ones(2))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5)), max_size=30))
def test_coalesce_sorts_and_adds_up(entries):
    indices = np.array([index for index, _ in entries], np.int64)
    vector = SparseVector.coalesce(10, indices, np.array([value for _, value in entries], np.int64))
    assert plain(vector) == [sum(v for i, v in entries if i == index) for index in range(10)]


def test_coalesce_adds_halves_in_float32():
    ones = np.ones(4096, "float16")
    assert SparseVector.coalesce(1, np.zeros(4096, int), ones).values.tolist() == [4096]


def test_coalesce_still_refuses_what_is_out_of_range():
    with pytest.raises(sw.InputError, match="outside a vector of length 3"):
        SparseVector.coalesce(3, [7, 1], np.ones(2))


# -- forms ---------------------------------------------------------------------------------------


@given(NUMBERS, st.sampled_from(["float32", "int64"]))
def test_dense_and_sparse_hold_the_same_numbers(numbers, dtype):
    dense = from_numbers(numbers, dtype, dense=True)
    sparse = dense.as_sparse()
    assert dense.is_dense
    assert not sparse.is_dense
    assert plain(dense) == plain(sparse) == plain(sparse.as_dense()) == numbers
    assert sparse.nnz == len(numbers) - numbers.count(0)


@given(NUMBERS, st.booleans())
def test_smaller_takes_the_fewer_bytes(numbers, dense):
    vector = from_numbers(numbers, "float32", dense=dense)
    both = [vector.as_dense(), vector.as_sparse()]
    assert plain(vector.smaller()) == numbers
    assert vector.smaller().nbytes == min(form.nbytes for form in both)


def test_zero_is_what_has_no_magnitude():
    vector = SparseVector.from_dense(np.array([0.0, -0.0, 5e-324, np.nan, np.inf, -np.inf]))
    assert vector.as_sparse().indices.tolist() == [2, 3, 4, 5]


# -- pieces --------------------------------------------------------------------------------------


@given(NUMBERS, st.booleans(), st.integers(1, 9))
def test_pieces_of_an_even_split_concatenate_to_the_whole(numbers, dense, parts):
    vector = from_numbers(numbers, dense=dense)
    pieces = vector.split_evenly(parts)
    assert len(pieces) == parts
    assert (pieces[0].start, pieces[-1].stop) == (0, len(numbers))
    assert all(a.stop == b.start for a, b in itertools.pairwise(pieces))
    assert max(p.span for p in pieces) - min(p.span for p in pieces) <= 1
    assert [plain(p) for p in pieces] == [numbers[p.start : p.stop] for p in pieces]
    assert plain(concat(pieces)) == numbers


@given(NUMBERS, st.booleans(), st.data())
def test_range_of_a_piece_is_a_range_of_the_vector(numbers, dense, data):
    bounds = data.draw(st.lists(st.integers(0, len(numbers)), min_size=4, max_size=4).map(sorted))
    piece = from_numbers(numbers, dense=dense).range(bounds[0], bounds[3]).range(bounds[1], bounds[2])
    assert (piece.start, piece.stop, piece.length) == (bounds[1], bounds[2], len(numbers))
    assert plain(piece) == numbers[bounds[1] : bounds[2]]


@given(NUMBERS, st.lists(st.booleans(), min_size=5, max_size=5))
def test_concat_of_mixed_forms_takes_the_smaller_form(numbers, forms):
    pieces = [
        p.as_dense() if f else p.as_sparse()
        for p, f in zip(from_numbers(numbers, "float32", dense=True).split_evenly(5), forms, strict=True)
    ]
    whole = concat(pieces)
    assert plain(whole) == numbers
    if any(forms) and not all(forms):
        assert whole.nbytes == min(whole.as_dense().nbytes, whole.as_sparse().nbytes)


def test_detached_piece_counts_from_zero():
    piece = SparseVector(2**40, [5, 2**35, 2**35 + 3], np.arange(3.0)).range(2**35, 2**35 + 10).detached()
    assert (piece.length, piece.start, piece.stop) == (10, 0, 10)
    assert piece.indices.tolist() == [0, 3]
    assert piece.indices.dtype == np.uint32


def test_pieces_are_views():
    vector = SparseVector(10, [1, 4, 8], np.arange(3.0))
    assert all(np.shares_memory(p.values, vector.values) for p in vector.split_evenly(3))


# -- sums ----------------------------------------------------------------------------------------


@given(
    st.integers(0, 40).flatmap(
        lambda n: st.lists(
            st.tuples(st.lists(st.integers(-9, 9), min_size=n, max_size=n), st.booleans()),
            min_size=1,
            max_size=6,
        )
    )
)
def test_sums_of_any_forms_equal_plain_addition(vectors):
    pieces = [from_numbers(numbers, "float32", dense=dense) for numbers, dense in vectors]
    expected = [sum(column) for column in zip(*(numbers for numbers, _ in vectors), strict=True)]
    assert plain(SUM.merge(pieces)) == expected
    assert plain(SUM.dense(pieces)) == expected
    assert SUM.dense(pieces).is_dense


def from_pieces(vectors, dtype="float32"):
    return [from_numbers(numbers, dtype, dense=dense) for numbers, dense in vectors]


COLUMNS = st.integers(0, 40).flatmap(
    lambda n: st.lists(
        st.tuples(st.lists(st.sampled_from([-2, -1, 0, 0, 1, 2]), min_size=n, max_size=n), st.booleans()),
        min_size=2,
        max_size=6,
    )
)


@given(COLUMNS, st.sampled_from(VALUE_DTYPES))
def test_extremes_of_any_forms_are_those_of_the_plain_numbers(vectors, dtype):
    pieces = from_pieces(vectors, value_dtype(dtype))
    for op, extreme in ((MAX, max), (MIN, min)):
        expected = [extreme(column) for column in zip(*(numbers for numbers, _ in vectors), strict=True)]
        assert plain(op.merge(pieces)) == expected
        assert plain(op.dense(pieces)) == expected


@given(COLUMNS, st.integers(1, 5))
def test_any_grouping_of_extremes_gives_the_same_numbers(vectors, at):
    pieces = from_pieces(vectors)
    at = min(at, len(pieces) - 1)
    for op in (MAX, MIN):
        halves = [op.merge(pieces[:at]), op.merge(pieces[at:])]
        assert plain(op.merge(halves)) == plain(op.merge(pieces)) == plain(op.merge(pieces[::-1]))


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("op", [MAX, MIN], ids=["max", "min"])
def test_a_zero_that_is_an_extreme_is_positive(op, dense):
    pieces = [SparseVector(64, [3, 9], np.array([-0.0, zero])) for zero in (-0.0, 0.0)]
    pieces = [p.as_dense() for p in pieces] if dense else pieces
    for order in (pieces, pieces[::-1]):
        assert not np.signbit(op.dense(order).values).any()
        assert not np.signbit(op.merge(order).values).any()


def test_nan_wins_whatever_it_is_compared_with():
    nan = SparseVector(64, [3], np.array([np.nan]))
    for other in (SparseVector.empty(64, "float64"), SparseVector(64, [3], np.array([np.inf]))):
        for op in (MAX, MIN):
            for order in ([nan, other], [other, nan], [nan, other.as_dense()], [other.as_dense(), nan]):
                assert np.isnan(op.merge(order).to_dense()[3])


def test_reductions_are_found_by_name():
    assert REDUCTIONS == {"sum": SUM, "max": MAX, "min": MIN}


def test_merge_sum_of_equal_small_supports_stays_sparse():
    """Four vectors of a fourth of the range each: the bound asks for a dense sum, the union is small."""
    pieces = [SparseVector(400, range(0, 400, 4), np.ones(100, "float32"))] * 4
    assert not SUM.merge(pieces).is_dense


def test_merge_sum_turns_dense_where_that_is_smaller():
    pieces = [SparseVector(400, range(start, 400, 4), np.ones(100, "float32")) for start in range(4)]
    assert SUM.merge(pieces).is_dense


def test_merge_sum_keeps_entries_that_cancel_while_stored_as_entries():
    a = SparseVector(100, [3], np.array([1.0]))
    b = SparseVector(100, [3], np.array([-1.0]))
    assert SUM.merge([a, b]).indices.tolist() == [3]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dense", [True, False])
def test_halves_are_added_in_float32_and_rounded_once(dtype, dense):
    """A half of 2**11 (2**8) stays the same if 1 is added to it, however often."""
    big = {"float16": 2048, "bfloat16": 256}[dtype]
    numbers = [big, 1, 1, 1, 1]
    pieces = [SparseVector(8, [5], np.array([n]).astype(value_dtype(dtype))) for n in numbers]
    pieces = [p.as_dense() for p in pieces] if dense else pieces
    assert float(SUM.merge(pieces).to_dense()[5]) == big + 4


@given(
    st.integers(0, 40).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(1, 9),
)
def test_range_sums_equal_the_sum_of_the_whole(vectors, forms, parts):
    """Room has to grow, and ranges become dense or stay sparse, in any order."""
    whole = [from_numbers(v, "float32", dense=f) for v, f in zip(vectors, forms, strict=False)]
    sums = RangeSums()
    for pieces in zip(*(vector.split_evenly(parts) for vector in whole), strict=True):
        sums.add(pieces)
    assert plain(sums.concat()) == [sum(column) for column in zip(*vectors, strict=True)]


@pytest.mark.parametrize("dense_range", [0, 1, 2])
def test_range_sums_may_be_dense_in_one_range_only(dense_range):
    sparse = SparseVector(300, [1, 150, 299], np.ones(3, "float32"))
    full = SparseVector(300, range(100 * dense_range, 100 * dense_range + 100), np.ones(100, "float32"))
    sums = RangeSums()
    for pieces in zip(sparse.split_evenly(3), full.split_evenly(3), strict=True):
        sums.add(pieces)
    assert plain(sums.concat()) == [a + b for a, b in zip(plain(sparse), plain(full), strict=True)]


def test_range_sums_are_joined_without_a_copy():
    even, odd = (SparseVector(1000, range(s, 1000, 20), np.ones(50, "float32")) for s in (0, 10))
    sums = RangeSums()
    for pieces in zip(even.split_evenly(5), odd.split_evenly(5), strict=True):
        sums.add(pieces)
    assert sums.concat().nnz == 100
    assert np.shares_memory(sums.concat().values, sums._values)
    assert np.shares_memory(sums.concat().indices, sums._indices)


def test_range_sums_let_go_of_room_that_equal_supports_left_empty():
    vector = SparseVector(100_000, range(0, 100_000, 10), np.ones(10_000, "float32"))
    sums = RangeSums()
    for piece in vector.split_evenly(5):
        sums.add([piece] * 8)
    assert not np.shares_memory(sums.concat().values, sums._values)


def test_sums_do_not_write_to_their_arguments():
    pieces = [SparseVector.from_dense(np.ones(4)) for _ in range(3)]
    SUM.merge(pieces)
    SUM.dense(pieces)
    assert all((p.values == 1).all() for p in pieces)


def test_repr_shows_shape_and_not_the_numbers():
    vector = SparseVector(10, [1], np.ones(1))
    assert repr(vector) == "SparseVector(length=10, nnz=1, float64)"
    assert repr(vector.range(0, 5).as_dense()) == "SparseVector(length=10, range=[0, 5), dense, float64)"
