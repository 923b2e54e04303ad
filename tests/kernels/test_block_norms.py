import math

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

blocks = st.sampled_from([1, 7, 8, 9, 64, 100, 2**70]) | st.integers(1, 200)


def norms_of_blocks(array, block):
    """In Python's doubles, which have no other order of sums than the one written here."""
    numbers, norms = [float(number) for number in cases.plain(array)], []
    for begin in range(0, len(numbers), block):
        lane = [0.0] * 8
        for j, number in enumerate(numbers[begin : begin + block]):
            lane[j % 8] += number * number
        left = (lane[0] + lane[4]) + (lane[2] + lane[6])
        right = (lane[1] + lane[5]) + (lane[3] + lane[7])
        norms.append(math.sqrt(left + right))
    return np.array(norms, np.float64)


@cases.each_dtype
@given(data=st.data(), shift=cases.shifts, block=blocks)
@cases.on_every_isa
def test_norms_have_the_bits_of_the_fixed_order(isa, dtype, data, shift, block):
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        norms = kernels.block_norms(x, block)
    assert cases.same_bits(norms, norms_of_blocks(x, block))


@cases.each_dtype
@given(data=st.data(), shift=cases.shifts, block=blocks)
@cases.on_every_isa
def test_accumulated_norms_are_those_of_the_sum(isa, dtype, data, shift, block):
    gradient = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    before = data.draw(cases.values(dtype, len(gradient)))
    residual = cases.misaligned(before, 15 - shift)
    wide = np.float32 if dtype.itemsize == 2 else dtype
    with np.errstate(all="ignore"):
        total = (before.astype(wide) + gradient.astype(wide)).astype(dtype)
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        norms = kernels.accumulate_block_norms(residual, gradient, block)
    assert cases.same_bits(residual, total)
    assert cases.same_bits(norms, norms_of_blocks(total, block))
    assert not residual.base[: 15 - shift].any()
    assert not residual.base[15 - shift + len(residual) :].any()


@cases.each_isa
@cases.each_dtype
@pytest.mark.parametrize("block", [1, 256, 1023, 1024, 1025, 3000, 2**40])
def test_long_blocks_are_added_in_the_same_order(isa, dtype, block):
    x = (np.random.default_rng(7).standard_normal(4099) * 100).astype(dtype)
    residual = np.zeros_like(x)
    with kernels.use_isa(isa):
        norms = kernels.block_norms(x, block)
        accumulated = kernels.accumulate_block_norms(residual, x, block)
    assert cases.same_bits(norms, norms_of_blocks(x, block))
    assert cases.same_bits(accumulated, norms)
    assert np.array_equal(residual, x)


@cases.each_isa
def test_norms_do_not_overflow_where_values_of_float32_do_not(isa):
    x = np.full(100, np.finfo(np.float32).max)
    with kernels.use_isa(isa):
        assert kernels.block_norms(x, 100)[0] == 10 * float(x[0])
        assert kernels.block_norms(np.array([1e200, 1e-200]), 1).tolist() == [math.inf, 0.0]


@cases.each_isa
def test_a_residual_may_be_its_own_gradient_in_blocks(isa):
    x = np.array([1.5, 2, 0, 2.5], np.float32)
    with kernels.use_isa(isa):
        assert kernels.accumulate_block_norms(x, x, 2).tolist() == [5, 5]
    assert x.tolist() == [3, 4, 0, 5]
