"""``sparsewire bench step``: real ranks beside real dense peers, and how its numbers are made and judged."""

from __future__ import annotations

import io
import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import sparsewire as sw
from sparsewire.bench import step as step_benchmark
from sparsewire.bench.harness.clock import WARM_UP_ROUNDS
from sparsewire.bench.harness.problem import Case
from sparsewire.bench.harness.table import show
from sparsewire.bench.step.rank import RENEWED, WINDOW, Gradients, SparseStep, cold_steps, count_lost
from sparsewire.bench.step.rows import fastest_step, make_step_rows
from sparsewire.commands import app
from sparsewire.sync import METHODS

PNG = b"\x89PNG\r\n\x1a\n"
SPARSE = {(method, "steady") for method in METHODS} | {(method, "renewal") for method in RENEWED}


@pytest.mark.parametrize("driver", ["tcp", "mpi"])
def test_every_method_runs_beside_dense_and_loses_nothing(cli, tmp_path, driver):
    path, picture = tmp_path / "rows.json", tmp_path / "step.png"
    words = ["-n", 3, "--size", "8k", "--density", 0.05, "--seconds", 0.1, "--driver", driver]
    words += ["--json", path, "--plot", picture]
    done = cli("bench", "step", *words)
    assert done.returncode == 0, done.stderr
    saved = json.loads(path.read_text())
    rows = {(row["method"], row["kind"]): row for row in saved["rows"]}
    dense = {"tcp": "gloo-dense", "mpi": "mpi-dense"}[driver]
    assert set(rows) == SPARSE | {(dense, "dense")}
    assert saved["command"].startswith("sparsewire bench step -n 3 --size 8k --density 0.05 --methods all")
    assert saved["skipped"] == {}
    for (_, kind), row in rows.items():
        assert (row["ranks"], row["length"], row["driver"], row["wrong"]) == (3, 8192, driver, 0)
        assert row["seconds_min"] == min(row["seconds"]) <= row["seconds_median"]
        assert row["exchange_seconds"] > 0
        assert row["apply_seconds"] > 0
        assert row["k"] == (None if kind == "dense" else 409)
        assert (row["bytes_sent_max"] is None) == (kind == "dense")
        steps = cold_steps(0.05) + WARM_UP_ROUNDS + len(row["seconds"])
        assert len(row["selected"]) == (0 if kind == "dense" else steps)
    against = "speedup_vs_gloo_dense" if driver == "tcp" else "speedup_vs_mpi_dense"
    for row in rows.values():
        is_compared = row["k"] is None or statistics.median(row["selected"]) >= row["k"] / 2
        factor = rows[dense, "dense"]["seconds_median"] / row["seconds_median"]
        assert row[against] == (factor if is_compared else None)
    assert picture.read_bytes().startswith(PNG)
    for text in ("8,192", "density 0.05", "Nothing is lost. Fastest of those", f"the speed of {dense}"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "topk_by_hand"], "unknown method topk_by_hand; known are ok_topk, "),
        (["--driver", "local"], "known are tcp, mpi"),
    ],
)
def test_bad_flags_get_one_line_and_exit_code_2(command, words, message):
    code, _, errors = command("bench", "step", *words)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_without_torch_there_is_a_reason_instead_of_a_row(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = tmp_path / "rows.json"
    words = ["-n", "2", "--size", "1k", "--seconds", "0.1", "--methods", "gtopk", "--json", str(path)]
    done = CliRunner().invoke(app, ["bench", "step", *words])
    assert done.exit_code == 0, done.output
    assert "gloo-dense did not run: torch is not installed" in done.output
    saved = json.loads(path.read_text())
    assert [(row["method"], row["speedup_vs_gloo_dense"]) for row in saved["rows"]] == [("gtopk", None)]
    assert set(saved["skipped"]) == {"gloo-dense"}


@pytest.mark.parametrize(("density", "steps"), [(1.0, 1), (0.05, 20), (0.01, 100), (0.001, 100)])
def test_cold_steps_are_as_many_as_a_position_waits(density, steps):
    assert cold_steps(density) == steps


def test_gradients_have_a_part_in_common_and_drift():
    case = Case(2, 20_000, 0.01)
    mine, yours, mine_again = (Gradients(case, rank) for rank in (0, 1, 0))
    first, others = mine.load(0).copy(), yours.load(0)
    assert np.array_equal(first, mine_again.load(0))
    assert 0.4 < np.corrcoef(first, others)[0, 1] < 0.6
    second = mine.load(1).copy()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert np.allclose(mine.load(3), 1.002**3 * first, rtol=1e-5)


def steps_of(length=500, method="ok_topk", kind="steady", density=0.05):
    comm = sw.init()
    return comm, SparseStep(method, kind, Gradients(Case(1, length, density), 0), comm, density)


def take(step):
    step.prepare()
    step.run()


@pytest.mark.parametrize(("method", "kind"), sorted(SPARSE))
@pytest.mark.parametrize("length", [1, 500, 4 * WINDOW])
def test_a_right_step_is_found_right(method, kind, length):
    comm, step = steps_of(length, method, kind)
    for _ in range(3):
        assert count_lost(step, comm) == 0


def test_the_mean_replaces_the_last_one():
    _, step = steps_of()
    for _ in range(3):
        before = step.residual.copy()
        take(step)
        sent = before.astype(np.float64) + step.gradient - step.residual
        assert np.count_nonzero(step.mean) == 25
        np.testing.assert_allclose(step.mean, sent, atol=1e-5)


@pytest.mark.parametrize("kind", ["steady", "renewal"])
def test_a_renewal_begins_with_its_residual_alone(kind):
    _, step = steps_of(kind=kind)
    take(step)
    take(step)
    residual = step.residual.copy()
    assert step.state.regions is not None
    step.prepare()
    assert np.array_equal(step.residual, residual)
    new = step.sync.init(500).compressor.inner
    is_forgotten = step.state.regions is None, step.state.compressor.inner.state_dict() == new.state_dict()
    assert is_forgotten == (kind == "renewal", kind == "renewal")


class Faulty:
    """A Sync whose means are changed behind its back."""

    def __init__(self, sync, change):
        self._sync, self._change = sync, change

    def __getattr__(self, name):
        return getattr(self._sync, name)

    def settle(self, *phases):
        mean, state = self._sync.settle(*phases)
        return self._change(mean), state


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda mean: sw.SparseVector(mean.length, mean.indices[1:], mean.values[1:]), 1),
        (lambda mean: sw.SparseVector(mean.length, mean.indices, mean.values * np.float32(1.001)), 25),
        (lambda mean: sw.SparseVector(mean.length, mean.indices, np.full(mean.nnz, np.nan, "float32")), 25),
        (lambda mean: sw.SparseVector.empty(mean.length), 25),
    ],
)
def test_lost_and_changed_entries_are_counted(change, wrong):
    comm, step = steps_of()
    take(step)
    step.sync = Faulty(step.sync, change)
    assert count_lost(step, comm) == wrong


def test_a_loss_between_the_windows_is_found():
    def lose_one(mean):
        at = np.searchsorted(mean.indices, WINDOW)
        assert WINDOW <= mean.indices[at] < 1.5 * WINDOW
        return sw.SparseVector(mean.length, np.delete(mean.indices, at), np.delete(mean.values, at))

    comm, step = steps_of(4 * WINDOW)
    step.sync = Faulty(step.sync, lose_one)
    assert count_lost(step, comm) == 1


def test_entries_of_the_last_mean_that_stay_are_counted():
    comm, step = steps_of()
    take(step)
    stale = step.written.indices
    step.written = sw.SparseVector.empty(500)
    assert count_lost(step, comm) == len(np.setdiff1d(stale, step.written.indices)) > 0


def record(method, kind, seconds, phases, digest=7, k=10, **more):
    traffic = [{"bytes_sent": n, "bytes_received": n + 8} for n in more.get("bytes_sent", (80, 120, 100))]
    if kind == "dense":
        traffic, k = [{"bytes_sent": None, "bytes_received": None}] * 3, None
    return {
        "method": method,
        "kind": kind,
        "k": k,
        "seconds": seconds,
        "phases": phases,
        "traffic": traffic,
        "selected": [8, 12, 10],
        "wrong": more.get("wrong", 0),
        "digests": [digest],
    }


def rows_of_two_ranks(**of_second):
    steady = [[1.0, 2.0, 3.0], [[0.1, 0.7, 0.2], [0.5, 1.0, 0.5], [1.0, 1.0, 1.0]]]
    slower = [[2.0, 1.0, 4.0], [[0.5, 1.4, 0.1], [0.2, 0.6, 0.2], [2.0, 1.5, 0.5]]]
    dense = record("mpi-dense", "dense", [8.0, 6.0, 20.0], [[0.0, 6.0, 2.0]] * 3, None)
    ranks = [
        [record("gtopk", "steady", *steady), dense],
        [record("gtopk", "steady", *slower, **of_second), dense],
    ]
    return make_step_rows(Case(2, 1000, 0.01), ranks, "mpi", None)


def test_rows_have_the_slowest_ranks_times_and_phases():
    sparse, dense = rows_of_two_ranks(bytes_sent=(70, 130, 90))
    assert sparse.seconds == [2.0, 2.0, 4.0]
    assert (sparse.seconds_min, sparse.seconds_median) == (2.0, 2.0)
    # The steps were slowest at rank 1, 0 and 1.
    assert (sparse.select_seconds, sparse.exchange_seconds, sparse.apply_seconds) == (0.5, 1.4, 0.5)
    assert (sparse.bytes_sent_max, sparse.bytes_received_max) == (130, 138)
    assert (sparse.bytes_sent_over_4k, sparse.bytes_received_over_4k) == (100 / 40, 108 / 40)
    assert sparse.selected_over_k == [0.8, 1.2, 1.0]
    assert (sparse.speedup_vs_mpi_dense, sparse.speedup_min_vs_mpi_dense) == (4.0, 3.0)
    assert sparse.speedup_vs_gloo_dense is None
    assert (dense.speedup_vs_mpi_dense, dense.bytes_sent_over_4k, dense.selected_over_k) == (1.0, None, [])
    assert (sparse.wrong, dense.wrong) == (0, 0)


def test_a_row_that_selects_less_than_half_of_k_is_marked_and_not_compared():
    fast = {"phases": [[0.1, 0.1, 0.1]] * 3, "seconds": [0.3] * 3, "selected": [1, 4, 2]}
    lazy = record("gaussiank", "steady", [], []) | fast
    enough = record("topk_allgather", "steady", [], []) | fast | {"selected": [1, 5, 9], "seconds": [0.5] * 3}
    dense = record("mpi-dense", "dense", [8.0] * 3, [[0.0, 6.0, 2.0]] * 3, None)
    case = Case(1, 1000, 0.01)
    rows = make_step_rows(case, [[lazy, dense, enough]], "mpi", None)
    assert [row.method for row in rows] == ["topk_allgather", "mpi-dense", "gaussiank"]
    assert [row.speedup_vs_mpi_dense for row in rows] == [16.0, 1.0, None]
    assert [row.speedup_min_vs_mpi_dense for row in rows] == [16.0, 1.0, None]
    assert fastest_step(rows) is rows[0]
    console = Console(file=io.StringIO(), width=200)
    show(console, step_benchmark.BENCHMARK, step_benchmark.make_result(case, rows, {}))
    said = console.file.getvalue()
    assert "* selects less than 0.5 k" in said
    assert "gaussiank*" in said
    assert "topk_allgather*" not in said
    assert "Fastest of those that select enough is topk_allgather" in said


def test_who_sends_next_to_nothing_is_not_the_fastest():
    sparse, dense = rows_of_two_ranks()
    lazy = replace(sparse, method="gaussiank", seconds_median=0.1, selected=[1, 2, 1])
    renewal = replace(sparse, kind="renewal", seconds_median=0.1)
    assert fastest_step([lazy, renewal, sparse, dense]) is sparse
    assert fastest_step([lazy, dense]) is fastest_step([replace(sparse, wrong=1)]) is None


@pytest.mark.parametrize(("of_second", "wrong"), [({"digest": 8}, 1), ({"wrong": 5}, 5)])
def test_ranks_that_disagree_or_lose_something_are_reported(of_second, wrong):
    rows = rows_of_two_ranks(**of_second)
    assert rows[0].wrong == wrong
    console = Console(file=io.StringIO(), width=200)
    result = step_benchmark.make_result(Case(2, 1000, 0.01), rows, {})
    show(console, step_benchmark.BENCHMARK, result)
    assert "Entries lost or invented by gtopk steady" in console.file.getvalue()


@pytest.mark.parametrize("times", [1, 100])
def test_plots_have_room_for_every_bar(tmp_path, times):
    sparse, dense = rows_of_two_ranks()
    path = tmp_path / "step.png"
    step_benchmark.plot([sparse, replace(dense, exchange_seconds=times * dense.exchange_seconds)], path)
    assert path.read_bytes().startswith(PNG)
