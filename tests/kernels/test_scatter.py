import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels


@cases.each_dtype
@pytest.mark.parametrize("name", ["scatter", "scatter_add", "spread"])
@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts)
@cases.on_every_isa
def test_entries_arrive_where_they_belong(isa, dtype, name, data, index_dtype, shift):
    before = data.draw(cases.values(dtype, st.integers(0, 100)))
    positions = sorted(data.draw(st.sets(st.integers(0, len(before) - 1)) if len(before) else st.just(set())))
    offset = data.draw(st.sampled_from([0, 1, 2**32 - 100]))
    indices = cases.frozen(cases.misaligned(np.array([offset + p for p in positions], index_dtype), shift))
    new = cases.frozen(cases.misaligned(data.draw(cases.values(dtype, len(positions))), shift))
    dense = cases.misaligned(before, 15 - shift)
    with kernels.use_isa(isa):
        getattr(kernels, name)(dense, indices, new, offset)
    wide = np.float32 if dtype.itemsize == 2 else dtype
    expected = np.zeros_like(before) if name == "spread" else before.copy()
    with np.errstate(all="ignore"):
        for position, value in zip(positions, new, strict=True):
            old = before[position].astype(wide)
            expected[position] = (old + value.astype(wide)).astype(dtype) if name == "scatter_add" else value
    assert cases.same_bits(dense, expected)


@cases.each_isa
@pytest.mark.parametrize("name", ["scatter", "scatter_add", "spread"])
@pytest.mark.parametrize(
    ("indices", "offset"), [([9, 11], 10), ([12, 14], 10), ([13], 10), ([12, 10], 10), ([2**31], 0)]
)
def test_indices_outside_leave_the_dense_range_untouched(isa, name, indices, offset):
    dense = np.zeros(3, np.float32)
    with kernels.use_isa(isa), pytest.raises(ValueError, match="do not lie in the dense range"):
        getattr(kernels, name)(dense, np.array(indices, np.uint32), np.ones(len(indices), np.float32), offset)
    assert not dense.any()


@cases.each_isa
@cases.each_dtype
@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 4097, 20_000])
def test_spreading_zeros_what_is_between_entries_in_every_part(isa, dtype, size):
    indices = np.arange(3, size, 7, np.uint32)
    new = np.ones(len(indices), dtype)
    dense = np.full(size, 9, dtype)
    with kernels.use_isa(isa):
        kernels.spread(dense, indices, new)
    expected = np.zeros(size, dtype)
    expected[3::7] = 1
    assert cases.same_bits(dense, expected)
