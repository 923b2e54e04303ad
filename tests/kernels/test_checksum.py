import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels


def expected(data, seed):
    """Word after word, in Python integers."""
    padded = data + b"\0" * (-len(data) % 64)
    a, b = [0] * 8, [0] * 8
    for word in range(len(padded) // 8):
        lane = word % 8
        a[lane] = (a[lane] + int.from_bytes(padded[8 * word : 8 * word + 8], "little")) % 2**64
        b[lane] = (b[lane] + a[lane]) % 2**64
    number = seed ^ len(data)
    for lane_sum in a + b:
        number = (number ^ lane_sum) * 0x9E3779B97F4A7C15 % 2**64
        number ^= number >> 32
    return number


@given(content=st.binary(max_size=300), seed=st.integers(0, 2**64 - 1), shift=cases.shifts)
@cases.on_every_isa
def test_every_version_gives_the_number_of_the_definition(isa, content, seed, shift):
    array = cases.misaligned(np.frombuffer(content, np.uint8), shift)
    with kernels.use_isa(isa):
        assert kernels.checksum(array, seed) == expected(content, seed)


@cases.each_isa
def test_the_number_never_changes(isa):
    # It is on the wire: another machine, or another release, must find the same one.
    with kernels.use_isa(isa):
        assert kernels.checksum(np.arange(1000, dtype="<u4"), seed=7) == 0xFC4E68C01F570CA6


@given(data=st.binary(min_size=1, max_size=200), flip=st.integers(1, 255), place=st.integers(0, 199))
def test_a_damaged_byte_is_noticed(data, flip, place):
    good = np.frombuffer(data, np.uint8)
    bad = good.copy()
    bad[place % len(bad)] ^= flip
    assert kernels.checksum(good) != kernels.checksum(bad)


def test_length_and_order_count():
    x = np.arange(64, dtype=np.uint64)
    assert kernels.checksum(x[:32]) != kernels.checksum(np.append(x[:32], np.uint64(0)))
    assert kernels.checksum(x) != kernels.checksum(x[::-1].copy())
    assert kernels.checksum(np.roll(x, 8)) != kernels.checksum(x)


@pytest.mark.parametrize("dtype", ["float16", "int64", "bool"])
def test_any_contiguous_array_is_bytes(dtype):
    x = np.arange(24).reshape(4, 6).astype(dtype)
    assert kernels.checksum(x) == expected(x.tobytes(), 0)
    with pytest.raises(TypeError, match="contiguous"):
        kernels.checksum(x[:, ::2])
    with pytest.raises(ValueError, match="64 bits"):
        kernels.checksum(x, 2**64)
