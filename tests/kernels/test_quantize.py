"""QSGD, held against its definition in Python numbers, one value after the other."""

import math
import struct

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels
from sparsewire.kernels import _compiled

float32 = np.dtype(np.float32)
LARGEST = float(np.finfo(np.float32).max)
TINIEST = 2.0**-149
each_width = pytest.mark.parametrize("bits", [2, 4, 8])
each_norm = pytest.mark.parametrize("norm", ["max", "2"])
widths = st.sampled_from([2, 4, 8])
buckets = st.sampled_from([1, 2, 7, 8, 9, 64, 1024])
norms = st.sampled_from(["max", "2"])
keys = st.none() | st.integers(0, 2**32 - 1)  # none: to the nearest


# ---- the definition


def philox(counter, key):
    """Philox2x32-10: both output words."""
    low, high = counter % 2**32, counter >> 32
    for _ in range(10):
        product = 0xD256D193 * low
        low, high = (product >> 32) ^ key ^ high, product % 2**32
        key = (key + 0x9E3779B9) % 2**32
    return low, high


def uniform(position, key):
    return (philox(position, key)[0] >> 8) / 2**24


def rounded(x):
    """To float32.  After one operation on float32 numbers, rounding to float64 first does no harm."""
    return struct.unpack("f", struct.pack("f", x))[0]


def scale_of(bucket, norm):
    finite = [abs(x) if math.isfinite(x) else 0.0 for x in bucket]
    if norm == "max":
        return max(finite)
    lanes = [0.0] * 8
    for j, x in enumerate(finite):
        lanes[j % 8] += x * x
    a, b, c, d, e, f, g, h = lanes
    return rounded(min(math.sqrt(((a + e) + (c + g)) + ((b + f) + (d + h))), LARGEST))


def level_of(x, scale, u, bits):
    s = 2 ** (bits - 1) - 1
    if not math.isfinite(x):
        return -s - 1
    q = rounded(rounded(abs(x) / scale) * s) if scale else 0.0
    level = math.floor(q) + (u < q - math.floor(q))
    return -level if x < 0 else level


def packed(levels, bits):
    number = sum((level % 2**bits) << j * bits for j, level in enumerate(levels))
    return number.to_bytes(-(-len(levels) * bits // 8), "little")


def expected(x, bits, positions, key, bucket, norm):
    x = [float(v) for v in x]
    scales = [scale_of(x[i : i + bucket], norm) for i in range(0, len(x), bucket)]
    levels = [
        level_of(v, scales[j // bucket], 0.5 if key is None else uniform(p, key), bits)
        for j, (v, p) in enumerate(zip(x, positions, strict=True))
    ]
    return scales, packed(levels, bits)


def decoded(scales, codes, count, bits, bucket):
    s, out = 2 ** (bits - 1) - 1, []
    for j in range(count):
        code = codes[j * bits // 8] >> j * bits % 8 & (2**bits - 1)
        level = code - 2**bits if code > s else code
        out.append(math.nan if level == -s - 1 else rounded(float(scales[j // bucket]) * rounded(level / s)))
    return np.array(out, np.float32)


def check(x, bits, positions, key, bucket, norm):
    """Both ways, against the definition."""
    scales, codes = kernels.quantize(x, bits, positions=positions, key=key, bucket=bucket, norm=norm)
    numbers = range(positions, positions + len(x)) if isinstance(positions, int) else positions.tolist()
    expected_scales, expected_codes = expected(x, bits, numbers, key, bucket, norm)
    assert scales.tolist() == expected_scales
    assert codes.tobytes() == expected_codes
    back = kernels.dequantize(scales, codes, len(x), bits, bucket)
    assert cases.same_bits(back, decoded(expected_scales, expected_codes, len(x), bits, bucket))


def test_the_definition_has_the_known_answers_of_philox():
    # From the authors' Random123.
    assert philox(0, 0) == (0xFF1DAE59, 0x6CD10DF2)
    assert philox(2**64 - 1, 2**32 - 1) == (0x2C3F628B, 0xAB4FD7AD)
    assert philox(0x85A308D3_243F6A88, 0x13198A2E) == (0xDD7CE038, 0xF62A4C12)


@given(
    x=cases.values(float32),
    bits=widths,
    bucket=buckets,
    norm=norms,
    key=keys,
    shift=cases.shifts,
    data=st.data(),
)
@cases.on_every_isa
def test_any_bits_are_quantised_as_defined(isa, x, bits, bucket, norm, key, shift, data):
    kind = data.draw(st.sampled_from([int, np.uint32, np.uint64]))
    if kind is int:
        positions = data.draw(st.integers(0, 2**33))
    else:
        seed, top = data.draw(st.integers(0, 99)), np.iinfo(kind).max
        positions = cases.misaligned(
            np.random.default_rng(seed).integers(0, top, len(x), kind, endpoint=True), shift
        )
    with kernels.use_isa(isa):
        check(cases.frozen(cases.misaligned(x, shift)), bits, positions, key, bucket, norm)


# Blocks are 1024 values; 16 or 32 random words are made at a time; up to four codes share a byte.
@cases.each_isa
@each_width
@pytest.mark.parametrize("n", [0, 1, 3, 5, 15, 16, 17, 32, 33, 1023, 1024, 1025, 2051])
def test_every_length_and_bucket(isa, bits, n):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    with kernels.use_isa(isa):
        for bucket in (1, 7, 1000, 1024, 10**30):
            check(x, bits, 2**32 - 20, 5, bucket, "max" if n % 2 else "2")


@cases.each_isa
@each_width
def test_the_bytes_never_change(isa, bits):
    # They are on the wire: another machine, or another release, must find the same ones.
    x = np.array([0.5, -1, 0.25, math.nan, 0, 0.1, -0.75, 1e-3, 3, -2], np.float32)
    with kernels.use_isa(isa):
        scales, codes = kernels.quantize(
            x, bits, positions=np.arange(0, 50, 5, dtype=np.uint32), key=9, bucket=8
        )
    assert scales.tolist() == [1, 3]
    assert codes.tobytes().hex() == {2: "9c300d", 4: "9382100bb7", 8: "3f812080000da1007fab"}[bits]


# ---- values that need care


@cases.each_isa
@each_width
@each_norm
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_nan_and_disturbs_nothing(isa, bits, norm, bad):
    x = np.random.default_rng(3).standard_normal(40).astype(np.float32)
    with_bad, with_zero = x.copy(), x.copy()
    with_bad[[0, 17, 39]], with_zero[[0, 17, 39]] = bad, 0
    with kernels.use_isa(isa):
        scales, codes = kernels.quantize(with_bad, bits, bucket=16, norm=norm)
        same_scales, same_codes = kernels.quantize(with_zero, bits, bucket=16, norm=norm)
        back = kernels.dequantize(scales, codes, 40, bits, 16)
        same = kernels.dequantize(same_scales, same_codes, 40, bits, 16)
    assert np.flatnonzero(cases.is_nan(back)).tolist() == [0, 17, 39]
    assert scales.tolist() == same_scales.tolist()
    assert np.array_equal(np.where(cases.is_nan(back), 0, back), same)


@cases.each_isa
@each_width
@each_norm
@pytest.mark.parametrize("x", [[0.0], [-0.0], [math.nan], [math.inf, -math.inf], [0.0, math.nan]], ids=str)
def test_a_bucket_of_nothing_has_scale_zero(isa, bits, norm, x):
    x = np.array(x * 20, np.float32)
    with kernels.use_isa(isa):
        scales, codes = kernels.quantize(x, bits, norm=norm)
        back = kernels.dequantize(scales, codes, len(x), bits)
    assert scales.tolist() == [0]
    assert cases.same_bits(back, np.where(np.isfinite(x), np.float32(0), np.float32(math.nan)))


@cases.each_isa
@each_width
@pytest.mark.parametrize("scale", [TINIEST, 3 * TINIEST, 2.0**-126, 0.1, 1, 7, 3e38, LARGEST])
def test_zero_stays_zero_and_the_largest_is_exact(isa, bits, scale):
    x = np.array([scale, -scale, 0, -0.0] * 9, np.float32)
    with kernels.use_isa(isa):
        for key in range(20):
            scales, codes = kernels.quantize(x, bits, key=key)
            assert scales.tolist() == [x[0]]
            assert cases.same_bits(kernels.dequantize(scales, codes, len(x), bits), x + np.float32(0))


@cases.each_isa
@each_width
def test_a_two_norm_beyond_float32_is_the_largest_float32(isa, bits):
    x = np.full(50, 3e38, np.float32)
    with kernels.use_isa(isa):
        scales, _ = kernels.quantize(x, bits, norm="2")
        assert scales.tolist() == [LARGEST]
        check(x, bits, 0, 0, 1024, "2")
        check(np.full(50, TINIEST, np.float32), bits, 0, 0, 1024, "2")


def norms_on_the_fence(count):
    """Buckets of 13 whose 2-norm lies within 1e-16 of the middle between two float32 numbers.

    There the order of the additions decides to which side it falls.
    """
    rng = np.random.default_rng(31)
    middle = 1 + (2 * rng.integers(0, 2**22, count) + 1) / 2**24
    rest = middle**2 + middle / 2**52  # where the root begins to be above the middle
    x = np.zeros((count, 13), np.float32)
    for j in range(13):
        share = rng.uniform(0.1, 0.5, count) if j < 8 else 1
        x[:, j] = np.sqrt(np.maximum(rest * share, 0))
        rest -= np.square(x[:, j], dtype=np.float64)
    return rng.permuted(x, axis=1).reshape(-1)


@cases.each_isa
def test_squares_are_added_in_the_order_of_the_definition(isa):
    x = norms_on_the_fence(500)
    with kernels.use_isa(isa):
        scales, _ = kernels.quantize(x, 4, bucket=13, norm="2")
    assert scales.tolist() == [scale_of(bucket, "2") for bucket in x.reshape(-1, 13).tolist()]


@each_width
@given(data=st.data(), scales=cases.values(float32, 3), shift=cases.shifts)
@cases.on_every_isa
def test_any_scales_and_codes_decode(isa, bits, data, scales, shift):
    count = data.draw(st.integers(15, 21))
    size = -(-count * bits // 8)
    codes = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    with kernels.use_isa(isa):
        back = kernels.dequantize(
            cases.misaligned(scales, shift), cases.misaligned(codes, shift), count, bits, 7
        )
    assert cases.same_bits(back, decoded(scales, codes.tobytes(), count, bits, 7))


@pytest.mark.parametrize("isa", kernels.available_isas()[1:])
@each_width
@pytest.mark.parametrize("n", [0, 1, 3, 5, 33, 1025])
def test_nothing_is_written_outside_the_output(isa, bits, n):
    size = -(-n * bits // 8)
    scales, codes = np.full(-(-n // 7) + 2, 9, np.float32), np.full(size + 2, 9, np.uint8)
    out = np.full(n + 2, 9, np.float32)
    with kernels.use_isa(isa):
        _compiled.quantize(np.ones(n, np.float32), 0, 0, bits, 7, "max", scales[1:-1], codes[1:-1])
        _compiled.dequantize(scales[1:-1], codes[1:-1], bits, 7, out[1:-1])
    assert scales[[0, -1]].tolist() == codes[[0, -1]].tolist() == out[[0, -1]].tolist() == [9, 9]
    assert np.all(out[1:-1] == 1)


# ---- random numbers


@cases.each_isa
@pytest.mark.parametrize("first", [0, 2**32 - 100, 2**64 - 200])
def test_the_random_number_of_a_position_is_that_of_philox(isa, first):
    # With two bits and scale one, u < |x| decides: equal is not less, and the next float is more.
    u = np.array([uniform(first + j, 77) for j in range(200)], np.float32)
    is_scale = np.arange(200) % 50 == 0
    with kernels.use_isa(isa):
        for x, level in ((u, 0), (np.nextafter(u, np.float32(1)), 1)):
            x = np.where(is_scale, np.float32(-1), x)
            scales, codes = kernels.quantize(x, 2, positions=first, key=77, bucket=50)
            back = kernels.dequantize(scales, codes, 200, 2, 50)
            assert np.array_equal(back, np.where(is_scale, -1, level))


@cases.each_isa
@each_width
def test_a_decision_depends_on_position_and_key_only(isa, bits):
    rng = np.random.default_rng(11)
    x = rng.uniform(-1, 1, 3000).astype(np.float32)
    x[0] = 1  # the scale of every piece below
    parts = [np.append(0, np.sort(rng.choice(np.arange(1, 3000), size, False))) for size in (1, 40, 1500)]

    def quantised(values, positions, key):
        scales, codes = kernels.quantize(values, bits, positions=positions, key=key, bucket=3000)
        return kernels.dequantize(scales, codes, len(values), bits, 3000)

    with kernels.use_isa(isa):
        whole = quantised(x, 0, 5)
        for part in parts:
            for dtype in (np.uint32, np.uint64):
                assert np.array_equal(quantised(x[part], part.astype(dtype), 5), whole[part])
        assert not np.array_equal(quantised(x, 0, 6), whole)
        assert not np.array_equal(quantised(x, 1, 5), whole)
        assert not np.array_equal(quantised(x, 2**32, 5), whole)


# ---- statistics

KEYS = 10_000
SAMPLES = {
    "normal": np.random.default_rng(21).standard_normal(64).astype(np.float32),
    "equal": np.tile(np.array([1, -1], np.float32), 32),  # where the bound of the 2-norm is nearly reached
}


def errors(x, bits, norm):
    """A row per key: what each value changed by."""
    rows = np.empty((KEYS, len(x)))
    for key in range(KEYS):
        scales, codes = kernels.quantize(x, bits, key=key, norm=norm)
        rows[key] = kernels.dequantize(scales, codes, len(x), bits)
    return rows - x, float(scales[0])


@pytest.mark.parametrize(("sample", "norm"), [("normal", "max"), ("normal", "2"), ("equal", "2")])
@each_width
def test_the_mean_is_right_and_the_variance_within_its_bounds(sample, norm, bits):
    """A z-test for each value, and one for all of them together, which sees a bias towards or from zero.

    With random keys a false alarm would have a probability below 65 * 6e-7 = 4e-5 (5 sigma); the 10,000 keys
    are fixed.  Variances are measured, so they may exceed a bound by 2 %.
    """
    x, s = SAMPLES[sample], 2 ** (bits - 1) - 1
    error, scale = errors(x, bits, norm)
    q = np.abs(x.astype(np.float64)) / scale * s
    deviation = np.sqrt((q - np.floor(q)) * (np.ceil(q) - q)) * scale / s
    is_random = deviation > 0.1 * scale / s
    assert np.all(np.abs(error[:, deviation == 0]) <= 1e-6 * scale)

    z = (error.mean(axis=0) * np.sign(x))[is_random] / deviation[is_random] * math.sqrt(KEYS)
    assert np.all(np.abs(z) < 5)
    assert abs(z.sum()) < 5 * math.sqrt(len(z))

    variance = (error**2).mean(axis=0)
    assert np.all(variance <= 1.02 * (scale / s) ** 2 / 4)
    if norm == "2":  # QSGD, lemma 3.1
        n, square = len(x), float(np.square(x, dtype=np.float64).sum())
        assert variance.sum() <= 1.02 * min(n / s**2, math.sqrt(n) / s) * square


@cases.each_isa
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_without_a_key_no_value_is_off_by_more_than_half_a_level_or_itself(isa, bits):
    x = np.random.default_rng(4).standard_normal(5000).astype(np.float32)
    with kernels.use_isa(isa):
        scales, codes = kernels.quantize(x, bits, key=None)
        error = np.abs(kernels.dequantize(scales, codes, len(x), bits) - x)
    half = np.repeat(scales, 1024)[: len(x)] / (2 * (2 ** (bits - 1) - 1))
    assert (error <= np.minimum(half, np.abs(x)) * (1 + 1e-5)).all()
