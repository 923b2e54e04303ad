"""The wire format: round trips, exact sizes, and that nothing but a frame is taken for one."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparsewire as sw
from sparsewire import wire
from sparsewire.errors import CollectiveTimeout, InputError, PeerLostError, WireError
from sparsewire.testing import same_bits
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype
from sparsewire.wire import Abort, Call, Envelope

CALL = Call("allreduce", "split_allgather", "sum", "float32", 1000, 0)
ENVELOPE = Envelope(7, CALL.pack())


def as_bytes(payload, envelope=ENVELOPE):
    return b"".join(bytes(memoryview(buffer)) for buffer in wire.encode(payload, envelope))


def piece(dtype="float32", length=1000, *, dense=False, ranged=False):
    vector = SparseVector(length, [2, 30, 31, 500, 999], np.arange(-2, 3).astype(value_dtype(dtype)))
    vector = vector.slice(30, 600) if ranged else vector
    return vector.as_dense() if dense else vector


def reframed(frame, offset, form, *values):
    """The frame with a header field replaced and the header's CRC made right again."""
    changed = bytearray(frame)
    struct.pack_into(form, changed, offset, *values)
    struct.pack_into("<I", changed, wire.HEADER_BYTES - 4, zlib.crc32(changed[: wire.HEADER_BYTES - 4]))
    return bytes(changed)


# -- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
@pytest.mark.parametrize(("length", "dense"), [(1000, False), (1000, True), (2**40, False)])
@pytest.mark.parametrize("ranged", [False, True])
def test_a_piece_comes_back_with_the_same_bits(dtype, length, dense, ranged):
    sent = piece(dtype, length, dense=dense, ranged=ranged)
    envelope, got = wire.decode(as_bytes(sent))
    assert envelope == ENVELOPE
    assert same_bits(sent, got)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_list_comes_back_as_a_list(count):
    sent = [piece("float64"), piece("int32", dense=True), SparseVector.empty(0), piece("float16", 2**40)] * 2
    got = wire.decode(as_bytes(sent[:count])).payload
    assert isinstance(got, list)
    assert len(got) == count
    assert all(map(same_bits, sent, got))


@given(st.lists(st.floats(width=32), max_size=50), st.booleans(), st.integers(0, 2**64 - 1))
def test_any_values_come_back(values, dense, number):
    array = np.array(values, "float32")
    sent = SparseVector.from_dense(array) if dense else SparseVector(60, range(len(array)), array)
    message = wire.decode(as_bytes(sent, Envelope(number, CALL.pack())))
    assert message.envelope.collective == number
    assert same_bits(sent, message.payload)


@pytest.mark.parametrize(
    "error",
    [
        InputError("rank 1: indices[3] is 7"),
        PeerLostError("ä ö €"),
        CollectiveTimeout(""),
        WireError("x" * 5000),
    ],
)
def test_an_abort_comes_back_as_the_same_error(error):
    got = wire.decode(as_bytes(Abort(error, (1, 5)))).payload
    assert type(got.error) is type(error)
    assert str(got.error) == str(error)
    assert got.waiting == (1, 5)


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        Call(),
        Call("broadcast", root=2**32 - 1),
        Call("allgather", dtype="bfloat16"),
        Call("allreduce", "dense_halving_doubling", "avg", "int64", 2**62),
    ],
)
def test_a_call_comes_back(call):
    assert Call.unpack(call.pack()) == call


def test_every_algorithm_fits_into_a_call():
    for name in (*sw.ALGORITHMS, "auto"):
        assert Call.unpack(Call("allreduce", name).pack()).algorithm == name


def test_a_call_reads_like_one():
    assert str(CALL) == "allreduce(length=1,000, dtype=float32, algorithm=split_allgather, op=sum)"
    assert str(Call("broadcast", root=3)) == "broadcast(root=3)"


def test_one_frame_byte_for_byte():
    """If this fails the format has changed: raise VERSION and docs/wire-format.md with it."""
    sent = SparseVector(10, [1, 4, 7], np.array([1.0, -2.0, 0.5], "float32")).slice(0, 8)
    assert as_bytes(sent).hex() == GOLDEN


GOLDEN = (
    "535057520101010007000000000000000201010000000000e803000000000000"
    "73706c69745f616c6c6761746865720000000000000000000a00000000000000"
    "0000000000000000080000000000000003000000000000005db65832b0456476"
    "00000000c81067f5010000000400000007000000000000000000803f000000c0"
    "0000003f00000000"
)


# -- sizes ---------------------------------------------------------------------------------------


@given(st.sampled_from(VALUE_DTYPES), st.integers(0, 40), st.booleans(), st.sampled_from([50, 2**40]))
def test_size_is_what_encode_makes(dtype, nnz, dense, length):
    values = np.ones(nnz).astype(value_dtype(dtype))
    vector = SparseVector.from_dense(values) if dense else SparseVector(length, range(nnz), values)
    for payload in (vector, [vector], [vector, vector], Abort(InputError("why"), (1,))):
        assert wire.size(payload) == len(as_bytes(payload))


def test_encode_does_not_copy_the_arrays():
    sent = piece()
    owners = [np.frombuffer(b, np.uint8) for b in wire.encode(sent, ENVELOPE) if isinstance(b, memoryview)]
    assert any(np.shares_memory(o, sent.indices) for o in owners)
    assert any(np.shares_memory(o, sent.values) for o in owners)


def test_a_list_without_pieces_cannot_be_sent():
    with pytest.raises(ValueError, match="send an empty vector instead"):
        wire.encode([], ENVELOPE)


# -- what is not a frame -------------------------------------------------------------------------

FRAMES = {
    "sparse": as_bytes(piece()),
    "dense": as_bytes(piece("int32", dense=True).slice(0, 7)),
    "list": as_bytes([piece("float64"), SparseVector.empty(3)]),
    "abort": as_bytes(Abort(InputError("rank 0: no"))),
    "wide": as_bytes(piece("float16", 2**40, ranged=True)),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_truncation_is_refused(kind):
    frame = FRAMES[kind]
    for length in range(len(frame)):
        with pytest.raises(WireError):
            wire.decode(frame[:length])


@pytest.mark.parametrize("kind", FRAMES)
def test_bytes_behind_the_message_are_refused(kind):
    with pytest.raises(WireError, match="1 bytes follow"):
        wire.decode(FRAMES[kind] + b"\0")


def padding_of(kind):
    """Positions of padding bytes, which carry no information and are not looked at."""
    frame, padding, at = FRAMES[kind], set(), 0
    while at < len(frame):
        nnz, form, dtype = struct.unpack_from("<Q", frame, at + 80)[0], frame[at + 5], frame[at + 6]
        length = struct.unpack_from("<Q", frame, at + 56)[0]
        widths = [] if form != wire.COO else [4 if length <= 2**32 else 8]
        widths += [1 if form == wire.ABORT else value_dtype(VALUE_DTYPES[dtype - 1]).itemsize]
        at += wire.HEADER_BYTES
        for width in widths:
            end = at + nnz * width
            at = end if form == wire.ABORT else end + (-end + at) % 8
            padding |= set(range(end, at))
    return padding


@pytest.mark.parametrize("kind", FRAMES)
def test_every_flipped_bit_is_noticed(kind):
    frame, padding = FRAMES[kind], padding_of(kind)
    for position in range(len(frame)):
        for bit in range(8) if position not in padding else ():
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            with pytest.raises(WireError):
                wire.decode(bytes(damaged))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(WireError):
        wire.decode(data)


@given(st.sampled_from(sorted(FRAMES)), st.data())
def test_any_header_field_with_a_right_crc_decodes_or_is_refused(kind, data):
    """What a broken but honest peer could send: never another exception."""
    frame = FRAMES[kind]
    offset = data.draw(st.integers(4, wire.HEADER_BYTES - 5))
    changed = reframed(frame, offset, "<B", data.draw(st.integers(0, 255)))
    try:
        wire.decode(changed)
    except WireError:
        pass


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (0, "<4s", b"HTTP", "starts with"),
        (4, "<B", 2, "version 2"),
        (5, "<B", 9, "unknown format 9"),
        (6, "<B", 0, "cannot have dtype 0"),
        (6, "<B", 99, "dtype 99"),
        (7, "<B", 2, "list flag 2"),
        (96, "<I", 1, "list flag 0"),
        (56, "<Q", 998, "impossible"),
        (64, "<Q", 1001, "impossible"),
        (80, "<Q", 1001, "impossible"),
        (80, "<Q", 2**61, "impossible"),
    ],
)
def test_header_fields_are_checked(offset, form, value, message):
    with pytest.raises(WireError, match=message):
        wire.decode(reframed(FRAMES["sparse"], offset, form, value))


@pytest.mark.parametrize("indices", [[5, 3], [5, 5], [0, 1000], [29, 40]])
def test_indices_are_checked(indices):
    """Right checksums do not make wrong indices right."""
    bad = SparseVector.piece(1000, 30, 600, np.array(indices, np.uint32), np.ones(2, "float32"))
    with pytest.raises(WireError, match="out of order or out of"):
        wire.decode(as_bytes(bad))


def test_a_huge_claim_is_refused_before_anything_is_allocated():
    header = FRAMES["sparse"][: wire.HEADER_BYTES]
    header = reframed(reframed(reframed(header, 56, "<Q", 2**62), 72, "<Q", 2**62), 80, "<Q", 2**55)
    with pytest.raises(WireError, match="bytes early"):
        wire.decode(header)
    reader = wire.read_message()
    next(reader)[:] = header
    with pytest.raises(WireError, match="does not fit into memory"):
        next(reader)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"error": "SystemExit", "message": "", "waiting": []}',
        b"\xff\xfe",
        b'{"error": 1}',
        b"[" * 100_000,
    ],
)
def test_an_abort_that_says_nonsense_is_refused(text):
    with pytest.raises(WireError, match="abort message"):
        Abort.from_json(text)


def test_an_abort_in_a_list_is_refused():
    with pytest.raises(WireError, match="list flag 1"):
        wire.decode(reframed(FRAMES["abort"], 7, "<B", wire.LISTED))


@pytest.mark.parametrize("second", [as_bytes(piece()), FRAMES["abort"], as_bytes([piece()], Envelope(8))])
def test_a_list_that_goes_on_with_another_message_is_refused(second):
    first = as_bytes([piece(), piece()])
    with pytest.raises(WireError, match="should follow, and another frame came"):
        wire.decode(first[: len(first) // 2] + second)


def test_decode_never_allocates_more_than_it_was_given():
    claim = reframed(reframed(FRAMES["dense"], 56, "<Q", 2**34), 72, "<Q", 2**34)
    with pytest.raises(WireError, match="bytes early"):
        wire.decode(reframed(claim, 80, "<Q", 2**34))


@pytest.mark.parametrize("position", [0, 1, 2, 20], ids=["operation", "op", "dtype", "algorithm"])
def test_a_call_that_says_nonsense_is_refused(position):
    packed = bytearray(CALL.pack())
    packed[position] = 250
    with pytest.raises(WireError, match="not the description of a call"):
        Call.unpack(bytes(packed))
