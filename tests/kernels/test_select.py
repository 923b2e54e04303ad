import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels
from sparsewire.kernels import _compiled, magnitude


@cases.each_dtype
@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts, ties=st.integers(0, 5))
@cases.on_every_isa
def test_select_takes_what_the_threshold_says(isa, dtype, data, index_dtype, shift, ties):
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    threshold = data.draw(cases.thresholds(x))
    offset = data.draw(st.integers(0, 2**32 - len(x)))
    with kernels.use_isa(isa):
        indices, chosen = kernels.select(x, threshold, ties, offset=offset, index_dtype=index_dtype)
    positions = cases.expected_positions(x, threshold, ties)
    assert indices.dtype == index_dtype
    assert indices.tolist() == [offset + p for p in positions]
    assert cases.same_bits(chosen, x[positions])


@cases.each_dtype
@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts)
@cases.on_every_isa
def test_dense_to_sparse_keeps_all_but_zeros(isa, dtype, data, index_dtype, shift):
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    with kernels.use_isa(isa):
        indices, chosen = kernels.dense_to_sparse(x, offset=7, index_dtype=index_dtype)
    positions = [p for p, v in enumerate(cases.plain(x)) if v != 0]
    assert indices.tolist() == [7 + p for p in positions]
    assert cases.same_bits(chosen, x[positions])


@cases.each_isa
@cases.each_dtype
@pytest.mark.parametrize("density", [0.0, 0.001, 0.1, 0.5, 1.0])
def test_select_grows_its_output(isa, dtype, density):
    rng = np.random.default_rng(3)
    x = np.where(rng.random(70_001) < density, rng.integers(1, 100, 70_001), 0).astype(dtype)
    with kernels.use_isa(isa):
        indices, chosen = kernels.dense_to_sparse(x)
    assert np.array_equal(indices, np.flatnonzero(x != 0))
    assert cases.same_bits(chosen, x[x != 0])
    for array in (indices, chosen):  # most of the memory that stays behind is used
        assert array.base is None or array.base.nbytes <= 2.5 * array.nbytes


@cases.each_isa
def test_indices_reach_the_end_of_their_dtype(isa):
    x = np.ones(100, np.float32)
    with kernels.use_isa(isa):
        narrow, _ = kernels.select(x, 0, offset=2**32 - 100)
        wide, _ = kernels.select(x, 0, offset=2**64 - 100, index_dtype=np.uint64)
    assert narrow[-1] == 2**32 - 1
    assert wide[-1] == 2**64 - 1


@cases.each_isa
def test_an_empty_range_may_lie_behind_the_last_index(isa):
    with kernels.use_isa(isa):
        indices, chosen = kernels.select(np.ones(0, np.float32), 0, offset=2**32)
    assert len(indices) == len(chosen) == 0


def test_an_offset_that_the_index_dtype_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="uint32 cannot hold indices up to 4294967296"):
        kernels.select(np.ones(100, np.float32), 0, offset=2**32 - 99)


compiled_isas = pytest.mark.parametrize("isa", kernels.available_isas()[1:])


@compiled_isas
@cases.each_dtype
@given(data=st.data(), ties=st.integers(0, 70), index_dtype=cases.index_dtypes)
def test_the_primitive_stops_at_its_capacity_and_continues(isa, dtype, data, ties, index_dtype):
    x = data.draw(cases.values(dtype))
    threshold = data.draw(cases.thresholds(x))
    bits, exact_ties = magnitude.to_bits(threshold, ties, dtype)
    raw = x if dtype.kind in "fi" else x.view(np.uint16)
    indices, chosen = np.full(300, 77, index_dtype), np.full(300, 77, raw.dtype)
    position, count, left = step = (0, 0, exact_ties)
    with kernels.use_isa(isa):
        while position < len(x):
            capacity = count + data.draw(st.sampled_from([1, 5, 64, 100]))
            step = _compiled.select(raw, bits, 10, indices[:capacity], chosen[:capacity], step)
            assert position <= step[0]
            position, count, left = step
            assert count <= capacity
            assert position == len(x) or count == capacity
            assert np.all(indices[capacity:] == 77)
            assert np.all(chosen[capacity:] == 77)
    positions = cases.expected_positions(x, threshold, ties)
    assert indices[:count].tolist() == [10 + p for p in positions]
    assert cases.same_bits(
        chosen[:count].view(cases.unsigned(dtype)), x[positions].view(cases.unsigned(dtype))
    )
    assert left <= exact_ties
