import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

blocks = st.sampled_from([1, 7, 8, 9, 64, 100, 2**70]) | st.integers(1, 200)
# A block is looked at in parts of 256 bytes, which are 32, 64 or 128 values.
EDGES = [1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 1000]


def zeros(dtype, n):
    """Of both signs, in turns, where there are two."""
    x = np.zeros(n, dtype)
    x[::2] = -x[::2]
    return x


def found(isa, x, block):
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        numbers = kernels.nonzero_blocks(x, block)
    assert numbers.dtype == np.int64
    return numbers.tolist()


@cases.each_dtype
@given(data=st.data(), shift=cases.shifts, block=blocks)
@cases.on_every_isa
def test_blocks_with_a_number_other_than_zero_are_found(isa, dtype, data, shift, block):
    x = data.draw(cases.values(dtype))
    x[data.draw(st.integers(0, len(x))) :] = 0  # otherwise few blocks were all zero
    numbers = cases.plain(x)
    expected = [b for b in range(-(-len(x) // block)) if any(v != 0 for v in numbers[b * block :][:block])]
    assert found(isa, cases.frozen(cases.misaligned(x, shift)), block) == expected


@cases.each_isa
@cases.each_dtype
@pytest.mark.parametrize("block", [1, 33, 64, 100, 129, 1000])
def test_one_value_is_found_wherever_it_is(isa, dtype, block):
    x = zeros(dtype, 2 * block + block // 2)
    for position in {p for edge in EDGES for p in (edge - 1, edge, len(x) - edge) if 0 <= p < len(x)}:
        x[position] = 1
        assert found(isa, x, block) == [position // block]
        x[position] = 0


@cases.each_isa
@cases.each_dtype
def test_every_awkward_value_but_the_zeros_makes_a_block(isa, dtype):
    for value, number in zip(cases.awkward(dtype), cases.plain(cases.awkward(dtype)), strict=True):
        x = zeros(dtype, 300)
        x[[130, 299]] = value
        assert found(isa, x, 100) == ([] if number == 0 else [1, 2])


@cases.each_isa
@cases.each_dtype
@pytest.mark.parametrize("block", [1, 64, 100, 2**40])
def test_all_blocks_none_of_them_and_no_values(isa, dtype, block):
    assert found(isa, np.ones(1000, dtype), block) == list(range(-(-1000 // block)))
    assert found(isa, zeros(dtype, 1000), block) == []
    assert found(isa, np.ones(0, dtype), block) == []


@cases.each_isa
def test_what_lies_around_the_array_is_not_part_of_a_block(isa):
    around = np.ones(300, np.float32)
    around[10:-10] = 0
    assert found(isa, around[10:-10], 128) == []
