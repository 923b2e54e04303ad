"""Precisions: how many bytes they take, what they refuse, and how two bits are rounded with feedback."""

import numpy as np
import pytest

from sparsewire.coding.values import PRECISIONS, QSGD, precision_of
from sparsewire.compress import ErrorFeedback, Quantized, TopK
from sparsewire.errors import InputError

PLACE = (3, 1, 0)


@pytest.mark.parametrize("precision", [*PRECISIONS.values(), QSGD(2, bucket=3), QSGD(8, bucket=1)])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 1023, 1024, 1025, 5000])
def test_nbytes_is_what_pack_makes(precision, count):
    values = np.linspace(-1, 2, count, dtype="float32")
    packed = precision.pack(values, 0, PLACE)
    assert packed.dtype == np.uint8
    assert len(packed) == precision.nbytes(count)
    assert len(precision.unpack(packed, count)) == count


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=lambda p: p.name)
def test_any_bytes_unpack_to_as_many_floats(precision):
    chance = np.random.default_rng(0)
    for count in (0, 1, 7, 2000):
        data = chance.integers(0, 256, precision.nbytes(count)).astype(np.uint8)
        assert precision.unpack(data, count).dtype == np.float32


def test_a_thousand_values_take_the_bytes_of_their_codes_and_one_scale():
    assert [PRECISIONS[f"qsgd{bits}"].nbytes(1024) for bits in (2, 4, 8)] == [260, 516, 1028]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits=3; known are 2, 4, 8"),
        ({"norm": "1"}, "norm='1'; known are 'max', '2'"),
        ({"bucket": 0}, "bucket=0"),
        ({"bucket": 1.5}, "bucket=1.5"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        QSGD(**options)


@pytest.mark.parametrize(
    ("given", "dtype", "op", "message"),
    [
        (
            "int8",
            "float32",
            "sum",
            "unknown precision 'int8'; known are float16, bfloat16, qsgd2, qsgd4, qsgd8",
        ),
        (4, "float32", "sum", "unknown precision 4"),
        ("qsgd4", "int32", "sum", "rounds float32 and float64 values, and these are int32"),
        ("bfloat16", "float16", "sum", "and these are float16"),
        ("qsgd4", "float32", "max", "op='max' takes one value: use float16"),
    ],
)
def test_what_cannot_be_rounded_is_refused(given, dtype, op, message):
    with pytest.raises(InputError, match=message):
        precision_of(given, np.dtype(dtype), op)


def test_a_name_stands_for_its_precision():
    single = np.dtype("float32")
    assert precision_of("qsgd8", single, "avg") == QSGD(8)
    assert precision_of(QSGD(2, seed=5), single, "sum") == QSGD(2, seed=5)
    assert precision_of(None, single, "sum") is None


def test_values_that_have_the_precision_are_not_rounded():
    assert precision_of("float16", np.dtype("float16"), "sum") is None
    assert precision_of("float32", np.dtype("float32"), "sum") is None


# -- two bits with feedback ----------------------------------------------------------------------

TAILS = {
    "Student-t, 3 degrees of freedom": lambda chance, count: chance.standard_t(3, count),
    "Laplace": lambda chance, count: chance.laplace(size=count),
    "normal": lambda chance, count: chance.standard_normal(count),
}


def nearest(values, precision):
    """The values as a rank with feedback sends them."""
    return precision.unpack(precision.pack(values, 0, None), len(values))


def squared_error(values, scale):
    """The squared error if each value becomes the nearest of -scale, 0 and scale."""
    size = np.abs(values.astype(np.float64))
    return (np.minimum(size, np.abs(size - scale)) ** 2).sum()


@pytest.mark.parametrize("draw", TAILS.values(), ids=TAILS)
def test_few_of_the_largest_values_are_rounded_to_zero(draw):
    """With the largest magnitude as the scale, 99% of Student's and 66% of Laplace's would become zero."""
    values = draw(np.random.default_rng(0), 1 << 20).astype("float32")
    selected = values[np.abs(values) >= np.quantile(np.abs(values), 0.99)]
    rounded = nearest(selected, QSGD(2))
    assert np.mean(rounded == 0) < 0.02
    assert np.linalg.norm(selected - rounded) < 0.6 * np.linalg.norm(selected)


@pytest.mark.parametrize("draw", TAILS.values(), ids=TAILS)
@pytest.mark.parametrize("precision", [QSGD(2, bucket=100), QSGD(2, bucket=100, norm="2")], ids=["max", "2"])
def test_no_other_scale_has_a_smaller_error(draw, precision):
    values = draw(np.random.default_rng(1), 1250).astype("float32")
    rounded = nearest(values, precision)
    for first in range(0, len(values), 100):
        bucket, got = values[first : first + 100], rounded[first : first + 100]
        least = min(squared_error(bucket, scale) for scale in np.linspace(0, np.abs(bucket).max(), 2000))
        assert ((bucket.astype(np.float64) - got) ** 2).sum() <= least * (1 + 1e-6)


def test_values_of_one_magnitude_are_kept_as_they_are():
    values = np.where(np.arange(3000) % 3, np.float32(0.1), np.float32(-0.1))
    assert (nearest(values, QSGD(2)) == values).all()
    assert not nearest(np.zeros(3000, "float32"), QSGD(2)).any()
    assert len(nearest(np.zeros(0, "float32"), QSGD(2))) == 0


def test_what_is_not_finite_does_not_change_the_scale_of_others():
    values = np.random.default_rng(2).standard_t(3, 300).astype("float32")
    odd = values.copy()
    odd[[3, 50, 297]] = np.nan, np.inf, -np.inf
    values[[3, 50, 297]] = 0
    got = nearest(odd, QSGD(2))
    assert np.isnan(got[[3, 50, 297]]).all()
    others = np.isfinite(odd)
    assert (got[others] == nearest(values, QSGD(2))[others]).all()


def test_the_largest_numbers_do_not_overflow():
    largest = np.finfo(np.float32).max
    assert (nearest(np.full(2000, largest, "float32"), QSGD(2)) == largest).all()


@pytest.mark.parametrize(
    ("draw", "most"),
    [(TAILS["normal"], 1.1), (TAILS["Student-t, 3 degrees of freedom"], 1.3)],
    ids=["normal", "t"],
)
def test_residual_of_two_bits_stays_near_that_of_exact_values(draw, most):
    """With the largest magnitude as the scale, it would be 1.8 and 2.7 times as long."""
    lengths = {}
    for name, inner in {"exact": TopK(0.01), "qsgd2": Quantized(TopK(0.01), "qsgd2")}.items():
        chance = np.random.default_rng(3)
        scale = np.exp(chance.standard_normal(512)).repeat(64)
        compressor = ErrorFeedback(inner)
        state = compressor.init(len(scale))
        for _ in range(100):
            _, state = compressor.step((scale * draw(chance, len(scale))).astype("float32"), state)
        lengths[name] = np.linalg.norm(state.residual)
    assert lengths["qsgd2"] < most * lengths["exact"]
