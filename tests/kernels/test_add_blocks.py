import kernel_cases as cases
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

blocks = st.sampled_from([1, 7, 8, 9, 16, 31, 64]) | st.integers(1, 70)
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def dtype_of_total(dtype):
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def expected_total(before, rows, new, block):
    """Value by value, and nothing where there is no place."""
    total = before.copy()
    with np.errstate(all="ignore"):
        for i, row in enumerate(rows):
            for j in range(block):
                place = row * block + j
                if place < len(total):
                    total[place] = total[place] + new[i * block + j].astype(total.dtype)
    return total


@cases.each_dtype
@given(data=st.data(), shift=cases.shifts, block=blocks)
@cases.on_every_isa
def test_every_value_of_a_block_is_added_in_its_place(isa, dtype, data, shift, block):
    wide = dtype_of_total(dtype)
    before = data.draw(cases.values(wide, st.integers(0, 4 * block)))
    existing = -(-len(before) // block)
    rows = sorted(data.draw(st.sets(st.integers(0, existing - 1)) if existing else st.just(set())))
    new = cases.frozen(cases.misaligned(data.draw(cases.values(dtype, len(rows) * block)), shift))
    total = cases.misaligned(before, 15 - shift)
    with kernels.use_isa(isa):
        kernels.add_blocks(total, cases.frozen(np.array(rows, np.int64)), new, block)
    assert cases.same_bits(total, expected_total(before, rows, new, block))
    assert not total.base[: 15 - shift].any()
    assert not total.base[15 - shift + len(total) :].any()


@cases.each_isa
@cases.each_dtype
@pytest.mark.parametrize("block", [1, 8, 100, 256, 1025])
def test_blocks_of_any_length_are_added_up_to_the_end_of_a_shorter_last_one(isa, dtype, block):
    total = np.ones(5 * block - block // 3, dtype_of_total(dtype))
    rows = np.array([0, 3, 4])
    new = (np.arange(3 * block) % 100).astype(dtype)
    expected = np.ones((5, block))
    expected[rows] += (np.arange(3 * block) % 100).reshape(3, block)
    with kernels.use_isa(isa):
        kernels.add_blocks(total, rows, new, block)
    assert total.tolist() == expected.reshape(-1)[: len(total)].tolist()


@cases.each_isa
@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_every_half_is_added_exactly_to_a_float(isa, dtype):
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    total = np.full(2**16, -0.0, np.float32)
    with kernels.use_isa(isa):
        kernels.add_blocks(total, np.arange(256), every, 256)
    with np.errstate(all="ignore"):
        assert cases.same_bits(total, every.astype(np.float32))


@cases.each_isa
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_wrap_around(isa, dtype):
    limits = np.iinfo(dtype)
    total = np.full(9, limits.max, dtype)
    with kernels.use_isa(isa):
        kernels.add_blocks(total, np.arange(1), np.ones(9, dtype), 9)
    assert total.tolist() == [limits.min] * 9


@cases.each_isa
@pytest.mark.parametrize(
    "rows", [[-1], [0, 3], [3], [2**62], [-(2**63)], [1, 0], [1, 1], [0, 5, 1], [0, -1, 2]]
)
def test_rows_outside_or_out_of_order_leave_the_total_untouched(isa, rows):
    total = np.zeros(11, np.float32)  # two blocks of four, and one of three
    with kernels.use_isa(isa), pytest.raises(ValueError, match="rows must be strictly increasing"):
        kernels.add_blocks(total, np.array(rows), np.ones(4 * len(rows), np.float32), 4)
    assert not total.any()


@cases.each_isa
@pytest.mark.parametrize("block", [1, 2**70])
def test_no_rows_add_nothing(isa, block):
    total = np.ones(3, np.float32)
    with kernels.use_isa(isa):
        kernels.add_blocks(total, np.array([], np.int64), total[:0], block)
        kernels.add_blocks(total[:0], np.array([], np.int64), total[:0], block)
    assert total.tolist() == [1, 1, 1]
