import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels
from sparsewire.kernels import _compiled, magnitude

FLOATS = [dtype for dtype in cases.DTYPES if dtype.kind != "i"]
each_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
X = np.ones(8, np.float32)


def wide(array):
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


def dense_sum(a, b):
    with np.errstate(all="ignore"):
        return (wide(a) + wide(b)).astype(a.dtype)


def scaled(velocity, momentum):
    factor = np.full(len(velocity), momentum).astype(velocity.dtype)
    with np.errstate(all="ignore"):
        return (wide(velocity) * wide(factor)).astype(velocity.dtype)


@cases.each_dtype
@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts, ties=st.integers(0, 5))
@cases.on_every_isa
def test_what_is_moved_and_what_stays_is_the_sum(isa, dtype, data, index_dtype, shift, ties):
    gradient = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    before = data.draw(cases.values(dtype, len(gradient)))
    residual = cases.misaligned(before, 15 - shift)
    total = dense_sum(before, gradient)
    threshold = data.draw(cases.thresholds(total))
    with kernels.use_isa(isa):
        entries = kernels.accumulate_select(residual, gradient, threshold, ties, index_dtype=index_dtype)
    assert entries[0].dtype == index_dtype
    cases.assert_moved_out(
        residual, 15 - shift, entries, total, cases.expected_positions(total, threshold, ties)
    )


@each_float
@given(data=st.data(), shift=cases.shifts, ties=st.integers(0, 5), momentum=st.sampled_from([0.0, 0.5, 0.9]))
@cases.on_every_isa
def test_a_velocity_moves_on_and_is_added_in_place_of_the_gradient(isa, dtype, data, shift, ties, momentum):
    gradient = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    before = data.draw(cases.values(dtype, len(gradient)))
    velocity_before = data.draw(cases.values(dtype, len(gradient)))
    residual, velocity = cases.misaligned(before, 15 - shift), cases.misaligned(velocity_before, 7)
    velocity_after = dense_sum(scaled(velocity_before, momentum), gradient)
    total = dense_sum(before, velocity_after)
    threshold = data.draw(cases.thresholds(total))
    with kernels.use_isa(isa):
        entries = kernels.accumulate_select(
            residual, gradient, threshold, ties, velocity=velocity, momentum=momentum
        )
    cases.assert_moved_out(
        residual, 15 - shift, entries, total, cases.expected_positions(total, threshold, ties)
    )
    assert cases.same_bits(velocity, velocity_after)
    assert not velocity.base[:7].any()
    assert not velocity.base[7 + len(velocity) :].any()


@cases.each_isa
@each_float
def test_the_product_with_the_momentum_is_rounded_before_the_sum(isa, dtype):
    """A fused multiply-add would leave what rounding the product has cut off."""
    velocity = np.random.default_rng(3).standard_normal(203).astype(dtype)
    gradient = -scaled(velocity, 0.9)
    with kernels.use_isa(isa):
        kernels.accumulate_select(np.zeros_like(velocity), gradient, 1, velocity=velocity, momentum=0.9)
    assert not velocity.any()


@cases.each_isa
@cases.each_dtype
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


@cases.each_isa
@each_float
def test_a_velocity_moves_on_once_however_often_the_output_grows(isa, dtype):
    gradient = np.where(np.random.default_rng(4).random(70_001) < 0.3, 50, 2).astype(dtype)
    residual, velocity = np.ones_like(gradient), np.full_like(gradient, 4)
    with kernels.use_isa(isa):
        indices, moved = kernels.accumulate_select(residual, gradient, 10, velocity=velocity, momentum=0.5)
    assert np.array_equal(indices, np.flatnonzero(gradient == 50))
    assert np.all(moved == 53)
    assert np.array_equal(velocity, gradient + gradient.dtype.type(2))


@cases.each_isa
def test_a_residual_may_be_its_own_gradient(isa):
    x = np.arange(200, dtype=np.float32)
    with kernels.use_isa(isa):
        indices, moved = kernels.accumulate_select(x, x, 300)
    assert indices.tolist() == list(range(151, 200))
    assert moved.tolist() == [2.0 * i for i in range(151, 200)]


@pytest.mark.parametrize("isa", kernels.available_isas()[1:])
@cases.each_dtype
@given(data=st.data(), ties=st.integers(0, 70))
def test_the_primitive_touches_nothing_beyond_its_capacity(isa, dtype, data, ties):
    gradient = data.draw(cases.values(dtype))
    before = data.draw(cases.values(dtype, len(gradient)))
    velocity_before = velocity_after = data.draw(cases.values(dtype, len(gradient)))
    has_velocity = dtype in FLOATS and data.draw(st.booleans())
    if has_velocity:
        velocity_after = dense_sum(scaled(velocity_before, 0.5), gradient)
    total = dense_sum(before, velocity_after if has_velocity else gradient)
    threshold = data.draw(cases.thresholds(total))
    bits, left = magnitude.to_bits(threshold, ties, dtype)
    raw = np.dtype(np.uint16) if dtype.kind not in "fi" else dtype
    residual, indices, moved = before.copy(), np.full(300, 77, np.uint32), np.full(300, 77, raw)
    velocity, step = velocity_before.copy(), (0, 0, left)
    momentum = (velocity.view(raw), 0.5) if has_velocity else (None, 0.0)
    with kernels.use_isa(isa):
        while step[0] < len(gradient):
            capacity = step[1] + data.draw(st.sampled_from([1, 5, 64, 100]))
            step = _compiled.accumulate_select(
                residual.view(raw),
                gradient.view(raw),
                bits,
                indices[:capacity],
                moved[:capacity],
                step,
                *momentum,
            )
            assert step[0] == len(gradient) or step[1] == capacity
            assert np.all(indices[capacity:] == 77)
            assert np.all(moved[capacity:] == 77)
            assert cases.same_bits(residual[step[0] :], before[step[0] :])
            assert cases.same_bits(velocity[step[0] :], velocity_before[step[0] :])
    positions = cases.expected_positions(total, threshold, ties)
    assert indices[: step[1]].tolist() == positions
    assert cases.same_bits(moved[: step[1]].view(dtype), total[positions])
    total[positions] = 0
    assert cases.same_bits(residual, total)
    assert cases.same_bits(velocity, velocity_after)


WRONG_VELOCITIES = {
    "of another dtype": (X, X.astype(np.float64), TypeError),
    "of integers": (X.astype(np.int32), X.astype(np.int32), TypeError),
    "strided": (X, np.ones(16, np.float32)[::2], TypeError),
    "short": (X, X[:4], ValueError),
    "read-only": (X, cases.frozen(X.copy()), ValueError),
}


@cases.each_isa
@pytest.mark.parametrize("name", WRONG_VELOCITIES)
def test_a_wrong_velocity_is_refused_before_anything_is_added(isa, name):
    gradient, velocity, error = WRONG_VELOCITIES[name]
    residual = gradient.copy()
    with kernels.use_isa(isa), pytest.raises(error):
        kernels.accumulate_select(residual, gradient, 1, velocity=velocity, momentum=0.5)
    assert np.array_equal(residual, gradient)
