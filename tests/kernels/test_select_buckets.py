import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels

# Shorter and longer than the values, odd, and multiples of what is done at once.
buckets = st.sampled_from([2, 3, 63, 64, 65, 100, 128, 2**70]) | st.integers(2, 200)


def best_of_buckets(array, k, bucket):
    ranks, positions = [cases.rank_of(number) for number in cases.plain(array)], []
    for begin in range(0, len(ranks), bucket):
        members = [p for p in range(begin, min(begin + bucket, len(ranks))) if ranks[p] != (0, 0)]
        best_first = sorted(members, key=lambda p: ranks[p], reverse=True)  # stable: low index first
        positions += sorted(best_first[:k])
    return positions


def dense_sum(a, b):
    wide = np.float32 if a.dtype.itemsize == 2 else a.dtype
    with np.errstate(all="ignore"):
        return (a.astype(wide) + b.astype(wide)).astype(a.dtype)


@cases.each_dtype
@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts, bucket=buckets)
@cases.on_every_isa
def test_the_largest_of_each_bucket_are_taken(isa, dtype, data, index_dtype, shift, bucket):
    x = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    k = data.draw(st.integers(1, min(bucket - 1, 70)))
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        indices, chosen = kernels.select_buckets(x, k, bucket, index_dtype=index_dtype)
    positions = best_of_buckets(x, k, bucket)
    assert indices.dtype == index_dtype
    assert indices.tolist() == positions
    assert cases.same_bits(chosen, x[positions])


@cases.each_dtype
@given(data=st.data(), index_dtype=cases.index_dtypes, shift=cases.shifts, bucket=buckets)
@cases.on_every_isa
def test_what_is_taken_and_what_stays_is_the_sum(isa, dtype, data, index_dtype, shift, bucket):
    gradient = cases.frozen(cases.misaligned(data.draw(cases.values(dtype)), shift))
    before = data.draw(cases.values(dtype, len(gradient)))
    residual = cases.misaligned(before, 15 - shift)
    total = dense_sum(before, gradient)
    k = data.draw(st.integers(1, min(bucket - 1, 70)))
    with kernels.use_isa(isa), cases.canaries_around_outputs():
        entries = kernels.accumulate_select_buckets(residual, gradient, k, bucket, index_dtype=index_dtype)
    assert entries[0].dtype == index_dtype
    cases.assert_moved_out(residual, 15 - shift, entries, total, best_of_buckets(total, k, bucket))


RNG = np.random.default_rng(6)
N = 5 * 512 + 77
DISTRIBUTIONS = {
    "normal": RNG.standard_normal(N) * 1000,
    "equal": np.full(N, -3),
    "two magnitudes": np.where(RNG.random(N) < 0.02, 5, -7),
    "few large ones": np.where(RNG.random(N) < 0.02, 7, -5),
    "mostly zero": np.where(RNG.random(N) < 0.005, RNG.integers(1, 100, N), 0),
    "zero": np.zeros(N),
    "ascending": np.arange(N),
    "descending": np.arange(N)[::-1],
    "large ones together": np.where(np.arange(N) % 512 < 40, 1000 + np.arange(N) % 7, np.arange(N) % 5),
    "large ones far apart": np.where(np.arange(N) % 32 == 5, 100 + np.arange(N) // 32 % 50, np.arange(N) % 5),
}


@cases.each_dtype
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("k", [1, 4, 8, 31, 33, 200, 511])
def test_buckets_of_512_have_exact_answers(dtype, name, k):
    x = DISTRIBUTIONS[name].astype(dtype)
    positions = best_of_buckets(x, k, 512)
    for isa in kernels.available_isas():
        residual = x.copy()
        with kernels.use_isa(isa), cases.canaries_around_outputs():
            indices, chosen = kernels.select_buckets(x, k)
            moved_indices, moved = kernels.accumulate_select_buckets(residual, np.zeros_like(x), k)
        assert indices.tolist() == moved_indices.tolist() == positions, isa
        assert cases.same_bits(chosen, x[positions]), isa
        assert cases.same_bits(moved, chosen), isa
        assert np.array_equal(np.flatnonzero(residual), np.setdiff1d(np.flatnonzero(x), positions)), isa


@cases.each_isa
def test_nan_is_larger_than_infinity_and_the_first_nan_wins(isa):
    x = np.ones(512, np.float32)
    x[[100, 300, 400]] = [np.inf, -np.nan, np.nan]
    x.view(np.uint32)[300] += 1  # another payload
    with kernels.use_isa(isa):
        assert kernels.select_buckets(x, 1)[0].tolist() == [300]
        assert kernels.select_buckets(x, 3)[0].tolist() == [100, 300, 400]
        assert kernels.select_buckets(x, 4)[0].tolist() == [0, 100, 300, 400]


@cases.each_isa
def test_a_residual_may_be_its_own_gradient_in_buckets(isa):
    x = np.arange(1, 201, dtype=np.float32)
    with kernels.use_isa(isa):
        indices, moved = kernels.accumulate_select_buckets(x, x, 2, 100)
    assert indices.tolist() == [98, 99, 198, 199]
    assert moved.tolist() == [198, 200, 398, 400]
    assert x[:3].tolist() == [2, 4, 6]


def test_k_that_is_no_part_of_a_bucket_is_named():
    with pytest.raises(ValueError, match="k is 8, a bucket has 8 values"):
        kernels.select_buckets(np.ones(100, np.float32), 8, 8)
