import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

# From few numbers, so that many are in both runs, and the last one that the dtype holds.
supports_of_few = st.sets(st.integers(0, 40) | st.integers(2**32 - 3, 2**32 - 1))


@cases.each_dtype
@given(
    data=st.data(),
    index_dtype=cases.index_dtypes,
    shift=cases.shifts,
    chosen=supports_of_few,
    left_out=supports_of_few,
)
@cases.on_every_isa
def test_what_is_not_among_the_others_is_kept_in_order(
    isa, dtype, data, index_dtype, shift, chosen, left_out
):
    indices = cases.frozen(cases.misaligned(np.array(sorted(chosen), index_dtype), shift))
    others = cases.frozen(cases.misaligned(np.array(sorted(left_out), index_dtype), 15 - shift))
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype, len(chosen))), shift))
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        kept, kept_values = kernels.without(indices, x, others)
    assert kept.dtype == index_dtype
    assert kept.tolist() == sorted(chosen - left_out)
    assert cases.same_bits(kept_values, x[[p for p, i in enumerate(sorted(chosen)) if i not in left_out]])


@cases.each_isa
@pytest.mark.parametrize("step", [1, 2, 3, 50])
def test_a_part_of_a_long_run_can_be_left_out(isa, step):
    indices = np.arange(0, 300_000, 3, dtype=np.uint32)
    x = np.arange(len(indices), dtype=np.float32)
    with kernels.use_isa(isa):
        kept, kept_values = kernels.without(indices, x, indices[::step].copy())
    is_kept = np.arange(len(indices)) % step != 0
    assert np.array_equal(kept, indices[is_kept])
    assert np.array_equal(kept_values, x[is_kept])


@cases.each_isa
def test_the_result_shares_no_memory_with_the_run(isa):
    indices, x = np.arange(9, dtype=np.uint32), np.ones(9, np.float32)
    with kernels.use_isa(isa):
        kept, kept_values = kernels.without(indices, x, indices[:0])
    assert not np.shares_memory(kept, indices)
    assert not np.shares_memory(kept_values, x)
