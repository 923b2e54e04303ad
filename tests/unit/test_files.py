"""Files that are written as a whole: the old one or the new one, with its permissions, and clear errors."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sparsewire.errors import InputError
from sparsewire.files import WriteError, replaced_file, require_writable


@pytest.mark.parametrize("error", [OSError("disk full"), ValueError(), KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.parametrize("old", [None, "old"])
def test_after_an_exception_everything_is_as_before(tmp_path, error, old):
    path = tmp_path / "report.json"
    if old:
        path.write_text(old)

    def fail_in_the_middle():
        with replaced_file(path) as file:
            file.write("half of it")
            file.flush()
            raise error

    with pytest.raises(type(error)):
        fail_in_the_middle()
    assert os.listdir(tmp_path) == ([path.name] if old else [])
    assert not old or path.read_text() == old


def test_readers_see_the_old_file_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    with replaced_file(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == [path.name]


def test_permissions_and_links_stay(tmp_path):
    path, link = tmp_path / "report.json", tmp_path / "latest.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path.name)
    with replaced_file(link, "wb") as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_permissions(tmp_path):
    with replaced_file(tmp_path / "ours") as file:
        file.write("x")
    (tmp_path / "usual").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_what_is_no_file_on_a_disk_is_written_to_as_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replaced_file(pipe) as file:
            file.write("through the pipe")
        assert os.read(reader, 100) == b"through the pipe"
    finally:
        os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_with_the_name_of_the_file(tmp_path):
    link = tmp_path / "report.json"
    link.symlink_to("/dev/full")
    with (
        pytest.raises(
            WriteError, match=r"report.json cannot be written: No space left on device; free some space"
        ) as caught,
        replaced_file(link) as file,
    ):
        file.write("x" * 100_000)
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/such/folder/report.json", "No such file or directory; is there such a folder"),
        ("file/report.json", "is there such a folder"),
        (".", "Is a directory"),
    ],
)
def test_what_can_never_be_written_is_known_before_and_refused(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    path = os.path.join(tmp_path, name)
    with pytest.raises(WriteError, match=f"cannot be written: .*{reason}"):
        require_writable(path)
    with pytest.raises(WriteError, match="cannot be written"), replaced_file(path) as file:
        file.write("x")
    assert os.listdir(tmp_path) == ["file"]
    require_writable(tmp_path / "new")
    require_writable(tmp_path / "file")
    require_writable("/dev/null")
