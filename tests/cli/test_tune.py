"""``sparsewire tune`` as a command: it starts ranks, or is one; the figures are kept for the next job."""

from __future__ import annotations

import json

import pytest

from sparsewire.cost import CostFigures


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sparsewire" / "tuning.json"


def kept(cache):
    [tuning] = json.loads(cache.read_text())["tunings"].values()
    return tuning


@pytest.mark.parametrize("driver", ["tcp", "mpi"])
def test_alone_it_starts_ranks_that_tune(cli, cache, driver):
    done = cli("tune", "-n", 2, "--driver", driver, "--seconds", 0.5)
    assert done.returncode == 0, done.stderr
    assert (kept(cache)["facts"]["driver"], kept(cache)["facts"]["size"]) == (driver, 2)
    assert set(kept(cache)["figures"]) == set(vars(CostFigures()))
    assert done.stdout.count("latency") == 1  # one rank speaks
    assert str(cache) in done.stdout


def test_as_a_rank_of_a_job_it_tunes_that_job(cli, cache):
    done = cli("run", "-n", 3, "-m", "sparsewire", "tune", "--seconds", 0.5)
    assert done.returncode == 0, done.stderr
    assert kept(cache)["facts"]["size"] == 3
    assert all(line.startswith("[0] ") for line in done.stdout.splitlines())


def test_one_rank_or_an_unknown_driver_is_refused(command, cache):
    assert "'-n'" in command("tune", "-n", 1)[2]
    code, _, errors = command("tune", "--driver", "local")
    assert code == 2
    assert "known are tcp and mpi" in errors
    assert not cache.exists()
