import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

lengths_of_blocks = st.sampled_from([1, 7, 8, 9, 16, 31, 64]) | st.integers(1, 70)


@st.composite
def numbers(draw, length, block):
    """Of some of the blocks, in any order."""
    existing = -(-length // block)
    return draw(st.lists(st.integers(0, existing - 1), unique=True) if existing else st.just([]))


def same_bytes(a, b):
    """NaN keep their payloads: nothing was computed."""
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@cases.each_dtype
@given(data=st.data(), shift=cases.shifts, block=lengths_of_blocks)
@cases.on_every_isa
def test_chosen_blocks_are_gathered_and_zeros_follow_a_shorter_last_one(isa, dtype, data, shift, block):
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype, st.integers(0, 4 * block))), shift))
    chosen = data.draw(numbers(len(x), block))
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        gathered = kernels.gather_blocks(x, cases.frozen(np.array(chosen, np.int64)), block)
    parts = [x[b * block : (b + 1) * block].tobytes().ljust(block * x.itemsize, b"\0") for b in chosen]
    assert gathered.dtype == dtype
    assert gathered.tobytes() == b"".join(parts)


@cases.each_dtype
@given(data=st.data(), shift=cases.shifts, block=lengths_of_blocks)
@cases.on_every_isa
def test_blocks_are_stored_in_their_places_and_nothing_else_changes(isa, dtype, data, shift, block):
    before = data.draw(cases.values(dtype, st.integers(0, 4 * block)))
    chosen = data.draw(numbers(len(before), block))
    new = cases.frozen(cases.misaligned(data.draw(cases.values(dtype, len(chosen) * block)), shift))
    x = cases.misaligned(before, 15 - shift)
    with kernels.use_isa(isa):
        kernels.scatter_blocks(x, cases.frozen(np.array(chosen, np.int64)), block, new)
    expected = before.view(cases.unsigned(dtype)).tolist()
    for i, number in enumerate(chosen):
        room = len(expected[number * block : (number + 1) * block])
        expected[number * block : (number + 1) * block] = new.view(cases.unsigned(dtype))[i * block :][
            :room
        ].tolist()
    assert x.view(cases.unsigned(dtype)).tolist() == expected
    assert not x.base[: 15 - shift].any()
    assert not x.base[15 - shift + len(x) :].any()


@cases.each_isa
@cases.each_dtype
@pytest.mark.parametrize("block", [1, 64, 100, 1000, 3000])
def test_what_was_gathered_goes_back_where_it_was(isa, dtype, block):
    x = (np.arange(2050) % 100).astype(dtype)
    chosen = np.arange(-(-len(x) // block))[::-1].copy()
    back = np.ones_like(x)
    with kernels.use_isa(isa):
        kernels.scatter_blocks(back, chosen, block, kernels.gather_blocks(x, chosen, block))
    assert same_bytes(back, x)


@cases.each_isa
def test_blocks_may_be_named_twice(isa):
    x, chosen = np.array([1, 2, 3, 4], np.int32), np.array([1, 0, 1])
    with kernels.use_isa(isa):
        assert kernels.gather_blocks(x, chosen, 2).tolist() == [3, 4, 1, 2, 3, 4]
        kernels.scatter_blocks(x, chosen, 2, np.array([5, 5, 6, 6, 7, 7], np.int32))
    assert x.tolist() == [6, 6, 7, 7]


@cases.each_isa
@pytest.mark.parametrize("chosen", [[-1], [0, 3], [3, 0], [2**62], [-(2**63), 1]])
def test_blocks_that_do_not_exist_are_refused_before_anything_is_stored(isa, chosen):
    x = np.zeros(11, np.float32)  # two blocks of four, and one of three
    with kernels.use_isa(isa):
        with pytest.raises(ValueError, match="there are 3 blocks, not those from"):
            kernels.gather_blocks(x, np.array(chosen), 4)
        with pytest.raises(ValueError, match="there are 3 blocks, not those from"):
            kernels.scatter_blocks(x, np.array(chosen), 4, np.ones(4 * len(chosen), np.float32))
    assert not x.any()


@cases.each_isa
@pytest.mark.parametrize("block", [1, 2**70])
def test_no_blocks_move_nothing(isa, block):
    x, none = np.ones(3, np.float32), np.array([], np.int64)
    with kernels.use_isa(isa):
        for array in (x, x[:0]):
            assert same_bytes(kernels.gather_blocks(array, none, block), x[:0])
            kernels.scatter_blocks(array, none, block, x[:0])
    assert x.tolist() == [1, 1, 1]
