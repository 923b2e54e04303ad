import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    assert_moved_out,
    each_dtype,
    each_isa,
    expected_positions,
    frozen,
    index_dtypes,
    misaligned,
    same_bits,
    shifts,
    thresholds,
    values,
)

from sparsewire import kernels
from sparsewire.kernels import _compiled, magnitude


def dense_sum(a, b):
    wide = np.float32 if a.dtype.itemsize == 2 else a.dtype
    with np.errstate(all="ignore"):
        return (a.astype(wide) + b.astype(wide)).astype(a.dtype)


@each_isa
@each_dtype
@given(data=st.data(), index_dtype=index_dtypes, shift=shifts, ties=st.integers(0, 5))
def test_what_is_moved_and_what_stays_is_the_sum(isa, dtype, data, index_dtype, shift, ties):
    gradient = frozen(misaligned(data.draw(values(dtype)), shift))
    before = data.draw(values(dtype, len(gradient)))
    residual = misaligned(before, 15 - shift)
    total = dense_sum(before, gradient)
    threshold = data.draw(thresholds(total))
    with kernels.use_isa(isa):
        entries = kernels.accumulate_select(residual, gradient, threshold, ties, index_dtype=index_dtype)
    assert entries[0].dtype == index_dtype
    assert_moved_out(residual, 15 - shift, entries, total, expected_positions(total, threshold, ties))


@each_isa
@each_dtype
@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
def test_accumulate_select_grows_its_output(isa, dtype, density):
    rng = np.random.default_rng(4)
    gradient = np.where(rng.random(70_001) < density, 50, 2).astype(dtype)
    residual = np.ones(len(gradient), dtype)
    with kernels.use_isa(isa):
        indices, moved = kernels.accumulate_select(residual, gradient, 10)
    large = np.flatnonzero(gradient == 50)
    assert np.array_equal(indices, large)
    assert np.all(moved == 51)
    assert np.array_equal(np.flatnonzero(residual == 0), large)
    assert np.all(residual[gradient == 2] == 3)


@each_isa
def test_a_residual_may_be_its_own_gradient(isa):
    x = np.arange(200, dtype=np.float32)
    with kernels.use_isa(isa):
        indices, moved = kernels.accumulate_select(x, x, 300)
    assert indices.tolist() == list(range(151, 200))
    assert moved.tolist() == [2.0 * i for i in range(151, 200)]


@pytest.mark.parametrize("isa", kernels.available_isas()[1:])
@each_dtype
@given(data=st.data(), ties=st.integers(0, 70))
def test_the_primitive_touches_nothing_beyond_its_capacity(isa, dtype, data, ties):
    gradient = data.draw(values(dtype))
    before = data.draw(values(dtype, len(gradient)))
    total = dense_sum(before, gradient)
    threshold = data.draw(thresholds(total))
    bits, left = magnitude.to_bits(threshold, ties, dtype)
    raw = np.dtype(np.uint16) if dtype.kind not in "fi" else dtype
    residual, indices, moved = before.copy(), np.full(300, 77, np.uint32), np.full(300, 77, raw)
    step = (0, 0, left)
    with kernels.use_isa(isa):
        while step[0] < len(gradient):
            capacity = step[1] + data.draw(st.sampled_from([1, 5, 64, 100]))
            step = _compiled.accumulate_select(
                residual.view(raw), gradient.view(raw), bits, indices[:capacity], moved[:capacity], step
            )
            assert step[0] == len(gradient) or step[1] == capacity
            assert np.all(indices[capacity:] == 77)
            assert np.all(moved[capacity:] == 77)
            assert same_bits(residual[step[0] :], before[step[0] :])
    positions = expected_positions(total, threshold, ties)
    assert indices[: step[1]].tolist() == positions
    assert same_bits(moved[: step[1]].view(dtype), total[positions])
    total[positions] = 0
    assert same_bits(residual, total)
