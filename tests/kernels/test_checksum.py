import random

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels


def expected(data, seed):
    """Bit after bit: CRC-64/NVME by its definition."""
    remainder = seed ^ 2**64 - 1
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x9A6C9329AC4BC9B5 if remainder & 1 else 0)
    return remainder ^ 2**64 - 1


@given(content=st.binary(max_size=1500), seed=st.integers(0, 2**64 - 1), shift=cases.shifts)
@cases.on_every_isa
def test_every_version_gives_the_number_of_the_definition(isa, content, seed, shift):
    array = cases.misaligned(np.frombuffer(content, np.uint8), shift)
    with kernels.use_isa(isa):
        assert kernels.checksum(array, seed) == expected(content, seed)


@cases.each_isa
def test_the_number_never_changes(isa):
    # It is on the wire: another machine, or another release, must find the same one.
    with kernels.use_isa(isa):
        assert kernels.checksum(np.arange(1000, dtype="<u4"), seed=7) == 0x17C4E5DCF8370917


@cases.each_isa
def test_the_number_is_the_one_that_the_standard_gives(isa):
    with kernels.use_isa(isa):
        assert kernels.checksum(np.frombuffer(b"123456789", np.uint8)) == 0xAE8B14860A799888


@given(content=st.binary(max_size=1500), cut=st.integers(0, 1500))
@cases.on_every_isa
def test_parts_one_after_the_other_have_the_number_of_the_whole(isa, content, cut):
    whole = np.frombuffer(content, np.uint8)
    with kernels.use_isa(isa):
        first = kernels.checksum(whole[:cut], 5)
        assert kernels.checksum(whole[cut:], first) == kernels.checksum(whole, 5)


# -- faults that must be found, all of them ------------------------------------------------------

DATA = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
RIGHT = kernels.checksum(DATA)


def damaged(bits):
    bad = DATA.copy()
    for bit in bits:
        bad[bit // 8] ^= 1 << bit % 8
    return kernels.checksum(bad)


def test_every_flipped_bit_is_noticed():
    assert all(damaged([bit]) != RIGHT for bit in range(8 * len(DATA)))


def test_two_flipped_bits_are_noticed():
    chance = np.random.default_rng(1)
    pairs = chance.integers(0, 8 * len(DATA), (20_000, 2))
    assert all(damaged(pair) != RIGHT for pair in pairs.tolist() if pair[0] != pair[1])


def test_two_flipped_bits_are_noticed_however_far_apart():
    """x^distance + 1 is no multiple of the polynomial before the distance is 2^64 - 1: it is primitive."""
    x = 1 << 62
    order = 2**64 - 1
    assert power(x, order) == 1 << 63
    for prime in (3, 5, 17, 257, 641, 65537, 6700417):
        assert order % prime == 0
        assert power(x, order // prime) != 1 << 63


def power(base, exponent):
    result = 1 << 63
    while exponent:
        if exponent & 1:
            result = product(result, base)
        base, exponent = product(base, base), exponent >> 1
    return result


def product(a, b):
    total = 0
    for place in range(63, -1, -1):
        total ^= a if b >> place & 1 else 0
        a = a >> 1 ^ (0x9A6C9329AC4BC9B5 if a & 1 else 0)
    return total


def test_every_burst_of_up_to_64_bits_is_noticed():
    chance = random.Random(2)
    for _ in range(20_000):
        width = chance.randrange(2, 65)
        begin = chance.randrange(8 * len(DATA) - width)
        pattern = chance.getrandbits(width) | 1 | 1 << width - 1
        assert damaged([begin + bit for bit in range(width) if pattern >> bit & 1]) != RIGHT


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_stuck_sign_bit_of_one_lane_is_noticed(dtype, stuck, lanes):
    chance = np.random.default_rng(lanes)
    for length in [lanes, 10 * lanes + 1, *chance.integers(lanes, 5000, 30)]:
        values = chance.normal(size=length).astype(dtype)
        bits = values.view(f"u{values.itemsize}").copy()
        sign = bits.dtype.type(1 << 8 * bits.itemsize - 1)
        for lane in range(min(lanes, 4)):
            faulty = bits.copy()
            faulty[lane::lanes] = faulty[lane::lanes] | sign if stuck else faulty[lane::lanes] & ~sign
            if (faulty != bits).any():
                assert kernels.checksum(faulty) != kernels.checksum(bits)


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
