import math

import kernel_cases as cases
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels


@cases.each_dtype
@given(data=st.data(), shift=cases.shifts)
@cases.on_every_isa
def test_exactly_the_k_largest_are_selected(isa, dtype, data, shift):
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype, st.integers(1, cases.LONGEST))), shift))
    k = data.draw(st.integers(1, len(x)))
    with kernels.use_isa(isa):
        threshold, ties = kernels.threshold_for_k(x, k)
        indices, _ = kernels.select(x, threshold, ties)
    numbers = cases.plain(x)
    best_first = sorted(
        range(len(x)), key=lambda i: cases.rank_of(numbers[i]), reverse=True
    )  # stable: low index first
    assert cases.rank_of(threshold) == cases.rank_of(numbers[best_first[k - 1]])
    assert 1 <= ties <= k
    assert indices.tolist() == sorted(best_first[:k])


RNG = np.random.default_rng(5)
N = 40_000  # long enough for the histogram to be refined more than once
DISTRIBUTIONS = {
    "normal": RNG.standard_normal(N) * 1000,
    "equal": np.full(N, -3),
    "two magnitudes": np.where(RNG.random(N) < 0.3, 5, -7),
    "mostly zero": np.where(RNG.random(N) < 0.001, RNG.integers(1, 100, N), 0),
    "zero": np.zeros(N),
    "ascending": np.arange(N),
    "descending": np.arange(N)[::-1],
    "narrow": 1000 + RNG.integers(0, 3, N),
    "wide": np.exp(RNG.uniform(-8, 8, N)),
}


@cases.each_dtype
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("k", [1, 400, N // 2, N])
def test_long_vectors_have_exact_thresholds(dtype, name, k):
    x = DISTRIBUTIONS[name].astype(dtype)
    magnitudes = np.sort(np.abs(x.astype(np.float64)))[::-1]
    expected = magnitudes[k - 1], k - np.count_nonzero(magnitudes > magnitudes[k - 1])
    for isa in kernels.available_isas():
        with kernels.use_isa(isa):
            assert kernels.threshold_for_k(x, k) == expected, isa


@cases.each_isa
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("k", "expected"), [(10, math.nan), (30, math.nan), (31, math.inf), (50, math.inf), (51, 1.0)]
)
def test_nan_is_larger_than_infinity(isa, dtype, k, expected):
    x = np.ones(N).astype(dtype)
    x[100:3100:100] = math.nan
    x[101:2101:100] = -math.inf
    with kernels.use_isa(isa):
        threshold, ties = kernels.threshold_for_k(x, k)
        indices, chosen = kernels.select(x, threshold, ties)
    assert cases.rank_of(threshold) == cases.rank_of(expected)
    assert ties == {10: 10, 30: 30, 31: 1, 50: 20, 51: 1}[k]
    assert len(indices) == k
    assert np.count_nonzero(chosen != chosen) == min(k, 30)


@cases.each_isa
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_most_negative_integer_is_the_largest_magnitude(isa, dtype):
    low = np.iinfo(dtype).min
    x = np.arange(N).astype(dtype)
    x[7] = low
    with kernels.use_isa(isa):
        assert kernels.threshold_for_k(x, 1) == (-low, 1)
        assert kernels.select(x, -low, 1)[0].tolist() == [7]


@pytest.mark.parametrize("k", [0, -1, 4])
def test_k_out_of_range_names_both_numbers(k):
    with pytest.raises(ValueError, match=f"k is {k}, there are 3 values"):
        kernels.threshold_for_k(np.ones(3, np.float32), k)
