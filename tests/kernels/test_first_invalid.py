import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels


def expected(indices, start, stop):
    for position, index in enumerate(indices):
        if not start <= index < stop or (position > 0 and index <= indices[position - 1]):
            return position
    return -1


@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts)
@cases.on_every_isa
def test_any_list_of_numbers(isa, data, index_dtype, shift):
    number = st.integers(0, 300) | st.integers(0, np.iinfo(index_dtype).max)
    indices = data.draw(st.lists(number, max_size=40) | st.sets(number, max_size=40).map(sorted))
    start, stop = data.draw(st.tuples(number, number | st.sampled_from([2**32, 2**64])))
    array = cases.frozen(cases.misaligned(np.array(indices, index_dtype), shift))
    with kernels.use_isa(isa):
        assert kernels.first_invalid(array, start, stop) == expected(indices, start, stop)


@pytest.mark.parametrize("dtype", cases.INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 1023, 1024, 1025, 1026, 5000])
@pytest.mark.parametrize("damage", ["repeated", "smaller", "at stop", "below start"])
def test_a_single_wrong_index_is_found(dtype, length, damage):
    valid = np.arange(10, 10 + 2 * length, 2).astype(dtype)
    stop = int(valid[-1]) + 1
    for position in {place % length for place in (0, 1, 2, -2, -1, length // 2)}:
        indices = valid.copy()
        indices[position] = {
            "repeated": valid[position - 1],
            "smaller": max(10, int(valid[position]) - 4),
            "at stop": stop,
            "below start": 9,
        }[damage]
        wrong = expected(indices.tolist(), 10, stop)
        for isa in kernels.available_isas():
            with kernels.use_isa(isa):
                assert kernels.first_invalid(valid, 10, stop) == -1, isa
                assert kernels.first_invalid(indices, 10, stop) == wrong, (isa, position)


@cases.each_isa
@pytest.mark.parametrize("dtype", cases.INDEX_DTYPES, ids=str)
def test_the_whole_range_of_the_dtype_is_valid(isa, dtype):
    largest = np.iinfo(dtype).max
    indices = np.array([0, largest - 1, largest], dtype)
    with kernels.use_isa(isa):
        assert kernels.first_invalid(indices, 0, largest) == 2
        assert kernels.first_invalid(indices, 0, largest + 1) == -1
        assert kernels.first_invalid(indices[:2], 0, largest) == -1
        if dtype == np.uint32:
            assert kernels.first_invalid(indices, 2**32, 2**33) == 0
        assert kernels.first_invalid(indices[:0], 5, 5) == -1
