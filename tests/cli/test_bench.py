"""``sparsewire bench``, ``demo`` and ``doctor`` from end to end, with real processes and a real peer."""

from __future__ import annotations

import io
import json
import platform
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from sparsewire import ALGORITHMS
from sparsewire.bench import allreduce, kernels, simulate
from sparsewire.bench.allreduce.rank import AllreducePlan
from sparsewire.bench.harness import progress as progress_module
from sparsewire.bench.harness import session
from sparsewire.bench.harness.benchmark import Result
from sparsewire.bench.harness.contenders import Configuration
from sparsewire.bench.harness.problem import Case
from sparsewire.bench.harness.table import show
from sparsewire.bench.memory import peak_growth
from sparsewire.commands import app
from sparsewire.commands.demo import bar, run_demo
from sparsewire.cost import CostFigures
from sparsewire.errors import InputError

FIELDS = {
    *("algorithm", "ranks", "length", "dtype", "density_in", "density_out", "nnz_in", "nnz_out"),
    *("seconds_min", "seconds_median", "bytes_sent_max", "messages_max", "wire_limit_seconds"),
    *("speedup_vs_dense", "wrong", "driver", "network", "seconds", "bytes_received_max"),
    *("distribution", "seed", "speedup_vs_gloo_dense", "speedup_vs_gloo_sparse"),
    *("speedup_vs_mpi_dense", "speedup_vs_mpi_same_bytes"),
}
ENVIRONMENT = {"sparsewire", "python", "numpy", "torch", "mpi4py", "isa", "cpus", "machine", "kernel"}


def read(path):
    saved = json.loads(path.read_text())
    return saved, {row["algorithm"]: row for row in saved["rows"]}


@pytest.mark.torch
def test_allreduce_with_real_ranks_and_real_gloo(cli, tmp_path):
    path = tmp_path / "rows.json"
    words = ["-n", 3, "--size", "8k", "--density", 0.02, "--iterations", 3, "--json", path]
    done = cli("bench", "allreduce", *words)
    assert done.returncode == 0, done.stderr
    report, rows = read(path)
    assert set(rows) == {*ALGORITHMS, "auto", "gloo-dense", "gloo-sparse"}
    for name, row in rows.items():
        assert set(row) >= FIELDS
        assert (row["ranks"], row["length"], row["nnz_in"], row["wrong"]) == (3, 8192, 164, 0)
        assert len(row["seconds"]) == 3
        assert min(row["seconds"]) == row["seconds_min"] <= row["seconds_median"] <= max(row["seconds"])
        assert row["speedup_vs_gloo_dense"] > 0
        assert row["speedup_vs_gloo_sparse"] > 0
        assert row["wire_limit_seconds"] is row["network"] is None
        assert (row["bytes_sent_max"] is None) == name.startswith("gloo")
        assert row["nnz_out"] == round(row["density_out"] * 8192) > 164
    assert rows["auto"]["chosen"] in ALGORITHMS
    assert min(rows[n]["speedup_vs_dense"] for n in ("dense_ring", "dense_halving_doubling")) <= 1.0
    assert max(rows[n]["speedup_vs_dense"] for n in ("dense_ring", "dense_halving_doubling")) == 1.0
    medians = [row["seconds_median"] for row in report["rows"]]
    assert medians == sorted(medians)
    for text in ("8,192", "float32", "seed 0", "gloo-sparse", "All results are exact"):
        assert text in done.stdout


def test_allreduce_with_mpi_and_its_peers(cli, tmp_path):
    path = tmp_path / "rows.json"
    words = ["-n", 3, "--size", "8k", "--density", 0.02, "--iterations", 3, "--json", path]
    done = cli("bench", "allreduce", "--driver", "mpi", *words)
    assert done.returncode == 0, done.stderr
    _, rows = read(path)
    assert set(rows) == {*ALGORITHMS, "auto", "mpi-dense", "mpi-same-bytes", "barrier"}
    for row in rows.values():
        assert (row["ranks"], row["driver"], row["network"], row["wrong"]) == (3, "mpi", None, 0)
        assert len(row["seconds"]) == 3
        assert row["speedup_vs_mpi_dense"] == rows["mpi-dense"]["seconds_median"] / row["seconds_median"]
        assert row["speedup_vs_mpi_same_bytes"] > 0
        assert row["speedup_vs_gloo_dense"] is None
    assert rows["barrier"]["bytes_sent_max"] < rows["allgather_sum"]["bytes_sent_max"]
    assert "speed of mpi-dense" in done.stdout


@pytest.mark.parametrize("driver", ["tcp", "mpi"])
def test_records_of_every_rank_and_every_case_arrive(driver):
    plan = AllreducePlan(
        (Case(3, 500, 0.1), Case(3, 64, 0.5)), ("split_allgather",), iterations=2, timeout_s=20.0
    )
    found = []
    events = session.run_ranks(plan, driver, None, on_found=found.append)
    assert found == events
    assert [len(event["found"]) for event in events] == [3, 3]
    for event in events:
        assert [len(record["seconds"]) for [record] in event["found"]] == [2, 2, 2]
        assert len({tuple(record["seconds"]) for [record] in event["found"]}) == 3  # each rank's own clock


@pytest.mark.parametrize("driver", ["tcp", "mpi"])
def test_overlap_measures_both_alone_and_together(cli, tmp_path, driver):
    path = tmp_path / "rows.json"
    words = ["--size", "64k", "--seconds", 0.2, "--compute-ratio", 0.5, "--driver", driver, "--json", path]
    done = cli("bench", "overlap", *words)
    assert done.returncode == 0, done.stderr
    saved = json.loads(path.read_text())
    rows = {row["name"]: row for row in saved["rows"]}
    assert set(rows) == {"communication", "computing", "together"}
    for row in rows.values():
        assert (row["ranks"], row["length"], row["driver"], row["wrong"]) == (2, 1 << 16, driver, 0)
        assert row["seconds_min"] <= row["seconds_median"]
    longer = max(rows["communication"]["seconds_median"], rows["computing"]["seconds_median"])
    assert saved["times_longer_alone"] == rows["together"]["seconds_median"] / longer
    assert "the longer of the two alone" in done.stdout


def test_the_json_file_says_nothing_about_the_host(cli, tmp_path):
    path = tmp_path / "rows.json"
    words = ["--driver", "local", "--size", "1k", "--iterations", 1, "--json", path]
    done = cli("bench", "allreduce", *words)
    assert done.returncode == 0, done.stderr
    report, _ = read(path)
    assert set(report) == {"command", "environment", "rows", "skipped"}
    assert set(report["environment"]) == ENVIRONMENT
    assert report["environment"]["python"] == platform.python_version()
    text = path.read_text()
    assert str(tmp_path) not in text
    assert sys.prefix not in text
    assert f'"{socket.gethostname()}' not in text
    assert report["command"].startswith("sparsewire bench allreduce -n 4 --size 1k --density 0.01")


@pytest.mark.parametrize("distribution", ["zipf", "identical", "disjoint"])
@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_local_driver_runs_every_algorithm_and_says_what_its_time_is(tmp_path, distribution, dtype):
    path = tmp_path / "rows.json"
    words = ["-n", "5", "--size", "999", "--density", "0.1", "--driver", "local", "--iterations", "2"]
    words += ["--distribution", distribution, "--dtype", dtype, "--json", str(path)]
    done = CliRunner().invoke(app, ["bench", "allreduce", *words])
    assert done.exit_code == 0, done.output
    assert "one after another" in done.output
    _, rows = read(path)
    assert set(rows) == set(ALGORITHMS)
    assert all(row["wrong"] == 0 and row["driver"] == "local" for row in rows.values())


def test_a_wrong_result_is_counted_and_ends_with_1(tmp_path, monkeypatch):
    def sum_with_an_error(case):
        return np.where(np.arange(case.length) == 7, -1, right(case)).astype(case.dtype)

    right = allreduce.exact_sum
    monkeypatch.setattr(allreduce, "exact_sum", sum_with_an_error)
    path = tmp_path / "rows.json"
    words = ["-n", "3", "--size", "100", "--driver", "local", "--iterations", "1", "--json", str(path)]
    done = CliRunner().invoke(app, ["bench", "allreduce", *words])
    assert done.exit_code == 1
    assert "Wrong results from" in done.output
    _, rows = read(path)
    assert all(row["wrong"] == 3 for row in rows.values())  # one entry on each of three ranks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--algorithms", "quick_sum"], "unknown algorithm quick_sum; known are recursive_doubling, "),
        (["--algorithms", ","], "unknown algorithm"),
        (["--driver", "carrier-pigeon"], "known are tcp, mpi, local"),
        (["--distribution", "normal"], "uniform, zipf"),
        (["--density", "2"], "density"),
        (["--size", "16Q"], "16Q"),
        (["--network", "fast"], "1gbit"),
        (["--driver", "mpi", "--network", "fast"], "1gbit"),
        (["--driver", "local", "--network", "1gbit"], "--driver tcp"),
        (["--dtype", "complex64"], "complex64"),
    ],
)
def test_bad_flags_get_one_line_and_exit_code_2(command, words, message):
    code, out, errors = command("bench", "allreduce", *words)
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_a_missing_torch_is_a_stated_reason_not_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = tmp_path / "rows.json"
    words = [
        "-n",
        "2",
        "--size",
        "1k",
        "--iterations",
        "1",
        "--algorithms",
        "allgather_sum",
        "--json",
        str(path),
    ]
    done = CliRunner().invoke(app, ["bench", "allreduce", *words])
    assert done.exit_code == 0, done.output
    assert (
        "gloo-dense, gloo-sparse did not run: torch is not installed: pip install 'sparsewire[torch]'"
        in done.output
    )
    report, rows = read(path)
    assert set(rows) == {"allgather_sum"}
    assert set(report["skipped"]) == {"gloo-dense", "gloo-sparse"}


@pytest.mark.parametrize(("driver", "who"), [("tcp", "rank [01]"), ("mpi", "mpiexec")])
def test_a_failing_rank_ends_the_benchmark_with_its_last_words(driver, who):
    plan = AllreducePlan((Case(2, 100, 0.1),), ("no_such_algorithm",), timeout_s=20.0)
    with pytest.raises(session.BenchmarkError, match=rf"(?s){who} ended with exit code.*no_such_algorithm"):
        session.run_ranks(plan, driver, None)


def test_memory_is_measured_for_every_sparse_algorithm(cli, tmp_path):
    path = tmp_path / "memory.json"
    done = cli("bench", "memory", "-n", 2, "--size", "64k", "--density", 0.01, "--json", path)
    assert done.returncode == 0, done.stderr
    _, rows = read(path)
    assert set(rows) == {name for name in ALGORITHMS if not ALGORITHMS[name].dense} | {"auto"}
    for row in rows.values():
        assert row["peak_bytes_max"] >= 0
        assert row["peak_in_inputs"] == row["peak_bytes_max"] / (row["nnz_in"] * 8)
        assert row["wrong"] == 0


def test_memory_of_dense_algorithms_is_refused(command):
    code, _, errors = command("bench", "memory", "--algorithms", "dense_ring")
    assert code == 2
    assert "no sparse algorithm" in errors


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_peak_growth_sees_memory_that_is_freed_before_the_end():
    def peak():
        np.ones(4 << 20).sum()

    mebibyte = 1 << 20
    assert 30 * mebibyte < peak_growth(peak) < 40 * mebibyte
    assert 30 * mebibyte < peak_growth(peak) < 40 * mebibyte  # again: the first must not hide the second


def test_demo_compares_and_concludes():
    out = io.StringIO()
    console = Console(file=out, width=120)
    assert run_demo(console, length=1 << 14, budget_s=0.1) == 0
    text = out.getvalue()
    assert "1.0% non-zeros" in text
    assert "0.1% non-zeros" in text
    assert all(text.count(name) >= 2 for name in ALGORITHMS)
    assert "Every sum is exact; at 1.0% non-zeros" in text


@pytest.mark.parametrize(("value", "cells"), [(4, "████"), (1, "█"), (1.5, "█▌"), (0.001, "▏"), (0.125, "▏")])
def test_bar_is_proportional_to_an_eighth_of_a_cell(value, cells):
    assert bar(value, 4, cells=4) == cells


def test_simulation_carries_real_sums_and_agrees_with_the_formulas(tmp_path):
    path = tmp_path / "rows.json"
    words = ["-n", "8", "--size", "64k", "--latency", "20us", "--bandwidth", "10gbit", "--json", str(path)]
    done = CliRunner().invoke(app, ["simulate", "allreduce", *words])
    assert done.exit_code == 0, done.output
    report, rows = read(path)
    assert set(rows) == set(ALGORITHMS)
    assert report["scale"] == 1
    for name, row in rows.items():
        assert set(row) >= FIELDS
        assert (row["wrong"], row["driver"], row["network"]) == (0, "simulator", "10gbit")
        assert row["seconds_median"] == pytest.approx(report["model_seconds"][name], rel=0.1)


@pytest.mark.parametrize("ranks", [4, 5, 6, 8, 16])
def test_recursive_doubling_wins_on_small_data_as_sparcml_found(ranks):
    """Of few entries, the number of messages decides; the formulas say the same as the simulation."""
    options = simulate.SimulateOptions(ranks=ranks, size="64k", density="0.0005")
    [result] = simulate.run(options, lambda *_: None)
    seconds = {row.algorithm: row.seconds_median for row in result.rows}
    for others in ("split_allgather", "dense_ring", "dense_halving_doubling"):
        assert seconds["recursive_doubling"] < seconds[others]
    for name, predicted in result.more["model_seconds"].items():
        assert predicted == pytest.approx(seconds[name], rel=0.1)


def test_what_a_message_costs_can_be_said():
    options = simulate.SimulateOptions(ranks=8, size="64k", density="0.05", algorithms="allgather_sum")
    [[free], [charged]] = (  # vectors of this size are sent to all others, and not along a tree
        simulate.run(replace(options, overhead=overhead), lambda *_: None)[0].rows
        for overhead in ("0", "60us")
    )
    assert charged.seconds_median - free.seconds_median == pytest.approx(7 * 60e-6, rel=0.01)


def test_simulation_of_a_smaller_problem_predicts_the_larger_one(monkeypatch):
    case = Case(8, 1 << 20, 0.05)
    figures = CostFigures(50e-6, 125e6, 60e-6, simulate.SECONDS_PER_ENTRY, simulate.SECONDS_PER_VALUE)
    arguments = (case, list(map(Configuration, ALGORITHMS)), figures, "1gbit", lambda *_: None)
    assert simulate.scale_of(case) == 1
    at_full_size = {row.algorithm: row for row in simulate.simulate(*arguments)}
    monkeypatch.setattr(simulate, "ROOM_BYTES", 1 << 22)
    assert simulate.scale_of(case) == 8
    for row in simulate.simulate(*arguments):
        twin = at_full_size[row.algorithm]
        assert row.seconds_median == pytest.approx(twin.seconds_median, rel=0.05)
        assert row.bytes_sent_max == pytest.approx(twin.bytes_sent_max, rel=0.05)
        assert row.density_out == pytest.approx(twin.density_out, rel=0.05)
        assert row.wrong == 0


def test_very_sparse_problems_are_not_shrunk_to_nothing():
    assert simulate.scale_of(Case(256, 1 << 30, 1e-6)) == 1


@pytest.mark.parametrize("text", ["50", "fast", "-1us", "1m", ""])
def test_duration_without_a_unit_is_refused(text):
    with pytest.raises(InputError, match="duration"):
        simulate.parse_duration(text)


def test_kernels_are_listed_with_their_bars():
    fast = {"name": "a", "isa": "avx2", "n": 8, "density": 0.5, "seconds_min": 1e-3, "seconds_median": 2e-3}
    rows = [
        {**fast, "peer": "torch.add", "ratio_vs_torch_add": 0.8, "bar": 1.3, "ok": True},
        {**fast, "name": "b", "entries_per_second": 9e7, "bar": 1.5e8, "ok": False},
    ]
    console = Console(file=io.StringIO(), width=200)
    show(console, kernels.BENCHMARK, Result(rows))
    printed = console.file.getvalue()
    for text in ("0.80 x torch.add", "<= 1.3", "90 M entries/s", ">= 150 M", "yes", "no"):
        assert text in printed


def test_kernels_are_measured_with_the_instruction_set_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr("sparsewire.bench.kernels.LENGTH", 1 << 14)
    path = tmp_path / "rows.json"
    done = CliRunner().invoke(app, ["bench", "kernels", "--isa", "scalar", "--json", str(path)])
    assert done.exit_code == 0, done.output
    saved = json.loads(path.read_text())
    assert saved["command"] == "sparsewire bench kernels --isa scalar"
    assert {row["isa"] for row in saved["rows"]} == {"scalar"}
    assert all(row["name"] in done.output for row in saved["rows"])
    assert all(row["seconds_min"] <= row["seconds_median"] for row in saved["rows"])


def test_doctor_tells_versions_extras_and_whether_emulation_works(cli):
    done = cli("doctor")
    assert done.returncode == 0, done.stderr
    for word in (
        "sparsewire",
        "numpy",
        "torch",
        "scipy",
        "ml_dtypes",
        "mpi4py",
        "matplotlib",
        "MPICH",
        "instruction set",
        "emulation",
    ):
        assert word in done.stdout


def test_doctor_says_what_emulation_lacks(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = CliRunner().invoke(app, ["doctor"])
    assert "no: network emulation needs root: run it with sudo" in done.output


def test_doctor_says_how_to_get_mpi(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda command, path=None: None)
    done = CliRunner().invoke(app, ["doctor"])
    assert "mpiexec was not found: pip install 'sparsewire[mpi]'" in done.output


def test_help_does_not_load_what_only_commands_need(cli):
    assert cli("--help").returncode == 0
    load_all = (
        "import sys, sparsewire.commands; from sparsewire.bench import BENCHMARKS, load_benchmark; "
        "list(map(load_benchmark, BENCHMARKS)); print([m for m in sys.modules if m in {'torch', 'scipy'}])"
    )
    assert subprocess.check_output([sys.executable, "-c", load_all], text=True) == "[]\n"


def test_progress_is_silent_for_two_seconds_and_then_speaks_now_and_then(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    with progress_module.progress("work") as on_progress:
        for seconds in (0.0, 1.9, 2.1, 3.0, 8.0):
            now[0] = 100.0 + seconds
            on_progress("measuring", 1, 9)
    assert capsys.readouterr().err == "work: measuring, 1 of 9\n" * 2
