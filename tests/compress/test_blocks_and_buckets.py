"""Whole blocks by norm, the largest of every bucket, plain thresholds and normal quantiles, against loops."""

import math

import numpy as np
import pytest
from compressor_cases import largest, values

import sparsewire.compress as swc


def runs(length, width):
    return [range(begin, min(begin + width, length)) for begin in range(0, length, width)]


def chosen(compressor, x):
    entries, _ = compressor.step(x, compressor.init(len(x), x.dtype))
    return entries.indices.tolist()


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 65, 100])
@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["zero", "equal", "tied", "one"])
def test_block_topk_keeps_the_blocks_of_largest_norm(length, density, kind):
    x = values(kind, length, "float32", seed=length)
    blocks = runs(length, 8)
    norms = [math.fsum(float(x[i]) ** 2 for i in block) for block in blocks]
    order = sorted(range(len(blocks)), key=lambda b: (-norms[b], b))[: max(1, int(len(blocks) * density))]
    expected = [i for b in sorted(order) if norms[b] > 0 for i in blocks[b]]
    assert chosen(swc.BlockTopK(density, block=8), x) == expected


@pytest.mark.parametrize("kind", ["zero", "equal", "tied", "normal"])
def test_block_threshold_keeps_the_blocks_above_it(kind):
    x = values(kind, 100, "float64", seed=1)
    expected = [i for block in runs(100, 8) if math.hypot(*x[block]) > 4 for i in block]
    assert chosen(swc.BlockThreshold(4, block=8), x) == expected


def test_a_block_with_a_nan_is_the_largest():
    x = np.array([9, 9, 1, np.nan, 9, 9], np.float32)
    assert chosen(swc.BlockTopK(0.34, block=2), x) == [2, 3]


@pytest.mark.parametrize("density", [0.01, 0.5, 1.0])
def test_block_random_k_keeps_whole_blocks(density):
    x = values("normal", 100, "float32", seed=1)
    kept = chosen(swc.BlockRandomK(density, block=8), x)
    numbers = sorted({i // 8 for i in kept})
    assert len(numbers) == max(1, int(13 * density))
    assert kept == [i for number in numbers for i in runs(100, 8)[number]]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("kind", ["zero", "equal", "tied", "normal", "not-finite"])
def test_bucket_topk_keeps_the_largest_of_every_bucket(length, kind):
    x = values(kind, length, "float32", seed=length)
    expected = [bucket[i] for bucket in runs(length, 16) for i in largest(x[bucket.start : bucket.stop], 3)]
    assert chosen(swc.BucketTopK(k=3, bucket=16), x) == expected


@pytest.mark.parametrize(("value", "expected"), [(0, [1, 2, 3, 4]), (2, [3, 4]), (math.inf, [4]), (1e9, [4])])
def test_threshold_keeps_what_exceeds_it(value, expected):
    assert chosen(swc.Threshold(value), np.array([0, 1, -2, 3, math.nan], np.float32)) == expected


def test_gaussian_k_is_right_for_normal_values_and_corrected_for_others():
    rng = np.random.default_rng(1)
    length, k = 1 << 18, 2621
    gaussian = swc.GaussianK(0.01)
    assert len(chosen(gaussian, rng.standard_normal(length))) == pytest.approx(k, rel=0.1)
    assert k < len(chosen(gaussian, rng.standard_t(3, length))) < 1.3 * k
    assert len(chosen(gaussian, rng.uniform(-1, 1, length))) == 0  # needs more than a factor of 1.02^20


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, length: rng.standard_normal(length),
        lambda rng, length: rng.standard_t(3, length),
        lambda rng, length: rng.laplace(size=length),
    ],
    ids=["normal", "heavy tail", "laplace"],
)
def test_gaussian_k_stays_near_the_density_under_error_feedback(draw, momentum):
    """Without corrections it sends a few percent of k after some steps."""
    rng, length, k = np.random.default_rng(1), 1 << 16, 655
    feedback = swc.ErrorFeedback(swc.GaussianK(0.01), momentum)
    state = feedback.init(length)
    for step in range(60):
        sent, state = feedback.step(draw(rng, length).astype(np.float32), state)
        assert k / 2 <= sent.nnz <= 2 * k, step


def test_gaussian_k_is_not_misled_by_a_value_that_is_not_finite():
    x = np.random.default_rng(1).standard_normal(1 << 16)
    x[[3, 9]] = np.inf, np.nan
    kept = chosen(swc.GaussianK(0.01), x)
    assert {3, 9} <= set(kept)
    assert len(kept) == pytest.approx(655, rel=0.2)


@pytest.mark.parametrize("x", [np.zeros(9), np.full(9, 1e300), np.full(9, np.nan), np.array([np.inf, 1, -1])])
def test_gaussian_k_survives_what_has_no_distribution(x):
    chosen(swc.GaussianK(0.1), x)
