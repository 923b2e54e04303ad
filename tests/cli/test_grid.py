"""``sparsewire bench grid``: the cells, the judgement, the picture, and what an interrupted one leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from sparsewire import ALGORITHMS
from sparsewire.bench.grid import Cell, Environment, Turns, grid_cases, initials, make_cell, plot, summarise
from sparsewire.bench.harness.problem import Case
from sparsewire.commands import app
from sparsewire.errors import InputError

PATIENCE_S = 60.0
PNG = b"\x89PNG\r\n\x1a\n"


def record(name, seconds, warm_up, wrong=0, algorithm=None):
    return {
        "name": name,
        "seconds": seconds,
        "warm_up_seconds": warm_up,
        "moved": {"algorithm": algorithm},
        "wrong": wrong,
    }


def cell(auto, others, *, ranks=2, length=1 << 12, density=0.5):
    turns = [Turns("auto", auto, auto, 5, 0, min(others, key=others.get))]
    turns += [Turns(name, seconds, seconds, 5, 0) for name, seconds in others.items()]
    return Cell("tcp", ranks, length, density, 1, 1, {}, tuple(turns))


def test_default_grid_has_every_problem_with_an_entry():
    cases = grid_cases([2, 4, 8], [1 << 12, 1 << 16, 1 << 20, 1 << 24], [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5])
    assert len(cases) == 3 * (4 + 5 + 6 + 6)
    assert all(case.length * case.density >= 1 for case in cases)


def test_environment_is_a_driver_and_perhaps_a_rate():
    assert Environment.parse("tcp@1gbit") == Environment("tcp", "1gbit")
    assert str(Environment.parse(" mpi ")) == "mpi"
    assert str(Environment.parse("mpi@100mbit")) == "mpi@100mbit"
    for text in ("", "local", "tcp@fast", "1gbit"):
        with pytest.raises(InputError):
            Environment.parse(text)


def test_cell_is_made_from_the_slowest_rank_and_a_dropped_contender_from_its_warm_up():
    rank_0 = [
        record("allgather_sum", [1.0, 2.0, 9.0], [5.0, 5.0]),
        record("dense_ring", [], [30.0, 20.0]),
        record("auto", [3.0, 3.0, 3.0], [8.0, 8.0], algorithm="allgather_sum"),
    ]
    rank_1 = [
        record("allgather_sum", [2.0, 1.0, 1.0], [5.0, 5.0], wrong=2),
        record("dense_ring", [], [10.0, 24.0]),
        record("auto", [1.0, 4.0, 1.0], [8.0, 8.0], wrong=1, algorithm="allgather_sum"),
    ]
    made = make_cell(
        Environment("mpi"),
        Case(2, 1000, 0.1),
        {"found": [rank_0, rank_1], "nnz_out": 190, "figures": {"latency": 1.0}},
    )
    assert (made.environment, made.ranks, made.nnz_in, made.nnz_out) == ("mpi", 2, 100, 190)
    assert made.turns == (
        Turns("allgather_sum", 2.0, 2.0, 3, 2),
        Turns("dense_ring", 27.0, 24.0, 0, 0),
        Turns("auto", 3.0, 3.0, 3, 1, "allgather_sum"),
    )
    assert made.auto_vs_best == 1.5
    assert made.auto_vs_dense == 3.0 / 27.0
    assert made.wrong == 3
    assert made.figures == {"latency": 1.0}


def test_auto_is_judged_against_the_best_single_and_the_best_dense_algorithm():
    judged = cell(2.0, {"dense_ring": 4.0, "dense_halving_doubling": 2.5, "split_allgather": 1.0})
    assert judged.fastest.algorithm == "split_allgather"
    assert judged.fastest_dense.algorithm == "dense_halving_doubling"
    assert (judged.auto_vs_best, judged.auto_vs_dense) == (2.0, 0.8)


def test_summary_counts_shares_and_finds_the_worst():
    cells = [
        cell(auto, {"split_allgather": 1.0, "dense_ring": dense})
        for auto, dense in [(1.0, 2.0), (1.09375, 2.0), (1.25, 1.0), (1.5, 2.0)]
    ]
    summary = summarise(cells)
    assert (summary.cells, summary.within_10_percent, summary.within_25_percent) == (4, 0.5, 0.75)
    assert (summary.worst_vs_best, summary.worst_vs_dense) == (1.5, 1.25)


def test_grid_from_end_to_end(cli, tmp_path):
    path, picture = tmp_path / "grid.json", tmp_path / "grid.png"
    words = ["--environments", "tcp", "--ranks", "2,3", "--sizes", "1k", "--densities", "1e-4,0.01,0.5"]
    pytest.importorskip("matplotlib")
    done = cli("bench", "grid", *words, "--seconds", 0.05, "--tuning", 0.2, "--json", path, "--plot", picture)
    assert done.returncode == 0, done.stderr
    saved = json.loads(path.read_text())
    assert [(row["ranks"], row["density"]) for row in saved["rows"]] == [
        (2, 0.01),
        (2, 0.5),
        (3, 0.01),
        (3, 0.5),
    ]
    for row in saved["rows"]:
        turns = {turn["algorithm"]: turn for turn in row["turns"]}
        assert set(turns) == {*ALGORITHMS, "auto"}
        assert all(turn["wrong"] == 0 for turn in turns.values())
        assert turns["auto"]["iterations"] >= 5
        assert row["chosen"] == turns["auto"]["chosen"] in ALGORITHMS
        best = min(ALGORITHMS, key=lambda name: turns[name]["seconds_median"])
        assert row["fastest"] == best
        assert row["auto_vs_best"] == turns["auto"]["seconds_median"] / turns[best]["seconds_median"]
    assert saved["summary"]["cells"] == 4
    assert "of 4 cells auto is within 10%" in done.stdout
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_grid_leaves_the_cells_that_are_done(tmp_path, number):
    path = tmp_path / "grid.json"
    words = ["--environments", "tcp", "--ranks", "2", "--sizes", "64,16M", "--densities", "0.5,0.25"]
    words += ["--seconds", "0.01", "--tuning", "0", "--json", str(path)]
    grid = subprocess.Popen(
        [sys.executable, "-m", "sparsewire", "bench", "grid", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() or path.read_text().count("auto_vs_best") < 2:
        assert time.monotonic() < deadline
        assert grid.poll() is None
        time.sleep(0.05)
    grid.send_signal(number)
    grid.communicate(timeout=PATIENCE_S)
    assert grid.returncode == 128 + number
    saved = json.loads(path.read_text())
    assert [(row["length"], row["density"]) for row in saved["rows"]] == [(64, 0.5), (64, 0.25)]


def test_missing_matplotlib_is_said_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["bench", "grid", "--plot", str(tmp_path / "grid.png")])
    assert "pip install 'sparsewire[report]'" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--environments", "infiniband"], "tcp@1gbit"),
        (["--ranks", "2,many"], "'many' is not a number"),
        (["--densities", "1e-3,x"], "'x' is not a number"),
        (["--sizes", "4q"], "4q"),
        (["--sizes", "4", "--densities", "0.01"], "no cell"),
    ],
)
def test_bad_grids_get_one_line_and_exit_code_2(command, words, message):
    code, _, errors = command("bench", "grid", *words)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_picture_has_a_panel_for_each_environment_and_number_of_ranks(tmp_path):
    pytest.importorskip("matplotlib")
    cells = [
        cell(1.25, {"split_allgather": 1.0, "dense_ring": 2.0}, ranks=ranks, length=length, density=density)
        for ranks in (2, 4)
        for length in (4096, 1000)
        for density in (0.1, 0.5)
    ]
    path = tmp_path / "grid.svg"
    plot(cells, path)
    text = path.read_text()
    for words in ("tcp, 2 ranks", "tcp, 4 ranks", "1,000", "SA = split_allgather", "up to 1.25"):
        assert f"<!-- {words}" in text or words in text
    assert text.count("1.25") >= len(cells)


def test_initials_tell_the_algorithms_apart():
    assert len({initials(name) for name in ALGORITHMS}) == len(ALGORITHMS)
