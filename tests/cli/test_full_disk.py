"""Commands on a full disk: one line with the name of the file, exit code 2, and the old file as it was."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsewire.linear import LogisticRegression, save_model

LIBSVM = "1 1:1 2:1\n-1 2:1 3:2\n" * 300
ALLREDUCE = "bench allreduce -n 2 --size 64 --algorithms dense_ring --no-peers --iterations 1"


def with_small_files() -> None:
    """From now on every write after the first 200 bytes of a file fails, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.svm").write_text(LIBSVM)
    model = LogisticRegression(max_iter=1, tol=None)
    save_model(tmp_path / "model.npz", model.fit(np.eye(3), [0, 1, 0]))
    (tmp_path / "old").write_text("old")
    (tmp_path / "old.png").write_text("old")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("linear fit train.svm -n 2 --epochs 1 --model old", "old"),
        ("linear fit train.svm -n 1 --epochs 1 --json old", "old"),
        ("linear predict model.npz train.svm --output old", "old"),
        (f"{ALLREDUCE} --json old", "old"),
        (f"{ALLREDUCE} --plot old.png", "old.png"),
        ("bench trace old --steps 1", "old"),
        ("bench libsvm --rows 100 --seconds 0.1", "url-like"),
        ("tune -n 2 --seconds 0.1", "tuning.json"),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_the_old_one_stays(cli, folder, tmp_path_factory, words, name):
    before = os.listdir(folder)
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(folder),
        "TMPDIR": str(folder),
        "MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib")),
    }
    done = cli(*words.split(), cwd=folder, preexec_fn=with_small_files, env=environment)
    assert done.returncode != 0
    *_, line = done.stderr.splitlines()
    assert "File too large" in line
    assert name in line
    assert "Traceback" not in done.stderr
    assert set(os.listdir(folder)) - {"sparsewire"} == set(before)
    assert (folder / "old").read_text() == (folder / "old.png").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    ["linear predict model.npz train.svm", "doctor", "--help", "run -n 2 speaking.py", f"{ALLREDUCE}"],
)
def test_standard_output_that_cannot_be_written_is_one_line(folder, words):
    (folder / "speaking.py").write_text("print('hello')")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sparsewire", *words.split()],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "sparsewire: the output cannot be written: No space left on device"


@pytest.mark.parametrize(
    "words",
    [
        f"{ALLREDUCE} --json no/such/x.json",
        f"{ALLREDUCE} --plot no/such/x.png",
        f"{ALLREDUCE} --plot x.unknown",
        "linear fit train.svm --json no/such/x.json",
        "linear predict model.npz train.svm --output no/such/x",
    ],
)
def test_a_file_that_can_never_be_written_is_refused_before_the_work(command, folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sparsewire.launch.local._popen", lambda *_: pytest.fail("a rank was started"))
    code, _, errors = command(*words.split())
    assert code == 2
    [line] = errors.splitlines()
    assert words.split()[-1] in line
