"""Precisions: how many bytes they take, and what they refuse."""

import numpy as np
import pytest

from sparsewire.coding.values import PRECISIONS, QSGD, precision_of
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
