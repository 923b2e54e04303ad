"""What the kernel tests share: dtypes, awkward values, misaligned copies, oracles in plain Python numbers."""

import copy
import functools
import inspect
import math
import random
from contextlib import contextmanager
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsewire import kernels
from sparsewire.kernels import memory

DTYPES = [np.dtype(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64)]
INDEX_DTYPES = [np.dtype(np.uint32), np.dtype(np.uint64)]

each_isa = pytest.mark.parametrize("isa", kernels.available_isas())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
index_dtypes = st.sampled_from(INDEX_DTYPES)
shifts = st.integers(0, 15)
# Blocks are 64 values wide: none, a part, exactly one, and up to three and a bit.
LONGEST = 3 * 64 + 1
lengths = st.sampled_from([0, 1, 63, 64, 65, 128, LONGEST]) | st.integers(0, LONGEST)


def on_every_isa(test):
    """Run a property with every version on the same example: to draw an example takes longest.

    It stands between ``given`` and the test, which has an argument ``isa``.
    """

    signature = inspect.signature(test)
    others = [parameter for name, parameter in signature.parameters.items() if name != "isa"]
    of_example = signature.replace(parameters=others)

    @functools.wraps(test)
    def on_all_versions(*args, **kwargs):
        arguments = of_example.bind(*args, **kwargs).arguments
        data, drawn = arguments.pop("data", None), []
        for isa in kernels.available_isas():
            note(f"isa: {isa}")
            draws = {} if data is None else {"data": _SameDraws(data, drawn)}
            test(isa=isa, **copy.deepcopy(arguments), **draws)

    on_all_versions.__signature__ = of_example
    return on_all_versions


class _SameDraws:
    """Draws what was drawn before, copied, because a test may change it; then goes on to draw."""

    def __init__(self, data, drawn):
        self._data, self._drawn, self._position = data, drawn, 0

    def draw(self, strategy):
        if self._position == len(self._drawn):
            self._drawn.append(self._data.draw(strategy))
        self._position += 1
        return copy.deepcopy(self._drawn[self._position - 1])


def unsigned(dtype):
    return np.dtype(f"u{dtype.itemsize}")


def awkward(dtype):
    """Zeros of both signs, smallest and largest numbers, infinities, NaN of several payloads, equal sizes."""
    if dtype.kind == "i":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return np.array([0, 1, -1, 2, -2, 3, low, low + 1, high], dtype)
    numbers = np.array([0.0, -0.0, 1, -1, 1.5, -2, math.inf, -math.inf, math.nan, -math.nan], dtype)
    nan, infinity = (numbers[i : i + 1].view(unsigned(dtype))[0] for i in (8, 6))
    bits = np.array([1, 2, nan | 1, infinity + 1, infinity - 1], unsigned(dtype))
    return np.concatenate([numbers, bits.view(dtype)])


@st.composite
def values(draw, dtype, length=lengths):
    """Any bits at all, with awkward values more often than not."""
    n = draw(length) if not isinstance(length, int) else length
    known = awkward(dtype).view(unsigned(dtype)).tolist()
    bits = st.sampled_from(known) | st.integers(0, 2 ** (8 * dtype.itemsize) - 1)
    return draw(hnp.arrays(unsigned(dtype), n, elements=bits, fill=st.sampled_from(known))).view(dtype)


def misaligned(array, shift):
    """The same numbers, `shift` elements into a larger buffer."""
    buffer = np.zeros(len(array) + shift + 1, array.dtype)
    buffer[shift : shift + len(array)] = array
    return buffer[shift : shift + len(array)]


@contextmanager
def canaries_around_outputs():
    """Inside the block, arrays of `sparsewire.kernels.memory` lie between bytes that nobody may write to."""
    guard, canary, buffers = 512, 0xA5, []

    def empty(count, dtype):
        buffer = np.full(count * np.dtype(dtype).itemsize + 2 * guard, canary, np.uint8)
        buffers.append(buffer)
        return buffer[guard:-guard].view(dtype)

    with mock.patch.object(memory, "empty", empty):
        yield
    for buffer in buffers:
        assert set(buffer[:guard].tolist() + buffer[-guard:].tolist()) == {canary}


def frozen(array):
    array.flags.writeable = False
    return array


def same_bits(a, b):
    """Equal to the bit; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.all((a.view(unsigned(a.dtype)) == b.view(unsigned(b.dtype))) | (is_nan(a) & is_nan(b))))


def assert_moved_out(residual, shift, entries, total, positions):
    """The entries are those of the total at these positions, and all else stayed in the residual."""
    indices, moved = entries
    assert indices.tolist() == positions
    assert same_bits(moved, total[positions])
    total[positions] = 0
    assert same_bits(residual, total)
    assert not residual.base[:shift].any()
    assert not residual.base[shift + len(residual) :].any()


def is_nan(array):
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of signalling NaN
        return array != array


def rank_of(number):
    """Orders numbers by magnitude, NaN last: the oracle's idea of what a magnitude is."""
    return (1, 0) if number != number else (0, abs(number))


def plain(array):
    """Python numbers: exact for every dtype, and free of overflow."""
    return [int(v) for v in array] if array.dtype.kind == "i" else [float(v) for v in array]


def expected_positions(array, threshold, ties):
    ranks, limit, chosen = [rank_of(v) for v in plain(array)], rank_of(threshold), []
    for position, rank in enumerate(ranks):
        is_tie = rank == limit and ties > 0
        ties -= is_tie
        if rank > limit or is_tie:
            chosen.append(position)
    return chosen


@st.composite
def supports(draw, index_dtype, longest):
    """(indices, start, span): few or many, scattered, clustered, at the beginning or at the end."""
    limit = min(2 ** (8 * index_dtype.itemsize), 2**63)
    span = draw(st.sampled_from([0, 1, 63, 64, 65, longest]) | st.integers(0, longest))
    most = min(span, 300)
    count = draw(st.sampled_from([0, min(1, most), most]) | st.integers(0, most))
    start = draw(st.sampled_from([0, 1, 77, limit - span]).filter(lambda start: start + span <= limit))
    return support(draw(st.sampled_from(SHAPES)), count, start, span, index_dtype), start, span


SHAPES = ["scattered", "clustered", "first", "last"]


def support(shape, count, start, span, index_dtype, seed=0):
    """`count` increasing indices in [start, start + span)."""
    rng = random.Random(f"{shape} {count} {span} {seed}")
    if shape == "scattered":
        chosen = set()
        while len(chosen) < min(count, span - count):  # what is in, or what is out, if that is less
            chosen.add(rng.randrange(span))
        positions = sorted(chosen) if len(chosen) == count else sorted(set(range(span)) - chosen)
    elif shape == "clustered":
        gap = rng.randrange(span - count + 1)
        middle = rng.randrange(count + 1)
        positions = [*range(middle), *range(middle + gap, count + gap)]
    else:
        positions = range(count) if shape == "first" else range(span - count, span)
    return np.array([start + position for position in positions], index_dtype)


def words_of(number, count):
    """A big number as so many 64-bit words, the lowest first."""
    return np.array([number >> 64 * w & (2**64 - 1) for w in range(count)], np.uint64)


def number_of(words):
    return sum(int(word) << 64 * w for w, word in enumerate(words))


def ones_of(number):
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


def with_flipped_bits(words, bits):
    damaged = number_of(words)
    for bit in bits:
        damaged ^= 1 << bit
    return words_of(damaged, len(words))


@st.composite
def thresholds(draw, array):
    """Magnitudes that occur in the array, so that ties matter, and others."""
    dtype = array.dtype
    anything = st.integers(0, 2**70) if dtype.kind == "i" else st.floats(0) | st.just(math.nan)
    occurring = [abs(v) for v in plain(array)]
    return draw(st.sampled_from(occurring) | anything if occurring else anything)
