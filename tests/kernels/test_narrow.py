"""float32 to the half types and back, held against the casts of numpy and ml_dtypes."""

import kernel_cases as cases
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from sparsewire import kernels
from sparsewire.kernels import _compiled

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
each_half = pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
float32 = np.dtype(np.float32)


def all_numbers(dtype):
    return np.arange(2**16, dtype=np.uint16).view(dtype)


def cast(array, dtype):
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def finite_steps(dtype):
    """The numbers from zero up to the largest, as float64, which holds what lies halfway between two."""
    bits = np.arange(int(cast(np.array(np.inf), dtype).view(np.uint16)), dtype=np.uint16)
    return bits.view(dtype).astype(np.float64)


@cases.each_isa
@each_half
def test_every_number_widens_exactly_and_comes_back(isa, dtype):
    numbers = cases.frozen(all_numbers(dtype))
    with kernels.use_isa(isa):
        wide = kernels.widen(numbers)
        back = kernels.narrow(wide, dtype)
    assert cases.same_bits(wide, cast(numbers, np.float32))
    assert cases.same_bits(back, numbers)


@cases.each_isa
@each_half
def test_halfway_cases_go_to_the_even_neighbour_and_all_others_to_the_nearest(isa, dtype):
    steps = finite_steps(dtype)
    halfway = ((steps[:-1] + steps[1:]) / 2).astype(np.float32)
    lower = np.arange(len(halfway), dtype=np.uint16)
    below, above = np.nextafter(halfway, np.float32(0)), np.nextafter(halfway, np.float32(np.inf))
    with kernels.use_isa(isa):
        for sign, sign_bit in ((1, 0), (-1, 1 << 15)):
            narrow = [
                kernels.narrow(np.float32(sign) * x, dtype).view(np.uint16) for x in (below, halfway, above)
            ]
            assert np.array_equal(narrow[0], lower | sign_bit)
            assert np.array_equal(narrow[1], lower + lower % 2 | sign_bit)
            assert np.array_equal(narrow[2], lower + 1 | sign_bit)


@cases.each_isa
@each_half
def test_what_is_too_large_becomes_infinite(isa, dtype):
    largest, second = (float(x) for x in finite_steps(dtype)[:-3:-1])
    limit = np.float32(largest + (largest - second) / 2)  # would round to the even number after the largest
    x = np.array([limit, np.nextafter(limit, np.float32(0)), 3.4e38, np.inf, -limit, -np.inf], np.float32)
    with kernels.use_isa(isa):
        narrow = kernels.narrow(x, dtype).astype(np.float64)
    assert narrow.tolist() == [np.inf, largest, np.inf, np.inf, -np.inf, -np.inf]


@each_half
@given(x=cases.values(float32), shift=cases.shifts)
@cases.on_every_isa
def test_any_bits_narrow_as_the_cast_does(isa, dtype, x, shift):
    with kernels.use_isa(isa):
        narrow = kernels.narrow(cases.frozen(cases.misaligned(x, shift)), dtype)
        wide = kernels.widen(cases.misaligned(narrow, shift))
    assert cases.same_bits(narrow, cast(x, dtype))
    assert cases.same_bits(wide, cast(cast(x, dtype), np.float32))


@pytest.mark.parametrize("isa", kernels.available_isas()[1:])
@each_half
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 31])
def test_nothing_is_written_outside_the_output(isa, dtype, n):
    narrow, wide = np.full(n + 2, 7, dtype), np.full(n + 2, 7, np.float32)
    with kernels.use_isa(isa):
        _compiled.narrow(np.ones(n, np.float32), narrow[1:-1])
        _compiled.widen(np.ones(n, dtype), wide[1:-1])
    assert narrow.astype(int).tolist() == wide.astype(int).tolist() == [7] + [1] * n + [7]


@pytest.mark.parametrize("isa", kernels.available_isas()[1:])
def test_avx2_serves_avx512_too(isa):
    with kernels.use_isa(isa):
        half = kernels.narrow(np.ones(8, np.float32), np.float16)
        assert _compiled.last_isa() == {"avx512": "avx2"}.get(isa, isa)
        kernels.widen(half)
        assert _compiled.last_isa() == {"avx512": "avx2"}.get(isa, isa)
