"""The wire format: round trips, exact sizes, and errors for everything that is not a frame."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparsewire as sw
from sparsewire import kernels
from sparsewire.coding import frame as wire
from sparsewire.coding.call import Abort, Call, Envelope
from sparsewire.coding.indices import BITMAP, COO, ELIAS_FANO, TILES, best_form, form_bytes
from sparsewire.coding.rounding import rounded
from sparsewire.coding.values import PRECISIONS, QSGD, TwoLevels
from sparsewire.errors import CollectiveTimeout, InputError, PeerLostError, WireError
from sparsewire.testing import same_bits
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype

CALL = Call("allreduce", "split_allgather", "sum", "float32", 1000, 0)
ENVELOPE = Envelope(7, CALL.pack())
FORMS = (COO, ELIAS_FANO, BITMAP, TILES)
WRITTEN = PRECISIONS | {"two_levels": TwoLevels()}  # how values may be written in a frame


def as_bytes(payload, envelope=ENVELOPE, price=0.0):
    return b"".join(bytes(memoryview(buffer)) for buffer in wire.encode(payload, envelope, price))


def piece(dtype="float32", length=1000, *, dense=False, ranged=False):
    vector = SparseVector(length, [2, 30, 31, 500, 999], np.arange(-2, 3).astype(value_dtype(dtype)))
    vector = vector.range(30, 600) if ranged else vector
    return vector.as_dense() if dense else vector


def coded(form, precision=None, dtype="float32", start=1000):
    """A piece whose indices are written in this form, and whose values travel in this precision."""
    offsets = {COO: [7], ELIAS_FANO: range(0, 3000, 50), BITMAP: range(0, 600, 2), TILES: range(1000, 1100)}
    stop = start + (600 if form == BITMAP else 9000)
    indices = np.array([start + offset for offset in offsets[form]])
    vector = SparseVector(20_000, indices, np.linspace(-3, 5, len(indices)).astype(dtype)).range(start, stop)
    assert best_form(vector.indices, vector.start, vector.stop).code == form
    return rounded(vector, WRITTEN[precision], (1, 2, 3)) if precision else vector


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
    message = wire.decode(as_bytes(sent))
    assert message.envelope == ENVELOPE
    assert same_bits(sent, message.payload)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", [None, *WRITTEN])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_coded_pieces_come_back_with_the_same_bits(form, precision, dtype):
    sent = coded(form, precision, dtype)
    got = wire.decode(as_bytes(sent)).payload
    assert same_bits(sent, got)
    assert (got.packed is None) == (precision is None)
    assert as_bytes(got) == as_bytes(sent)  # whoever forwards it sends the same
    assert as_bytes(got.decoded()) == as_bytes(sent)  # and so does whoever codes it anew


@pytest.mark.parametrize("form", [ELIAS_FANO, BITMAP, TILES])
def test_a_forwarded_piece_is_not_coded_anew(form):
    """Where coding has become too expensive, the bytes that came are still the cheapest."""
    frame = as_bytes(coded(form))
    came = wire.decode(frame).payload
    assert as_bytes(came, price=100.0) == frame
    assert wire.size(came, price=100.0) == len(frame)
    assert len(as_bytes(came.decoded(), price=100.0)) > len(frame)


def test_a_dense_piece_in_few_bits_comes_back():
    sent = rounded(SparseVector.from_dense(np.linspace(-1, 1, 1500)), QSGD(2, bucket=7), (0, 0, 0))
    frame = as_bytes(sent)
    assert same_bits(sent, wire.decode(frame).payload)
    assert len(frame) == wire.HEADER_BYTES + -(-(4 * 215 + 375) // 8) * 8


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_any_sixteen_bits_are_a_value(precision, dtype):
    """Some of them are signalling NaN, of which numpy would warn."""
    sent = rounded(SparseVector.from_dense(np.zeros(2**16, dtype)), PRECISIONS[precision], (0, 0, 0))
    bits = sent.packed.data.view(np.uint16)
    bits[:] = np.arange(2**16)
    with np.errstate(invalid="ignore"):
        expected = bits.view(value_dtype(precision)).astype(dtype)
    np.testing.assert_array_equal(wire.decode(as_bytes(sent)).payload.values, expected)


@pytest.mark.parametrize("precision", WRITTEN)
def test_a_nan_that_signals_is_rounded_to_nan(precision):
    signalling = np.array([0x7FF0_0000_2000_0000], np.uint64).view(np.float64)
    sent = rounded(SparseVector.from_dense(signalling), WRITTEN[precision], (0, 0, 0))
    assert np.isnan(wire.decode(as_bytes(sent)).payload.values).all()


def test_where_coding_costs_more_than_it_saves_indices_travel_as_they_are():
    sent = coded(ELIAS_FANO)
    assert len(as_bytes(sent, price=4.0)) == wire.HEADER_BYTES + sent.nbytes
    assert same_bits(sent, wire.decode(as_bytes(sent, price=4.0)).payload)


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
        Call("broadcast", detail=2**32 - 1),
        Call("allgather", dtype="bfloat16"),
        Call("allreduce", "dense_halving_doubling", "avg", "int64", 2**62),
        Call("allreduce", "auto", "avg", "float32", 5, precision="qsgd8"),
    ],
)
def test_a_call_comes_back(call):
    assert Call.unpack(call.pack()) == call


def test_every_algorithm_fits_into_a_call():
    for name in (*sw.ALGORITHMS, "auto"):
        assert Call.unpack(Call("allreduce", name).pack()).algorithm == name


def test_a_call_reads_like_one():
    assert str(CALL) == "allreduce(length=1,000, dtype=float32, algorithm=split_allgather, op=sum)"
    assert str(Call("broadcast", detail=3)) == "broadcast(root=3)"
    lossy = Call("allreduce", "auto", "sum", "float32", 8, precision="qsgd4")
    assert str(lossy) == "allreduce(length=8, dtype=float32, algorithm=auto, op=sum, precision=qsgd4)"


def test_one_frame_byte_for_byte():
    """If this fails the format has changed: raise VERSION and docs/wire-format.md with it."""
    sent = SparseVector(10, [1, 4, 7], np.array([1.0, -2.0, 0.5], "float32")).range(0, 8)
    assert as_bytes(sent).hex() == GOLDEN


GOLDEN = (
    "535057520305010007000000000000000201010000000000e803000000000000"
    "73706c69745f616c6c6761746865720000000000000000000a00000000000000"
    "00000000000000000800000000000000030000000000000001ca25a6192ea131"
    "0000000000000000ffffffff483ace2c92000000000000000000803f000000c0"
    "0000003f00000000"
)


# -- sizes ---------------------------------------------------------------------------------------


@given(st.sampled_from(VALUE_DTYPES), st.integers(0, 40), st.booleans(), st.sampled_from([50, 2**40]))
def test_size_is_what_encode_makes(dtype, nnz, dense, length):
    values = np.ones(nnz).astype(value_dtype(dtype))
    vector = SparseVector.from_dense(values) if dense else SparseVector(length, range(nnz), values)
    for payload in (vector, [vector], [vector, vector], Abort(InputError("why"), (1,))):
        assert wire.size(payload) == len(as_bytes(payload))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", [None, *WRITTEN])
@pytest.mark.parametrize("price", [0.0, 0.01, 0.3, 4.0])
def test_size_is_what_encode_makes_of_coded_pieces(form, precision, price):
    sent = coded(form, precision)
    frame = as_bytes(sent, price=price)
    assert wire.size(sent, price) == len(frame) == wire.decode(frame).nbytes


def test_encode_does_not_copy_the_arrays():
    sent = piece()
    buffers = wire.encode(sent, ENVELOPE, price=4.0)
    owners = [np.frombuffer(b, np.uint8) for b in buffers if isinstance(b, memoryview)]
    assert any(np.shares_memory(o, sent.indices) for o in owners)
    assert any(np.shares_memory(o, sent.values) for o in owners)


def test_a_list_without_pieces_cannot_be_sent():
    with pytest.raises(ValueError, match="send an empty vector instead"):
        wire.encode([], ENVELOPE)


# -- what is not a frame -------------------------------------------------------------------------

FRAMES = {
    "sparse": as_bytes(piece(), price=4.0),
    "elias_fano": as_bytes(piece(length=100_000)),
    "bitmap": as_bytes(SparseVector(9, [0, 2, 4, 6], np.ones(4, "float32"))),
    "tiles": as_bytes(SparseVector(9000, range(500, 520), np.ones(20, "int64"))),
    "float16": as_bytes(coded(COO, "float16")),
    "qsgd4": as_bytes(rounded(piece(), QSGD(4, bucket=2), (0, 0, 0))),
    "two_levels": as_bytes(rounded(piece(), TwoLevels(bucket=2), None)),
    "dense": as_bytes(piece("int32", dense=True).range(0, 7)),
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
    """Positions of padding bytes, which carry no information and are not read."""
    frame, padding, at = FRAMES[kind], set(), 0
    while at < len(frame):
        nnz, form, dtype = struct.unpack_from("<Q", frame, at + 80)[0], frame[at + 5], frame[at + 6]
        length, start, stop = struct.unpack_from("<QQQ", frame, at + 56)
        precision, tiles, bucket = frame[at + 7], *struct.unpack_from("<II", frame, at + 96)
        sizes = []
        if form not in (wire.DENSE, wire.ABORT):
            sizes = [form_bytes(form, nnz, stop - start, 4 if length <= 2**32 else 8, tiles)]
        if precision == 6:
            sizes += [8 * -(-nnz // bucket) + -(-nnz // 4)]
        elif precision:
            sizes += [2 * nnz if precision < 3 else 4 * -(-nnz // bucket) + -(-nnz // 2)]
        else:
            sizes += [nnz if form == wire.ABORT else nnz * value_dtype(VALUE_DTYPES[dtype - 1]).itemsize]
        at += wire.HEADER_BYTES
        for size in sizes:
            end = at + size
            at = end + -size % 8
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
    """A peer with a defect could send these: they never raise anything but WireError."""
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
        (4, "<B", 1, "version 1"),
        (5, "<B", 9, "unknown format 9"),
        (6, "<B", 0, "cannot have dtype 0"),
        (6, "<B", 99, "dtype 99"),
        (7, "<B", 7, "unknown precision 7"),
        (7, "<B", 6, "buckets of 0 in precision 6"),
        (7, "<B", 3, "buckets of 0 in precision 3"),
        (96, "<I", 1, "1 tiles in format 1"),
        (100, "<I", 1, "buckets of 1 in precision 0"),
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
    """The checksums are right, and the indices are wrong."""
    bad = SparseVector.piece(1000, 30, 600, np.array(indices, np.uint32), np.ones(2, "float32"))
    with pytest.raises(WireError, match="out of order or out of"):
        wire.decode(as_bytes(bad, price=4.0))


def test_words_that_code_other_indices_are_refused():
    """The checksums are right, but the words code one entry less, or one more, than the header says."""
    for form in (ELIAS_FANO, BITMAP, TILES):
        sent = coded(form)
        damaged = bytearray(as_bytes(sent))
        size = best_form(sent.indices, sent.start, sent.stop).nbytes
        damaged[wire.HEADER_BYTES + size - 8] ^= 1
        words = np.frombuffer(damaged, np.uint8)[wire.HEADER_BYTES :]
        checksum = kernels.checksum(words[size:], kernels.checksum(words[:size].copy()))
        with pytest.raises(WireError, match="does not code"):
            wire.decode(reframed(damaged, 88, "<Q", checksum))


def test_only_a_frame_and_no_call_has_two_levels():
    header = as_bytes(rounded(piece(), QSGD(2, bucket=7), None))[: wire.HEADER_BYTES]
    assert header[7] == 6
    assert struct.unpack_from("<I", header, 100) == (7,)
    packed = bytearray(CALL.pack())
    packed[3] = 6
    with pytest.raises(WireError, match="not the description of a call"):
        Call.unpack(bytes(packed))


def test_a_precision_of_integers_is_refused():
    integers = as_bytes(piece("int32"), price=4.0)
    with pytest.raises(WireError, match="precision 1, or impossible for dtype 5"):
        wire.decode(reframed(integers, 7, "<B", 1))


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
    with pytest.raises(WireError, match="2 frames to follow"):
        wire.decode(reframed(FRAMES["abort"], 104, "<I", 2))


@pytest.mark.parametrize("second", [as_bytes(piece()), FRAMES["abort"], as_bytes([piece()], Envelope(8))])
def test_a_list_that_goes_on_with_another_message_is_refused(second):
    first = as_bytes([piece(), piece()])
    with pytest.raises(WireError, match="should follow, and another frame came"):
        wire.decode(first[: len(first) // 2] + second)


def test_decode_never_allocates_more_than_it_was_given():
    claim = reframed(reframed(FRAMES["dense"], 56, "<Q", 2**34), 72, "<Q", 2**34)
    with pytest.raises(WireError, match="bytes early"):
        wire.decode(reframed(claim, 80, "<Q", 2**34))


@pytest.mark.parametrize(
    "position", [0, 1, 2, 3, 20], ids=["operation", "op", "dtype", "precision", "algorithm"]
)
def test_a_call_that_says_nonsense_is_refused(position):
    packed = bytearray(CALL.pack())
    packed[position] = 250
    with pytest.raises(WireError, match="not the description of a call"):
        Call.unpack(bytes(packed))
