"""Reading LIBSVM files, compared with scikit-learn's reader; shares of ranks are compared with the whole."""

import bz2
import gzip
import io
import itertools
import lzma
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, vstack
from sklearn.datasets import load_svmlight_file

from sparsewire.errors import InputError, MissingExtraError
from sparsewire.linear import libsvm, text_file
from sparsewire.linear.libsvm import load_libsvm
from sparsewire.testing import run_program

SIZES = range(1, 10)
# Rows of very different lengths, comments, blank lines, carriage returns, and no newline at the end.
MIXED = (
    b"# made by hand\n"
    b"+1 1:0.5 7:-2.25 # first\n"
    b"\n"
    b"-1 2:1e-3\r\n"
    b"0\n"
    b"   \t\r\n"
    b"3.5 " + b" ".join(b"%d:%d" % (i, i) for i in range(1, 60)) + b"\n"
    b"-1 59:1\n" * 9 + b"2\t1:0\t5:.5"
)


def same(a, b):
    """Check that two matrices have the same bits, stored zeros and dtypes included."""
    arrays = [(a.data, b.data), (a.indices, b.indices), (a.indptr, b.indptr)]
    return a.shape == b.shape and all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in arrays)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("libsvm")


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "mixed.svm"
    path.write_bytes(MIXED)
    return path


@pytest.fixture
def write(tmp_path):
    def write(text, name="file.svm"):
        path = tmp_path / name
        path.write_bytes(text)
        return path

    return write


# ---- what rows are


@st.composite
def texts(draw):
    """Lines that scikit-learn reads too."""
    numbers = st.sampled_from(["1", "0", "-1", "+2", "1e-3", ".5", "7."]) | st.floats(-1e30, 1e30).map(repr)
    lines = []
    for _ in range(draw(st.integers(1, 12))):
        indices = sorted(draw(st.sets(st.integers(0, 30) | st.integers(0, 10**6), max_size=6)))
        words = [draw(numbers), *(f"{index}:{draw(numbers)}" for index in indices)]
        lines.append(draw(st.sampled_from([" ", "\t", "  "])).join(words))
        lines.append(draw(st.sampled_from(["\n", "\r\n", " # 1:2\n", "\n\n", "\n# none\n"])))
    return "".join(lines).encode()


@given(
    text=texts(), zero_based=st.sampled_from(["auto", True]), dtype=st.sampled_from([np.float32, np.float64])
)
def test_rows_are_those_of_scikit_learn(folder, text, zero_based, dtype):
    path = folder / "random.svm"
    path.write_bytes(text)
    rows, labels = load_libsvm(path, zero_based=zero_based, dtype=dtype)
    expected, targets = load_svmlight_file(io.BytesIO(text), zero_based=zero_based, dtype=dtype)
    assert isinstance(rows, csr_array)
    assert rows.dtype == dtype
    assert rows.data.tobytes() == expected.data.tobytes()
    assert rows.indices.tolist() == expected.indices.tolist()
    assert rows.indptr.tolist() == expected.indptr.tolist()
    assert rows.shape == expected.shape or rows.nnz == 0  # scikit-learn gives at least one column
    assert labels.dtype == np.float64
    assert labels.tobytes() == targets.tobytes()


@given(text=texts(), piece_bytes=st.integers(2, 80))
def test_pieces_of_any_size_give_the_same_rows(folder, text, piece_bytes):
    path = folder / "pieces.svm"
    path.write_bytes(text)
    whole = load_libsvm(path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_file, "PIECE_BYTES", piece_bytes)
        patched.setattr(libsvm, "PIECE_BYTES", piece_bytes)
        rows, labels = load_libsvm(path)
    assert same(rows, whole[0])
    assert labels.tobytes() == whole[1].tobytes()


def test_stored_zeros_stay_and_the_last_line_needs_no_newline(mixed):
    rows, labels = load_libsvm(mixed)
    assert rows.shape == (14, 59)
    assert rows.has_canonical_format
    assert labels.tolist() == [1, -1, 0, 3.5, *[-1] * 9, 2]
    assert rows[[13]].nnz == 2
    assert rows[[13]].toarray()[0, :5].tolist() == [0, 0, 0, 0, 0.5]


@pytest.mark.parametrize(("zero_based", "columns"), [("auto", [0, 2]), (False, [0, 2]), (True, [1, 3])])
def test_indices_count_from_one_unless_zero_occurs_or_the_caller_says_so(write, zero_based, columns):
    rows, _ = load_libsvm(write(b"1 1:5 3:6\n"), zero_based=zero_based)
    assert rows.indices.tolist() == columns
    assert rows.shape == (1, columns[-1] + 1)


def test_index_zero_anywhere_makes_a_file_zero_based(write):
    assert load_libsvm(write(b"1 1:5 3:6\n1 0:1\n"))[0].indices.tolist() == [1, 3, 0]


def test_features_are_the_number_of_columns(write):
    path = write(b"1 1:5 3:6\n")
    assert load_libsvm(path, features=3)[0].shape == (1, 3)
    assert load_libsvm(path, features=10)[0].shape == (1, 10)
    assert load_libsvm(path, features=np.int64(4), zero_based=True)[0].shape == (1, 4)


@pytest.mark.parametrize("text", [b"", b"\n", b"# nothing\n"])
def test_a_file_without_rows_has_none(write, text):
    rows, labels = load_libsvm(write(text))
    assert (rows.shape, labels.shape) == ((0, 0), (0,))
    assert load_libsvm(write(text), features=7)[0].shape == (0, 7)


def test_rows_without_entries_have_no_columns(write):
    rows, labels = load_libsvm(write(b"1\n2\n"))
    assert rows.shape == (2, 0)
    assert labels.tolist() == [1, 2]


def test_indices_are_int32_unless_they_do_not_fit(write, monkeypatch):
    monkeypatch.setattr(libsvm, "WIDENED_AT_ONCE", 3)
    monkeypatch.setattr(text_file, "PIECE_BYTES", 64)
    many = b"".join(b"%d %d:1 %d:2\n" % (i, i + 1, i + 50) for i in range(40))
    fits, beyond = b"1 2147483647:1\n", b"1 2147483648:1\n"
    rows, _ = load_libsvm(write(many + fits))
    assert (rows.indices.dtype, rows.indptr.dtype, rows.shape[1]) == (np.int32, np.int32, 2**31 - 1)
    wide, _ = load_libsvm(write(many + beyond))
    assert (wide.indices.dtype, wide.indptr.dtype, wide.shape[1]) == (np.int64, np.int64, 2**31)
    assert wide.indices.tolist() == [*rows.indices[:-1].tolist(), 2**31 - 1]
    assert wide.indptr.tolist() == rows.indptr.tolist()
    given, _ = load_libsvm(write(many), features=2**31)
    assert (given.indices.dtype, given.indptr.dtype) == (np.int64, np.int64)
    assert given.indices.tolist() == rows.indices[:-1].tolist()


def test_qid_is_ignored_with_one_warning(write):
    path = write(b"1 qid:1 2:3\n2 qid:1 2:4\n")
    with pytest.warns(UserWarning, match=r"file.svm has qid: fields, which are ignored") as caught:
        rows, _ = load_libsvm(path)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert rows.toarray().tolist() == [[0, 3], [0, 4]]


# ---- shares


@given(text=texts(), size=st.sampled_from(SIZES), piece_bytes=st.sampled_from([3, 16, 1000]))
def test_every_line_begins_in_exactly_one_range(folder, text, size, piece_bytes):
    path = folder / "ranges.svm"
    path.write_bytes(text)
    file = text_file.TextFile.at(str(path))
    cuts = [len(text) * rank // size for rank in range(size + 1)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_file, "PIECE_BYTES", piece_bytes)
        pieces = [
            (offset, piece.tobytes())
            for start, stop in itertools.pairwise(cuts)
            for offset, piece in file.lines(start, stop)
        ]
    assert b"".join(piece for _, piece in pieces) == (text if text.endswith(b"\n") else text + b"\n")
    for offset, piece in pieces:
        assert piece.startswith(text[offset : offset + len(piece)])
        assert file.line_number(offset) == 1 + text[:offset].count(b"\n")


@pytest.mark.parametrize("size", SIZES)
def test_shares_together_are_the_file(mixed, write, size, monkeypatch):
    monkeypatch.setattr(text_file, "PIECE_BYTES", 64)  # several pieces, and one line is longer than a piece
    packed = write(gzip.compress(MIXED), "mixed.svm.gz")
    whole, labels = load_libsvm(mixed)

    def program(comm):
        return load_libsvm(mixed, comm=comm), load_libsvm(packed, comm=comm)

    plain, dealt = zip(*run_program(program, size), strict=True)
    assert same(csr_array(vstack([rows for rows, _ in plain])), whole)
    assert np.concatenate([y for _, y in plain]).tolist() == labels.tolist()
    # Rank r has the lines of a compressed file whose numbers are r modulo P.
    numbers = [n for n, line in enumerate(MIXED.split(b"\n")) if line.partition(b"#")[0].strip()]
    for rank, (rows, y) in enumerate(dealt):
        mine = [row for row, number in enumerate(numbers) if number % size == rank]
        assert y.tolist() == labels[mine].tolist()
        assert rows.shape == (len(mine), whole.shape[1])
        assert (rows != whole[mine]).nnz == 0


def test_ranks_agree_on_what_only_one_of_them_has_seen(write):
    zero = write(b"1 5:1\n" * 20 + b"1 0:1\n", "zero.svm")
    large = write(b"1 5:1\n" * 20 + b"1 3000000000:1\n", "large.svm")
    query = write(b"1 5:1\n" * 20 + b"1 qid:3 7:1\n", "query.svm")
    few = write(b"1 3:1\n2 1:1\n", "few.svm")

    def program(comm):
        return [load_libsvm(path, comm=comm)[0] for path in (zero, large, query, few)]

    with pytest.warns(UserWarning, match="qid") as caught:
        results = run_program(program, 3)
    assert len(caught) == 1
    for zeros, wide, narrow, small in results:
        assert set(zeros.indices.tolist()) <= {0, 5}
        assert (wide.indices.dtype, wide.shape[1]) == (np.int64, 3_000_000_000)
        assert (narrow.indices.dtype, narrow.shape[1]) == (np.int32, 7)
        assert small.shape[1] == 3
    assert sorted(result[3].shape[0] for result in results) == [0, 1, 1]


# ---- what is wrong with a file

WRONG = {
    b"x 1:2": "expected a number as label, got 'x'",
    b"1,2 1:2": "expected one label (several of a row are not supported), got '1,2'",
    b"1 3:nan": "expected a finite number, got '3:nan'",
    b"1 3:1e39": "expected a number that its type can hold",
    b"1 qid:x 1:2": "expected a whole number after qid:, got 'qid:x'",
    b"1 three:4": "expected index:value, the index a whole number, got 'three:4'",
    b"1 3:four": "expected a number after the colon, got '3:four'",
    b"1 3:4 2:1": "expected an index above the one before it, got '2:1'",
    b"1 3:4#\n2 3:\xff\xff": "got '3:\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}'",
    b"\x0b 1:2": r"expected a number as label, got '\x0b'",
    b"1 " + b"y" * 100: f"got '{'y' * 40}...'",
}


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line.decode(errors="replace")[:16])
def test_a_malformed_line_is_named(write, line):
    path = write(b"1 1:1\n\n# fine\n" * 1000 + line)
    with pytest.raises(InputError) as raised:
        load_libsvm(path)
    number = 3001 + line.count(b"\n")
    assert str(raised.value).startswith(f"{path}, line {number}: ")
    assert WRONG[line] in str(raised.value)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"1 0:1\n", {"zero_based": False}, "an index from 1 on (zero_based is False), got '0:1'"),
        (b"1 4:1\n", {"features": 3}, "an index up to 3 (features is 3), got '4:1'"),
        (
            b"1 4:1\n",
            {"features": 3, "zero_based": False},
            "an index up to 3 (features is 3 and indices count from 1), got '4:1'",
        ),
        (
            b"1 3:1\n",
            {"features": 3, "zero_based": True},
            "an index up to 2 (features is 3 and indices count from 0), got '3:1'",
        ),
        (
            b"1 3:1\n1 0:1\n",
            {"features": 3},
            "an index up to 2 (features is 3 and indices count from 0), got '3:1'",
        ),
        (b"1 9223372036854775807:1\n", {}, "an index up to 9223372036854775806 (more are not supported)"),
    ],
)
def test_an_index_out_of_range_is_named_with_the_limit(write, text, options, message):
    path = write(b"1 1:1\n" + text)
    with pytest.raises(InputError) as raised:
        load_libsvm(path, **options)
    assert str(raised.value).startswith(f"{path}, line 2: expected {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "features is 0; it must be the number of columns"),
        ({"features": 2.5}, "features is 2.5"),
        ({"features": 2**63}, "features is 9223372036854775808"),
        ({"zero_based": "maybe"}, "zero_based is 'maybe'; it must be True, False or 'auto'"),
        ({"dtype": np.float16}, "dtype is float16; values are float32 or float64"),
    ],
)
def test_unusable_options_are_refused(mixed, options, message):
    with pytest.raises(InputError, match=message):
        load_libsvm(mixed, **options)


def test_a_path_that_is_no_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"absent.svm cannot be read: No such file or directory"):
        load_libsvm(tmp_path / "absent.svm")
    with pytest.raises(InputError, match="is not a file"):
        load_libsvm(tmp_path)


def test_a_file_that_changes_while_it_is_read_is_refused(mixed):
    file = text_file.TextFile.at(str(mixed))
    pieces = file.lines(0, file.nbytes)
    next(pieces)
    mixed.write_bytes(MIXED[:-1])
    with pytest.raises(InputError, match="was written to while it was read"):
        next(pieces)
    with pytest.raises(InputError, match="was written to while it was read"):
        list(file.lines(0, file.nbytes))


def test_errors_of_one_rank_are_raised_on_every_rank_and_the_next_call_works(mixed, write):
    lines = [b"%d 1:1 2:1" % number for number in range(300)]
    late = write(b"\n".join([*lines[:250], b"1 2:x", *lines]), "late.svm")
    twice = write(b"\n".join([b"x", *lines, b"y"]), "twice.svm")
    column = write(b"\n".join([b"1 0:1", *lines, b"1 3:1"]), "column.svm")
    packed = write(gzip.compress(b"\n".join([*lines[:250], b"1 2:x", *lines])), "packed.gz")
    cut_off = write(gzip.compress(b"\n".join(lines))[:-1], "cut.gz")

    def program(comm):
        calls = [
            lambda: load_libsvm(late, comm=comm),
            lambda: load_libsvm(twice, comm=comm),
            lambda: load_libsvm(column, features=3, comm=comm),
            lambda: load_libsvm(packed, comm=comm),
            lambda: load_libsvm(cut_off, comm=comm),
            lambda: load_libsvm(mixed if comm.rank != 1 else mixed.with_name("absent"), comm=comm),
            lambda: load_libsvm(mixed if comm.rank != 1 else column, comm=comm),
            lambda: load_libsvm(mixed, features=60 + comm.rank, comm=comm),
            lambda: load_libsvm(mixed, dtype=np.float32 if comm.rank else np.float64, comm=comm),
        ]
        messages = []
        for call in calls:
            with pytest.raises(InputError) as raised:
                call()
            messages.append(str(raised.value))
        return messages, load_libsvm(mixed, comm=comm)[0].shape[0]

    outcomes = run_program(program, 3)
    assert sum(rows for _, rows in outcomes) == 14
    for messages, _ in outcomes:
        assert "late.svm, line 251: expected a number after the colon, got '2:x'" in messages[0]
        assert "twice.svm, line 1: " in messages[1] or "twice.svm, line 302: " in messages[1]
        assert "column.svm, line 302: expected an index up to 2 (features is 3 and" in messages[2]
        assert "packed.gz, line 251: expected a number after the colon" in messages[3]
        assert "cut.gz is cut off: its gzip data has no end" in messages[4]
        assert "absent cannot be read" in messages[5]
        assert "the file's size in bytes must be the same on every rank" in messages[6]
        assert (
            "the features must be the same on every rank: it is 60 on rank 0 and 61 on rank 1" in messages[7]
        )
        assert "it is float64 on rank 0 and float32 on rank 1" in messages[8]


# ---- compressed files


def zstd_compress(text):
    zstandard = pytest.importorskip("zstandard", reason="zstd needs zstandard before Python 3.14")
    return zstandard.ZstdCompressor(write_checksum=True).compress(text)


COMPRESSORS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstd_compress}
each_compression = pytest.mark.parametrize("name", COMPRESSORS)
LONG = b"".join(b"%d %d:%r\n" % (i % 2, i + 1, 1 / (i + 1)) for i in range(2000))


@each_compression
def test_a_compressed_file_is_known_by_its_content(mixed, write, name):
    rows, labels = load_libsvm(write(COMPRESSORS[name](MIXED), "misnamed.svm"))
    whole = load_libsvm(mixed)
    assert same(rows, whole[0])
    assert labels.tolist() == whole[1].tolist()
    assert same(load_libsvm(write(MIXED, "plain.gz"))[0], rows)


@each_compression
def test_streams_one_after_the_other_are_one_text(mixed, write, name):
    compress = COMPRESSORS[name]
    parts = [compress(MIXED[:70]), compress(b""), compress(MIXED[70:])]
    whole = load_libsvm(mixed)[0]
    assert same(load_libsvm(write(b"".join(parts)))[0], whole)
    filled = [part + b"\0" * 512 for part in parts]
    assert same(load_libsvm(write(b"".join(filled)))[0], whole)


@each_compression
@settings(max_examples=15)
@given(data=st.data())
def test_a_file_that_is_cut_off_is_never_half_a_data_set(folder, name, data):
    compressed = COMPRESSORS[name](LONG)
    length = data.draw(
        st.sampled_from([8, len(compressed) - 1, len(compressed) // 2]) | st.integers(8, len(compressed) - 1)
    )
    path = folder / f"cut.{name}"
    path.write_bytes(compressed[:length])
    with pytest.raises(InputError, match=rf"cut.{name} is cut off: its {name} data has no end"):
        load_libsvm(path)


@each_compression
def test_damage_is_never_half_a_data_set(write, name):
    compressed = COMPRESSORS[name](LONG)
    middle = len(compressed) // 2
    damaged = bytes([*compressed[:middle], compressed[middle] ^ 0x55, *compressed[middle + 1 :]])
    again = compressed + b"\x55" + compressed[1:]  # a second stream that begins with a wrong byte
    for content in (damaged, again, compressed + b"rubbish, and more of it"):
        with pytest.raises(InputError, match=rf"file.svm is damaged {name} data|cut off|line \d+"):
            load_libsvm(write(content))


def test_an_empty_file_with_the_name_of_a_compressed_one_was_cut_off(write):
    with pytest.raises(InputError, match=r"none.xz is empty, which no compressed file is"):
        load_libsvm(write(b"", "none.xz"))


def test_zstd_says_what_to_install(write, monkeypatch):
    path = write(b"\x28\xb5\x2f\xfd and so on")
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match="zstandard is not installed: pip install zstandard"):
        load_libsvm(path)


# ---- memory


@pytest.mark.parametrize("is_packed", [False, True])
def test_memory_is_that_of_the_rows_and_a_constant(write, monkeypatch, is_packed):
    monkeypatch.setattr(text_file, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(libsvm, "PIECE_BYTES", 1 << 16)
    text = (b"1 " + b" ".join(b"%d:1" % index for index in range(1, 101)) + b"\n") * 8000
    path = write(gzip.compress(text, 1) if is_packed else text)
    load_libsvm(write(b"1 1:1\n", "small.svm"))  # so that imports are not measured
    del text
    tracemalloc.start()
    rows, labels = load_libsvm(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    nbytes = rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes + labels.nbytes
    assert nbytes > 6_000_000
    assert peak < 1.06 * nbytes + 3_000_000
