"""The oracle is Python's float and int on words that were chosen before the text was written."""

import math
import struct

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire import kernels
from sparsewire.kernels.libsvm import LARGEST_INDEX, Expected, Parsed, Room, Wanted

CANARY = 0xA5
GUARD = 64

each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
index_dtypes = st.sampled_from([np.int32, np.int64])


def guarded_room(nbytes, index_dtype=np.int32, dtype=np.float64):
    """Room between bytes that nobody may write to, and a function that looks."""
    needed = [
        (nbytes // 2, np.float64),
        (nbytes // 2, np.int64),
        (nbytes // 4, index_dtype),
        (nbytes // 4, dtype),
    ]
    buffers = [np.full(n * np.dtype(t).itemsize + 2 * GUARD, CANARY, np.uint8) for n, t in needed]
    room = Room(*(b[GUARD:-GUARD].view(t) for b, (_, t) in zip(buffers, needed, strict=True)))

    def check():
        for buffer in buffers:
            assert set(buffer[:GUARD].tolist() + buffer[-GUARD:].tolist()) == {CANARY}

    return room, check


def parse(text, index_dtype=np.int32, dtype=np.float64, wanted=None, shift=0):
    """The result, and the rows as (label, indices, values)."""
    data = cases.frozen(cases.misaligned(np.frombuffer(text, np.uint8), shift))
    room, check = guarded_room(len(data), index_dtype, dtype)
    parsed = kernels.parse_libsvm(data, room, wanted or Wanted())
    check()
    stops = np.cumsum(room.counts[: parsed.rows]).tolist()
    starts = [0, *stops[:-1]]
    assert parsed.entries == (stops[-1] if stops else 0)
    rows = [
        (label, room.indices[start:stop].tolist(), room.values[start:stop].tolist())
        for label, start, stop in zip(room.labels.tolist(), starts, stops, strict=False)
    ]
    return parsed, rows


def fault(text, **options):
    """What was expected, and the line and the word that are wrong."""
    parsed, _ = parse(text, **options)
    if parsed.expected == Expected.NOTHING:
        return None
    line = text[parsed.line :].partition(b"\n")[0]
    assert parsed.line == 0 or text[parsed.line - 1 : parsed.line] == b"\n"
    assert parsed.line <= parsed.word <= parsed.line + len(line)
    return Expected(parsed.expected), line, text[parsed.word :].split()[0]


# ---- random texts, made from numbers that are known

floats = st.floats(allow_nan=False, allow_infinity=False)
# Short and long ones, ties between two doubles, with and without point and exponent.
number_words = (
    floats.map(repr)
    | st.sampled_from(
        ["0", "1", "-1", "+1", "1.", ".5", "-0", "1e-3", "1E+2", "007", "0e999", "1e-999", "9" * 30]
    )
    | st.builds("{}.{}".format, st.integers(-(10**9), 10**9), st.integers(0, 10**20))
    | st.builds("{}e{}".format, st.integers(0, 2**64), st.integers(-40, 40))
    | st.integers(2**53, 2**63).map(lambda n: str(2 * n + 1))
    | floats.map(lambda x: f"{x:.30e}")
)
blanks = st.sampled_from([" ", "  ", "\t", " \t "])


@st.composite
def rows(draw, limit):
    """(label, indices, values) as words."""
    indices = sorted(draw(st.sets(st.integers(0, 20) | st.integers(0, limit), max_size=5)))
    return draw(number_words), indices, [draw(number_words) for _ in indices]


@st.composite
def lines(draw, row):
    label, indices, values = row
    words = [label, *draw(st.sampled_from([[], ["qid:7"]]))]
    words += [f"{index}:{value}" for index, value in zip(indices, values, strict=True)]
    before = draw(st.sampled_from(["", " ", "\n", "# nan\n", " \t\r\n"]))
    after = draw(st.sampled_from(["", " ", "#", " # 1:2", "#3:4", "\r"]))
    return before + draw(blanks).join(words) + after + "\n"


@each_dtype
@given(data=st.data(), index_dtype=index_dtypes, shift=cases.shifts)
@cases.on_every_isa
def test_rows_are_the_numbers_that_were_written(isa, dtype, data, index_dtype, shift):
    written = data.draw(st.lists(rows(np.iinfo(index_dtype).max), max_size=6))
    text = "".join(data.draw(lines(row)) for row in written).encode()
    with np.errstate(over="ignore"):
        expected = [
            (float(label), indices, [float(dtype(float(value))) for value in values])
            for label, indices, values in written
        ]
    overflow = [i for i, (_, _, values) in enumerate(expected) if any(map(math.isinf, values))]
    expected = expected[: overflow[0]] if overflow else expected
    with kernels.use_isa(isa):
        parsed, found = parse(text, index_dtype, dtype, shift=shift)
    assert bits(found) == bits(expected)
    assert parsed.expected == (Expected.SMALLER_NUMBER if overflow else Expected.NOTHING)
    indices = [index for _, row_indices, _ in expected for index in row_indices]
    assert (parsed.smallest, parsed.largest) == (
        min(indices, default=LARGEST_INDEX),
        max(indices, default=-1),
    )


def bits(found):
    """Zeros of different signs differ."""
    return [
        (struct.pack("d", label), indices, [struct.pack("d", v) for v in values])
        for label, indices, values in found
    ]


@given(text=st.text("0123456789+-.eE:# \t\r\n,qidnaf", max_size=60), index_dtype=index_dtypes)
def test_all_versions_say_the_same_of_any_text(text, index_dtype):
    outcomes = []
    for isa in kernels.available_isas():
        with kernels.use_isa(isa):
            parsed, found = parse(text.encode() + b"\n", index_dtype)
        outcomes.append((parsed, bits(found)))
    assert all(outcome == outcomes[0] for outcome in outcomes)


@given(text=st.binary(max_size=60))
def test_all_versions_say_the_same_of_any_bytes(text):
    outcomes = []
    for isa in kernels.available_isas():
        with kernels.use_isa(isa):
            outcomes.append(parse(b"1 2:3 " + text + b"\n"))
    assert all(outcome == outcomes[0] for outcome in outcomes)


# ---- what is no row, and what is malformed


@cases.each_isa
@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n", b" \t\r\n", b"#\n", b"  # 1 2:3\n\r\n"])
def test_lines_without_a_word_are_no_rows(isa, text):
    with kernels.use_isa(isa):
        parsed, found = parse(text)
    assert found == []
    assert parsed == Parsed(lines=text.count(b"\n"))


@cases.each_isa
def test_the_fullest_texts_fit_into_the_room(isa):
    with kernels.use_isa(isa):
        assert parse(b"1\n" * 40)[0].rows == 40
        assert parse(b"1 1:1 2:2 3:3 4:4\n")[1] == [(1.0, [1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0])]


MALFORMED = {
    b"x 1:2": (Expected.LABEL, b"x"),
    b"1:2 3:4": (Expected.LABEL, b"1:2"),
    b": 3:4": (Expected.LABEL, b":"),
    b"+ 3:4": (Expected.LABEL, b"+"),
    b"1,2 3:4": (Expected.ONE_LABEL, b"1,2"),
    b"1, 3:4": (Expected.ONE_LABEL, b"1,"),
    b"nan 3:4": (Expected.FINITE_NUMBER, b"nan"),
    b"-Infinity 3:4": (Expected.FINITE_NUMBER, b"-Infinity"),
    b"1e400 3:4": (Expected.SMALLER_NUMBER, b"1e400"),
    b"1 qid: 3:4": (Expected.QUERY, b"qid:"),
    b"1 qid:x 3:4": (Expected.QUERY, b"qid:x"),
    b"1 qid:3:4": (Expected.QUERY, b"qid:3:4"),
    b"1 3:4 qid:3": (Expected.ENTRY, b"qid:3"),
    b"1 qid:3 qid:3": (Expected.ENTRY, b"qid:3"),
    b"1 3": (Expected.ENTRY, b"3"),
    b"1 :3": (Expected.ENTRY, b":3"),
    b"1 -3:4": (Expected.ENTRY, b"-3:4"),
    b"1 3.0:4": (Expected.ENTRY, b"3.0:4"),
    b"1 3 :4": (Expected.ENTRY, b"3"),
    b"1 3:": (Expected.VALUE, b"3:"),
    b"1 3: 4": (Expected.VALUE, b"3:"),
    b"1 3:4:5": (Expected.VALUE, b"3:4:5"),
    b"1 3:4x": (Expected.VALUE, b"3:4x"),
    b"1 3:.": (Expected.VALUE, b"3:."),
    b"1 3:1e": (Expected.VALUE, b"3:1e"),
    b"1 3:1e+": (Expected.VALUE, b"3:1e+"),
    b"1 3:--1": (Expected.VALUE, b"3:--1"),
    b"1 3:0x1": (Expected.VALUE, b"3:0x1"),
    b"1 3:1_0": (Expected.VALUE, b"3:1_0"),
    b"1 3:1,0": (Expected.VALUE, b"3:1,0"),
    b"1 3:nane": (Expected.VALUE, b"3:nane"),
    b"1 3:NaN": (Expected.FINITE_NUMBER, b"3:NaN"),
    b"1 3:+inf": (Expected.FINITE_NUMBER, b"3:+inf"),
    b"1 3:-1e309": (Expected.SMALLER_NUMBER, b"3:-1e309"),
    b"1 3:1 3:1": (Expected.LARGER_INDEX, b"3:1"),
    b"1 3:1 2:1": (Expected.LARGER_INDEX, b"2:1"),
    b"1 2147483648:1": (Expected.INDEX_UP_TO_HIGHEST, b"2147483648:1"),
    b"1 18446744073709551617:1": (Expected.INDEX_UP_TO_HIGHEST, b"18446744073709551617:1"),
    b"1 " + b"9" * 5000 + b":1": (Expected.INDEX_UP_TO_HIGHEST, b"9" * 5000 + b":1"),
}


@cases.each_isa
@pytest.mark.parametrize("line", MALFORMED, ids=lambda line: line.decode()[:24])
def test_the_first_malformed_line_and_its_word_are_named(isa, line):
    text = b"+1 5:1 # fine\n\n" + line + b"\nrubbish\n"
    with kernels.use_isa(isa):
        parsed, found = parse(text)
        expected, word = MALFORMED[line]
        assert fault(text) == (expected, line, word)
    assert found == [(1.0, [5], [1.0])]
    assert (parsed.lines, parsed.line) == (3, 15)


@cases.each_isa
@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("4.9e-324", 5e-324),
        ("2.4e-324", 0.0),
        ("-1e-999999999999999999999", -0.0),
        ("0e999999999999999999999", 0.0),
        ("0." + "0" * 400 + "1e401", 1.0),
        ("1" + "0" * 400 + "e-400", 1.0),
        ("9007199254740993", 9007199254740992.0),
        ("9007199254740993.0000000000000000000000001", 9007199254740994.0),
        ("0.04729999974370003", 0.04729999974370003),
    ],
)
def test_numbers_of_any_length_and_size_are_rounded_once(isa, word, number):
    with kernels.use_isa(isa):
        (found,) = parse(f"{word} 1:{word}\n".encode())[1]
    assert bits([found]) == bits([(number, [1], [number])])


@cases.each_isa
def test_what_float32_cannot_hold_is_refused_as_value_and_kept_as_label(isa):
    with kernels.use_isa(isa):
        assert parse(b"1e39 1:3.4028235e38\n", dtype=np.float32)[1][0][0] == 1e39
        assert fault(b"1 1:1e39\n", dtype=np.float32) == (Expected.SMALLER_NUMBER, b"1 1:1e39", b"1:1e39")
        assert fault(b"1 1:1e39\n", dtype=np.float64) is None


@cases.each_isa
def test_indices_are_held_against_the_bounds(isa):
    bounds = Wanted(lowest=1, highest=9)
    with kernels.use_isa(isa):
        assert fault(b"1 1:1 9:1\n", wanted=bounds) is None
        assert fault(b"1 0:1 9:1\n", wanted=bounds)[::2] == (Expected.INDEX_FROM_LOWEST, b"0:1")
        assert fault(b"1 1:1 10:1\n", wanted=bounds)[::2] == (Expected.INDEX_UP_TO_HIGHEST, b"10:1")
        largest = f"1 {LARGEST_INDEX}:1\n".encode()
        assert parse(largest, np.int64)[0].largest == LARGEST_INDEX
        above = f"1 {LARGEST_INDEX + 1}:1\n".encode()
        assert fault(above, index_dtype=np.int64)[0] == Expected.INDEX_UP_TO_HIGHEST


@given(first=st.integers(0, 12), every=st.integers(1, 5), count=st.integers(0, 12))
@cases.on_every_isa
def test_only_wanted_lines_are_read(isa, first, every, count):
    text = b"".join(b"%d 1:1\n" % line for line in range(count))
    with kernels.use_isa(isa):
        parsed, found = parse(text, wanted=Wanted(first, every))
    assert [label for label, _, _ in found] == list(range(first, count, every))
    assert parsed.lines == count


@cases.each_isa
def test_lines_that_are_not_wanted_may_be_anything(isa):
    with kernels.use_isa(isa):
        assert [row[0] for row in parse(b"x\n1\n\x00\n#\n", wanted=Wanted(1, 2))[1]] == [1.0]


@cases.each_isa
def test_a_query_is_seen_in_rows_and_not_in_comments(isa):
    with kernels.use_isa(isa):
        assert parse(b"1 qid:3 4:5\n")[0].has_query
        assert parse(b"1 qid:3#\n")[0].has_query
        assert not parse(b"1 4:5 # qid:3\n")[0].has_query


# ---- arguments

TEXT = np.frombuffer(b"1 2:3\n", np.uint8)


@cases.each_isa
@pytest.mark.parametrize(
    ("field", "array"),
    [
        ("labels", np.empty(3, np.float32)),
        ("counts", np.empty(3, np.int32)),
        ("indices", np.empty(3, np.uint32)),
        ("values", np.empty(3, np.float16)),
        ("values", np.empty(3, ">f4")),
        ("values", np.empty(6, np.float32)[::2]),
        ("indices", [0, 0, 0]),
    ],
)
def test_room_of_another_type_is_a_type_error(isa, field, array):
    room = guarded_room(len(TEXT))[0]._replace(**{field: array})
    with kernels.use_isa(isa), pytest.raises(TypeError, match=field):
        kernels.parse_libsvm(TEXT, room)


@cases.each_isa
@pytest.mark.parametrize("field", Room._fields)
def test_too_little_room_is_a_value_error(isa, field):
    room = guarded_room(len(TEXT))[0]
    room = room._replace(**{field: getattr(room, field)[:-1]})
    with (
        kernels.use_isa(isa),
        pytest.raises(ValueError, match=f"6 bytes of text may need room for . {field}"),
    ):
        kernels.parse_libsvm(TEXT, room)


@cases.each_isa
@pytest.mark.parametrize("field", Room._fields)
def test_read_only_room_is_a_value_error(isa, field):
    room = guarded_room(len(TEXT))[0]
    cases.frozen(getattr(room, field))
    with kernels.use_isa(isa), pytest.raises(ValueError, match=f"{field} is read-only"):
        kernels.parse_libsvm(TEXT, room)


@cases.each_isa
@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(first=-1),
        Wanted(every=0),
        Wanted(lowest=-1),
        Wanted(lowest=3, highest=2),
        Wanted(highest=2**63),
    ],
)
def test_lines_and_indices_that_cannot_be_are_a_value_error(isa, wanted):
    with kernels.use_isa(isa), pytest.raises(ValueError, match="no such lines or indices"):
        kernels.parse_libsvm(TEXT, guarded_room(len(TEXT))[0], wanted)


@cases.each_isa
def test_text_that_does_not_end_with_a_newline_is_refused(isa):
    with kernels.use_isa(isa), pytest.raises(ValueError, match="must end with a newline"):
        kernels.parse_libsvm(TEXT[:-1].copy(), guarded_room(len(TEXT))[0])
