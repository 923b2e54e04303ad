import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels


@given(data=st.data(), index_dtype=cases.index_dtypes)
@cases.on_every_isa
def test_each_cut_counts_the_indices_below_it(isa, data, index_dtype):
    number = st.integers(0, 50) | st.integers(0, np.iinfo(index_dtype).max)
    indices = np.array(sorted(data.draw(st.sets(number, max_size=40))), index_dtype)
    cuts = data.draw(st.lists(number | st.sampled_from([2**32, 2**63, 2**64 - 1]), max_size=10))
    with kernels.use_isa(isa):
        positions = kernels.split_at(indices, cuts)
    assert positions.dtype == np.int64
    assert positions.tolist() == [sum(i < cut for i in indices.tolist()) for cut in cuts]


def test_cuts_are_whole_numbers_and_not_negative():
    indices = np.arange(3, dtype=np.uint32)
    with pytest.raises(ValueError, match="must lie in"):
        kernels.split_at(indices, [0, -1])
    with pytest.raises(TypeError, match="float"):
        kernels.split_at(indices, [0.5])
