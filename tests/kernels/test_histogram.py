import math
from collections import Counter
from fractions import Fraction

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels
from sparsewire.kernels import _compiled, magnitude


def as_float32(size):
    """A magnitude rounded to float32 in exact arithmetic, ties to even."""
    if size == 0 or size == math.inf:
        return size
    exponent = max(math.frexp(size)[1] - 1, -126)
    unit = Fraction(2) ** (exponent - 23)
    rounded = round(Fraction(size) / unit) * unit
    return math.inf if rounded >= 2**128 else float(rounded)


def class_of(number):
    if number != number:
        return 4095
    size = as_float32(abs(number))
    if size == math.inf:
        return 255 * 16
    if size < 2.0**-126:  # there the classes are evenly spaced
        return math.floor(size * 2.0**130)
    fraction, exponent = math.frexp(size)
    return (exponent + 126) * 16 + math.floor((2 * fraction - 1) * 16)


@cases.each_dtype
@given(data=st.data(), shift=cases.shifts)
@cases.on_every_isa
def test_each_value_is_counted_in_its_class(isa, dtype, data, shift):
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    with kernels.use_isa(isa):
        counts = kernels.histogram(x)
    assert counts.dtype == np.int64
    assert len(counts) == 4096
    found = {int(c): int(counts[c]) for c in np.flatnonzero(counts)}
    assert found == Counter(class_of(number) for number in cases.plain(x))


@cases.each_isa
@cases.each_dtype
@pytest.mark.parametrize("n", [1023, 1024, 1025, 5003])
def test_long_arrays_of_one_value_are_counted_in_one_class(isa, dtype, n):
    for value in cases.awkward(dtype):
        x = np.full(n, value, dtype)
        with kernels.use_isa(isa):
            assert kernels.histogram(x)[class_of(cases.plain(x[:1])[0])] == n


@cases.each_isa
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.0 - 2**-30, 2048),  # float32 has nothing between the last number below 2 and 2
        (1 + 1 / 16 - 2**-25, 2033),
        (1 + 1 / 16 - 2**-23, 2032),  # a number of float32
        (1e300, 4080),
        (2.0**128 - 2.0**103, 4080),  # half way to infinity, which is even
        (np.nextafter(2.0**128 - 2.0**103, 0), 4079),
        (1e-300, 0),
    ],
)
def test_doubles_are_rounded_to_float32_first(isa, value, expected):
    with kernels.use_isa(isa):
        assert np.flatnonzero(kernels.histogram(np.array([value, -value]))).tolist() == [expected]


@cases.each_isa
def test_integers_are_rounded_once(isa):
    # Just below the middle of two numbers of float32.  As a float64 it is the middle, which goes up, to even.
    middle = 2**62 + 2**58 - 2**38
    with kernels.use_isa(isa):
        counts = kernels.histogram(np.array([middle - 1, middle, 1 - middle], np.int64))
    assert counts[[3024, 3025]].tolist() == [2, 1]


def test_a_class_begins_at_its_floor():
    floors = np.array([magnitude.class_floor(c) for c in range(4081)], np.float32)
    assert magnitude.classes(floors).tolist() == list(range(4081))
    below = np.nextafter(floors[1:], np.float32(0))
    assert magnitude.classes(below).tolist() == list(range(4080))


@pytest.mark.parametrize("isa", kernels.available_isas()[1:])
def test_the_primitive_writes_all_counts_and_nothing_beyond(isa):
    buffer = np.full(4096 + 2, 77, np.int64)
    with kernels.use_isa(isa):
        _compiled.histogram(np.ones(5, np.float32), buffer[1:-1])
        with pytest.raises(TypeError):
            _compiled.histogram(np.ones(5, np.float32), buffer)
    assert buffer[0] == buffer[-1] == 77
    assert buffer[1:-1].sum() == 5
