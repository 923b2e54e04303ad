import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import DTYPES, each_dtype, values

from sparsewire.kernels import magnitude


@each_dtype
@given(data=st.data())
def test_bits_become_a_number_and_the_same_bits_again(dtype, data):
    for bits in magnitude.magnitudes(data.draw(values(dtype, 5))).tolist():
        assert magnitude.to_bits(magnitude.from_bits(bits, dtype), 3, dtype) == (bits, 3)


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=lambda dtype: dtype.name)
@given(threshold=st.floats(0, allow_infinity=False))
def test_a_threshold_between_two_numbers_becomes_the_lower_one_without_ties(dtype, threshold):
    bits, ties = magnitude.to_bits(threshold, 1, dtype)
    lower = magnitude.from_bits(bits, dtype)
    assert lower <= threshold < magnitude.from_bits(bits + 1, dtype)
    assert ties == (lower == threshold)


def test_integer_thresholds_are_exact_beyond_float_precision():
    assert magnitude.to_bits(2**53 + 1, 1, np.dtype(np.int64)) == (2**53 + 1, 1)
    assert magnitude.to_bits(2.5, 1, np.dtype(np.int64)) == (2, 0)
    assert magnitude.to_bits(math.inf, 1, np.dtype(np.int32)) == (2**31, 0)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("threshold", [-1, -0.5, -math.inf])
def test_negative_thresholds_are_refused(dtype, threshold):
    with pytest.raises(ValueError, match="must be a magnitude"):
        magnitude.to_bits(threshold, 0, np.dtype(dtype))


def test_nan_is_no_threshold_for_integers_and_ties_are_not_negative():
    with pytest.raises(ValueError, match="must be a magnitude"):
        magnitude.to_bits(math.nan, 0, np.dtype("int32"))
    with pytest.raises(ValueError, match="ties must not be negative"):
        magnitude.to_bits(1.0, -1, np.dtype("float32"))
