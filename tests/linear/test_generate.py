"""Generated data: the same for any number of ranks, with the frequencies, values and labels promised."""

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import LinearSVC

from sparsewire.errors import InputError
from sparsewire.linear.generate import scattered, url_like, webspam_like

BOTH = pytest.mark.parametrize("generate", [url_like, webspam_like])
SMALL = {"features": 5_000, "nonzeros": 40}


@dataclass(frozen=True)
class Published:
    """The figures of a published data set, and the exponent of the law that imitates it."""

    rows: int
    features: int
    nonzeros: int
    exponent: float

    def probabilities(self):
        """The probabilities min(1, (i / scale)^-exponent) of all features; their sum is the mean of a row."""
        weights = np.arange(1, self.features + 1, dtype=np.float32) ** -self.exponent
        places = np.arange(1, self.nonzeros + 1)  # some of them are in every row
        others = weights.sum(dtype=np.float64) - np.cumsum(weights[: self.nonzeros], dtype=np.float64)
        always = np.searchsorted(places + places**self.exponent * others, self.nonzeros, side="right")
        return np.minimum(1, np.float32((self.nonzeros - always) / others[always - 1]) * weights)


PUBLISHED = {
    url_like: Published(2_396_130, 3_231_961, 115, 1.15),
    webspam_like: Published(350_000, 16_609_143, 3_700, 1.2),
}


def seen(probabilities, rows):
    """The mean number of features that occur in at least one of so many rows."""
    below_one = np.minimum(probabilities, np.float32(0.999))
    return -np.expm1(rows * np.log1p(-below_one)).sum(dtype=np.float64)


def same(one, other):
    (data, labels), (other_data, other_labels) = one, other
    return (
        data.shape == other_data.shape
        and data.dtype == other_data.dtype
        and np.array_equal(data.indptr, other_data.indptr)
        and np.array_equal(data.indices, other_data.indices)
        and np.array_equal(data.data, other_data.data)
        and np.array_equal(labels, other_labels)
    )


@BOTH
def test_a_seed_says_everything(generate):
    assert same(generate(200, seed=7, **SMALL), generate(200, seed=7, **SMALL))


@BOTH
def test_another_seed_has_other_rows_and_other_labels(generate):
    (data, labels), (other_data, other_labels) = (generate(200, seed=seed, **SMALL) for seed in (7, 8))
    assert not np.array_equal(data.indices[:100], other_data.indices[:100])
    assert not np.array_equal(labels, other_labels)


@BOTH
@pytest.mark.parametrize(("rows", "size"), [(300, 1), (300, 2), (300, 3), (257, 7), (128, 2), (3, 5), (0, 2)])
def test_parts_together_are_the_whole(generate, rows, size):
    parts = [generate(rows, part=(rank, size), **SMALL) for rank in range(size)]
    assert max(len(labels) for _, labels in parts) - min(len(labels) for _, labels in parts) <= 1
    joined = sp.vstack([data for data, _ in parts], format="csr"), np.concatenate([y for _, y in parts])
    assert same(joined, generate(rows, **SMALL))


@BOTH
def test_more_rows_begin_with_the_fewer(generate):
    data, labels = generate(300, **SMALL)
    assert same((data[:200], labels[:200]), generate(200, **SMALL))


@BOTH
def test_float32_is_float64_rounded(generate):
    data, labels = generate(200, dtype=np.float64, **SMALL)
    assert data.dtype == np.float64
    assert same((data.astype(np.float32), labels), generate(200, dtype=np.float32, **SMALL))


@BOTH
def test_rows_are_sorted_and_within_bounds(generate):
    data, labels = generate(200, **SMALL)
    assert data.shape == (200, 5_000)
    assert isinstance(data, sp.csr_array)
    assert data.indices.dtype == np.int32
    assert labels.shape == (200,)
    assert data.indices.min() >= 0
    assert data.indices.max() < 5_000
    for begin, end in zip(data.indptr[:-1], data.indptr[1:], strict=True):
        assert (np.diff(data.indices[begin:end]) > 0).all()


@BOTH
def test_features_beyond_32_bits_get_indices_of_64(generate):
    data, _ = generate(5, features=2**40, nonzeros=50)
    assert data.indices.dtype == np.int64
    assert 2**38 < data.indices.max() < 2**40


@BOTH
def test_frequencies_of_features_follow_the_law(generate):
    published, rows = PUBLISHED[generate], 300
    probabilities = published.probabilities()
    data, _ = generate(rows)
    frequencies = np.bincount(data.indices, minlength=published.features)
    assert data.shape == (rows, published.features)
    assert data.nnz / rows == pytest.approx(published.nonzeros, rel=0.01)
    assert np.count_nonzero(frequencies) == pytest.approx(seen(probabilities, rows), rel=0.02)
    for share in (0.9, 0.5, 0.2, 0.1):
        often = np.count_nonzero(frequencies >= share * rows)
        assert often == pytest.approx(np.count_nonzero(probabilities >= share), rel=0.15)
    assert np.count_nonzero(frequencies == rows) >= np.count_nonzero(probabilities == 1) > 10
    # A data set of the published size has nearly all features.
    assert seen(probabilities, published.rows) / published.features == pytest.approx(0.97, abs=0.01)


@BOTH
def test_a_few_features_follow_the_law(generate):
    expected = np.arange(1, 6) ** -PUBLISHED[generate].exponent
    expected *= 0.3 / expected.sum()
    data, _ = generate(20_000, features=5, nonzeros=0.3)
    frequencies = np.sort(np.bincount(data.indices, minlength=5))[::-1]
    assert frequencies / 20_000 == pytest.approx(expected, rel=0.1)


def test_popular_features_lie_anywhere():
    data, _ = url_like(300)
    popular = np.flatnonzero(np.bincount(data.indices) >= 3)
    expected = len(popular) / 8
    in_eighths = np.bincount(popular * 8 // data.shape[1], minlength=8)
    assert np.abs(in_eighths - expected).max() < 5 * np.sqrt(expected)
    assert len(np.unique(np.diff(popular))) > 0.8 * len(popular)  # and at no regular distance


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 127, 128, 129, 1000, 2**16, 2**16 + 1])
def test_scattered_numbers_are_a_permutation(length):
    numbers = np.arange(length)
    assert np.array_equal(np.sort(scattered(numbers, length)), numbers)


def test_url_values_are_one_except_for_64_popular_features():
    data, _ = url_like(1000, features=100_000, nonzeros=200)
    values, columns = data.data, data.indices
    assert (values > 0).all()
    assert (values <= 1).all()
    real = np.unique(columns[values < 1])
    assert len(real) == 64
    assert np.bincount(columns)[real].min() > 200
    of_real = values[np.isin(columns, real)]
    assert np.histogram(of_real, 4, (0, 1))[0] / len(of_real) == pytest.approx(0.25, abs=0.02)


def test_webspam_values_are_positive_and_rows_have_norm_one():
    data, _ = webspam_like(200, **SMALL)
    assert (data.data > 0).all()
    assert sp.linalg.norm(data, axis=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("generate", "positive"), [(url_like, 1 / 3), (webspam_like, 0.6)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_are_balanced_as_promised(generate, positive, seed):
    _, labels = generate(2000, seed=seed, features=100_000, nonzeros=100)
    assert set(labels.tolist()) == {-1, 1}
    assert np.mean(labels == 1) == pytest.approx(positive, abs=0.05)


@BOTH
def test_a_linear_model_learns_the_labels_of_a_seed(generate):
    shape = {"features": 20_000, "nonzeros": 60}
    data, labels = generate(15_000, **shape)
    model = LinearSVC(C=0.1 if generate is url_like else 1.0).fit(data[:12_000], labels[:12_000])
    assert model.score(data[12_000:], labels[12_000:]) > 0.9
    assert model.score(*generate(3_000, seed=1, **shape)) < 0.75


def test_memory_is_that_of_the_result_and_little_more():
    tracemalloc.start()
    data, labels = url_like(20_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    result = sum(array.nbytes for array in (data.data, data.indices, data.indptr, labels))
    assert peak < result + 8 * 2**20


@BOTH
def test_no_rows_are_an_empty_matrix(generate):
    data, labels = generate(0)
    assert data.shape == (0, PUBLISHED[generate].features)
    assert data.nnz == len(labels) == 0


@BOTH
@pytest.mark.parametrize("features", [1, 2, 7])
@pytest.mark.parametrize("more", [0, 0.5, 100])
def test_rows_with_more_than_all_features_are_full(generate, features, more):
    data, labels = generate(3, features=features, nonzeros=features + more)
    assert data.shape == (3, features)
    assert (data.toarray() > 0).all()
    assert len(labels) == 3


@BOTH
@pytest.mark.parametrize(
    ("features", "nonzeros"), [(1, 0.5), (2, 1.9), (1_000, 0.01), (1_000, 1), (1_000, 999)]
)
def test_any_mean_can_be_had(generate, features, nonzeros):
    data, labels = generate(1000, features=features, nonzeros=nonzeros)
    deviation = np.sqrt(nonzeros / 1000)
    assert data.nnz / 1000 == pytest.approx(nonzeros, abs=5 * deviation)
    assert len(labels) == 1000


@BOTH
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": -1}, "rows is -1"),
        ({"rows": 2.5}, r"rows is 2\.5"),
        ({"features": 0}, "features is 0; it must be a number between 1 and"),
        ({"features": 1e6}, "features is 1000000"),
        ({"nonzeros": 0}, "nonzeros is 0; it must be a positive number"),
        ({"nonzeros": float("nan")}, "nonzeros is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"part": (2, 2)}, r"part is \(2, 2\); it must be a rank and the number of ranks"),
        ({"part": (-1, 2)}, r"part is \(-1, 2\)"),
        ({"part": (0, 0)}, r"part is \(0, 0\)"),
        ({"part": (0.5, 2)}, r"part is \(0\.5, 2\)"),
        ({"dtype": np.float16}, "dtype is float16; it must be float32 or float64"),
        ({"dtype": int}, "dtype is int64"),
    ],
)
def test_unusable_arguments_are_named(generate, wrong, message):
    with pytest.raises(InputError, match=message):
        generate(**{"rows": 10, **SMALL, **wrong})
