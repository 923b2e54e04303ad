"""The library, a reader that shares no code with it, and committed vectors agree on the wire format."""

import json

import make
import numpy as np
import pytest
import reader
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels
from sparsewire.coding import frame as wire
from sparsewire.coding.call import Call, Envelope
from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import QSGD, HalfFloat, TwoLevels
from sparsewire.vector import VALUE_DTYPES, SparseVector
from strategies import SPECIAL, floats, sparse_vectors

COMMITTED = {path.stem: json.loads(path.read_text()) for path in make.FOLDER.glob("*.json")}

each_vector = pytest.mark.parametrize("name", sorted(COMMITTED))


def as_bytes(payload, envelope, price=0.0):
    return b"".join(bytes(memoryview(buffer)) for buffer in wire.encode(payload, envelope, price))


def as_read(message):
    """What the reader finds, with numbers written as in the committed vectors."""
    frames = reader.read(message)
    return [f | {"values": make.as_json(f["values"])} if "values" in f else f for f in frames]


def without_form(frames):
    return [{name: what for name, what in frame.items() if name != "format"} for frame in frames]


def meanings(payload, envelope):
    if not isinstance(payload, list):
        return [make.meaning(payload, envelope)]
    return [make.meaning(p, envelope, len(payload) - 1 - i) for i, p in enumerate(payload)]


# -- committed vectors ---------------------------------------------------------------------------


def test_vectors_are_those_that_make_writes():
    """If this fails, the format has changed: raise wire.VERSION, then run tests/vectors/make.py."""
    made = {name: json.loads(json.dumps(make.vector(sent))) for name, sent in make.VECTORS.items()}
    assert made == COMMITTED


def test_vectors_cover_the_format():
    frames = [frame for vector in COMMITTED.values() for frame in vector["frames"]]
    for field, known in [
        ("format", reader.FORMATS),
        ("dtype", reader.DTYPES),
        ("precision", reader.PRECISIONS),
    ]:
        assert {frame[field] for frame in frames} == set(known.values())


@each_vector
def test_the_reader_finds_what_a_vector_means(name):
    assert as_read(bytes.fromhex(COMMITTED[name]["message"])) == COMMITTED[name]["frames"]


@each_vector
@pytest.mark.parametrize("isa", kernels.available_isas())
def test_the_library_finds_what_a_vector_means(name, isa):
    with kernels.use_isa(isa):
        message = wire.decode(bytes.fromhex(COMMITTED[name]["message"]))
    assert meanings(message.payload, message.envelope) == without_form(COMMITTED[name]["frames"])


@each_vector
@pytest.mark.parametrize("shift", [1, 4])
def test_a_message_may_lie_at_any_address(name, shift):
    data = memoryview(bytes(shift) + bytes.fromhex(COMMITTED[name]["message"]))[shift:]
    message = wire.decode(data)
    assert meanings(message.payload, message.envelope) == without_form(COMMITTED[name]["frames"])


@each_vector
def test_the_reader_refuses_every_damaged_byte(name):
    """A reader that accepts everything would prove nothing."""
    message = bytes.fromhex(COMMITTED[name]["message"])
    for position in range(len(message)):
        damaged = bytearray(message)
        damaged[position] ^= 0x10
        with pytest.raises(ValueError, match="wrong: "):
            reader.read(bytes(damaged))


# -- any payload ---------------------------------------------------------------------------------

BUCKETS = st.sampled_from([1, 3, 8, 1024])
PRECISIONS = (
    st.sampled_from([HalfFloat("float16"), HalfFloat("bfloat16")])
    | st.builds(QSGD, st.sampled_from([2, 4, 8]), BUCKETS, st.sampled_from(["max", "2"]))
    | st.builds(TwoLevels, BUCKETS)
)


@st.composite
def pieces(draw):
    """A range of a vector of any form, with its values as they are or rounded."""
    dtype = draw(st.sampled_from(VALUE_DTYPES))
    elements = None if dtype.startswith("int") else floats(dtype) | SPECIAL
    length = draw(st.integers(0, 40) | st.sampled_from([64, 65, 300]))
    piece = draw(sparse_vectors(length, dtype, elements))
    start = draw(st.integers(0, length))
    piece = piece.range(start, draw(st.integers(start, length)))
    if dtype in ("float32", "float64") and draw(st.booleans()):
        return rounded(piece, draw(PRECISIONS), (1, 2, 3))
    return piece


@given(
    pieces() | st.lists(pieces(), min_size=1, max_size=3),
    st.sampled_from([0.0, make.AS_THEY_ARE]),
    st.integers(0, 2**64 - 1),
)
def test_the_reader_reads_whatever_the_library_writes(payload, price, number):
    envelope = Envelope(number, Call("reduce", "auto", "max", "int64", 40, 3).pack())
    assert without_form(as_read(as_bytes(payload, envelope, price))) == meanings(payload, envelope)


@given(st.sets(st.integers(0, 2**33 - 1), max_size=40), st.sets(st.integers(0, 150), max_size=8), st.data())
def test_the_reader_reads_supports_of_long_vectors(scattered, clusters, data):
    """Some entries here and there, and runs of 64 of them: each form of indices is smallest somewhere."""
    length = data.draw(st.sampled_from([200 * 64, 2**33]))
    support = {index % length for index in scattered}
    support |= {64 * cluster + j for cluster in clusters for j in range(64)}
    piece = SparseVector(length, sorted(support), np.ones(len(support), np.float32))
    frames = as_read(as_bytes(piece, Envelope()))
    assert without_form(frames) == meanings(piece, Envelope())
