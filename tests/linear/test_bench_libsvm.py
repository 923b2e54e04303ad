import numpy as np
import pytest

from sparsewire.bench.libsvm import MADE, measure_libsvm
from sparsewire.errors import InputError
from sparsewire.linear import libsvm


def test_both_readers_have_a_row_and_read_the_same(tmp_path):
    path = tmp_path / "three.svm"
    path.write_text("1 1:0.5 3:2\n-1 2:1\n1\n")
    told = []
    ours, peer = measure_libsvm(str(path), budget_s=0.0, on_progress=lambda *now: told.append(now))
    assert (ours.reader, peer.reader) == ("sparsewire", "sklearn")
    for row in (ours, peer):
        assert (row.file, row.rows, row.nnz, row.wrong) == ("three.svm", 3, 3, 0)
        assert row.megabytes == path.stat().st_size / 1e6
        assert (row.seconds_min, row.seconds_median) == (min(row.seconds), np.median(row.seconds))
        assert row.megabytes_per_second == row.megabytes / row.seconds_median
    assert ours.speedup_vs_sklearn == peer.seconds_median / ours.seconds_median
    assert peer.speedup_vs_sklearn == 1
    assert told == [("first read", 0, 1), *(("reading in turns", done, 3) for done in range(3))]


def test_without_a_file_one_like_the_url_data_set_is_made():
    ours, _ = measure_libsvm(rows=50, budget_s=0.0)
    assert (ours.file, ours.rows, ours.wrong) == (MADE, 50, 0)
    assert 100 < ours.nnz / ours.rows < 130


def test_what_differs_is_counted(monkeypatch):
    read = libsvm.load_libsvm

    def misread(file):
        rows, labels = read(file)
        rows.data[3], rows.indices[5], labels[1] = 7, 0, 9
        return rows, labels

    monkeypatch.setattr(libsvm, "load_libsvm", misread)
    ours, peer = measure_libsvm(rows=3, budget_s=0.0)
    assert (ours.wrong, peer.wrong) == (3, 0)


def test_compressed_files_and_none_at_all_are_refused(tmp_path):
    path = tmp_path / "packed.svm"
    path.write_bytes(b"\x1f\x8b and more")
    with pytest.raises(InputError, match="is compressed, and what is measured is reading text"):
        measure_libsvm(str(path))
    with pytest.raises(InputError, match="rows is 0"):
        measure_libsvm(rows=0)
