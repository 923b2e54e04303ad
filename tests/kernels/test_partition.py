import kernel_cases as cases
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels


@cases.each_dtype
@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts, count=st.integers(1, 40))
@cases.on_every_isa
def test_the_largest_and_the_others_are_all_entries_in_order(isa, dtype, data, index_dtype, shift, count):
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype, count)), shift))
    indices = cases.frozen(cases.misaligned(np.arange(7, 7 + 3 * count, 3).astype(index_dtype), 15 - shift))
    k = data.draw(st.integers(1, count))
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        threshold, ties = kernels.threshold_for_k(x, k)
        (large, large_values), (rest, rest_values) = kernels.partition(indices, x, threshold, ties)
        positions, chosen = kernels.select(x, threshold, ties)
    assert large.dtype == rest.dtype == index_dtype
    assert len(large) == k
    assert np.array_equal(large, indices[positions])
    assert cases.same_bits(large_values, chosen)
    others = np.setdiff1d(np.arange(count), positions)
    assert np.array_equal(rest, indices[others])
    assert cases.same_bits(rest_values, x[others])


@cases.each_isa
def test_nothing_exceeds_nan_and_all_that_is_not_zero_exceeds_zero(isa):
    indices, x = np.arange(4, dtype=np.uint32), np.array([0, 1, np.inf, np.nan], np.float32)
    with kernels.use_isa(isa):
        assert len(kernels.partition(indices, x, np.nan)[0][0]) == 0
        assert kernels.partition(indices, x, 0)[0][0].tolist() == [1, 2, 3]
        assert [len(run[0]) for run in kernels.partition(indices[:0], x[:0], 0)] == [0, 0]
