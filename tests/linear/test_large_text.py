"""Small files that become large, and lines without an end: memory stays bounded."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparsewire.errors import InputError
from sparsewire.linear import load_libsvm, text_file

MIB = 1 << 20


def zstd_compress(text):
    zstandard = pytest.importorskip("zstandard", reason="zstd needs zstandard before Python 3.14")
    return zstandard.ZstdCompressor().compress(text)


COMPRESSORS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstd_compress}


@contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= nbytes


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_small_file_that_decompresses_to_much_is_read_in_steps(tmp_path, name):
    path = tmp_path / "small.svm"
    path.write_bytes(COMPRESSORS[name](b"1 1:1\n" + b"\n" * (96 * MIB) + b"2 3:4\n"))
    assert path.stat().st_size < MIB
    with at_most(48 * MIB):
        rows, labels = load_libsvm(path)
    assert rows.toarray().tolist() == [[1, 0, 0], [0, 0, 4]]
    assert labels.tolist() == [1, 2]


def test_a_line_without_an_end_is_refused_with_its_number(tmp_path):
    path = tmp_path / "endless.svm"
    path.write_bytes(b"1 1:1\n2 2:2\n")
    with path.open("r+b") as file:
        file.truncate(20 * text_file.LONGEST_LINE)  # zeros, which take no room on the disk
    with pytest.raises(InputError, match=r"endless.svm, line 3: it has more than 64 MiB"):
        load_libsvm(path)


def test_a_compressed_line_without_an_end_is_refused_with_its_number(tmp_path):
    path = tmp_path / "endless.svm.bz2"
    path.write_bytes(bz2.compress(b"1 1:1\n" + b"0" * (300 * MIB)))
    assert path.stat().st_size < 1000
    with (
        at_most(4 * text_file.LONGEST_LINE),
        pytest.raises(InputError, match=r"endless.svm.bz2, line 2: it has more than 64 MiB"),
    ):
        load_libsvm(path)


def test_a_long_row_is_read(tmp_path):
    path = tmp_path / "long.svm"
    entries = 3 * text_file.PIECE_BYTES // 8
    path.write_text("1 " + " ".join(f"{index + 1}:1" for index in range(entries)) + "\n-1 1:1\n")
    rows, _ = load_libsvm(path)
    assert rows.shape == (2, entries)
    assert rows.nnz == entries + 1
