"""What compressors select from: every pass gives the same, first or later, and a sample writes nothing."""

import numpy as np
import pytest
from compressor_cases import DTYPES, added, bits, values

import sparsewire.compress as swc

# What a source answers, as a tuple of arrays.
ANSWERS = {
    "take": lambda source: source.take(2),
    "take ties": lambda source: source.take(2, 3),
    "take at": lambda source: (source.take_at(np.array([0, 3, 99], np.uint32)),),
    "buckets": lambda source: source.take_buckets(2, 16),
    "norms": lambda source: (source.block_norms(8),),
    "array": lambda source: (source.array().copy(),),
    "sample": lambda source: (source.sample(),),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("question", ANSWERS)
def test_first_and_later_passes_and_plain_values_give_the_same(question, dtype):
    start, gradient = values("tied", 100, dtype, 1), values("tied", 100, dtype, 2)
    first, later = (swc.Accumulated(start.copy(), gradient) for _ in range(2))
    later.array()
    expected = ANSWERS[question](swc.Values(added(start, gradient)))
    for source in (first, later):
        for got, wanted in zip(ANSWERS[question](source), expected, strict=True):
            assert got.dtype == wanted.dtype
            assert np.array_equal(got, wanted)
    assert np.array_equal(bits(first.array()), bits(later.array()))


def test_a_gradient_is_added_once():
    residual = np.ones(4, np.float32)
    source = swc.Accumulated(residual, np.ones(4, np.float32))
    source.put_back(*source.take(1))
    source.put_back(*source.take(1))
    assert source.array().tolist() == residual.tolist() == [2, 2, 2, 2]


def test_adding_a_gradient_takes_nothing_out_however_large_it_is():
    for dtype in ("float32", "int32"):
        extreme = [np.nan, np.inf, 0] if dtype == "float32" else [-(2**31), 2**31 - 1, 0]
        source = swc.Accumulated(np.zeros(3, dtype), np.array(extreme, dtype))
        assert np.array_equal(source.array(), np.array(extreme, dtype), equal_nan=dtype == "float32")


@pytest.mark.parametrize("length", [100, 65_535, 131_071, 200_000, 1 << 18])
def test_a_sample_is_of_the_values_after_accumulation(length):
    residual, gradient = np.arange(length, dtype=np.float64), np.full(length, 0.5)
    source = swc.Accumulated(residual, gradient)
    sample = source.sample()
    assert np.array_equal(residual, np.arange(length))
    assert min(length, 1 << 16) * 0.99 <= len(sample) <= 2 << 16
    assert np.isin(sample, np.arange(length) + 0.5).all()
    source.array()
    assert np.array_equal(source.sample(), sample)


def test_a_sample_of_a_long_vector_is_every_64th_line():
    assert len(swc.Values(np.zeros(1 << 23, np.float16)).sample()) == 1 << 17


def test_a_sample_of_a_matrix_has_all_its_columns():
    columns = np.tile(np.arange(1024, dtype=np.float32), 4096)
    counts = np.bincount(swc.Values(columns).sample().astype(int), minlength=1024)
    assert counts.min() > 0.9 * counts.mean()


@pytest.mark.parametrize("density", [1e-4, 1e-3, 1e-2, 0.1, 1.0])
def test_warm_up_falls_by_the_same_factor_every_step(density):
    warmup = swc.Warmup(density, steps=5, start=0.25)
    seen = np.array([warmup(step) for step in range(8)])
    assert seen[0] == 0.25
    assert np.allclose(seen[1:6] / seen[:5], (density / 0.25) ** 0.2)
    assert (seen[5:] == density).all()
