"""``sparsewire bench linear``: real training on real ranks, and how its numbers are made and judged."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import sklearn
from rich.console import Console

import sparsewire as sw
from sparsewire.bench import linear
from sparsewire.bench.harness.table import show
from sparsewire.bench.linear import alone, spark
from sparsewire.bench.linear.alone import seconds_per_iteration
from sparsewire.bench.linear.plan import DATA, MEMORY, TIME, LinearPlan
from sparsewire.bench.linear.rank import (
    GENERATORS,
    DenseSum,
    compare,
    evaluate,
    load_problem,
    measure_memory,
)
from sparsewire.bench.linear.rows import (
    compared,
    dense_baseline,
    make_memory_row,
    make_rows,
)
from sparsewire.bench.linear.session import choose_contenders, run_linear, run_linear_memory
from sparsewire.errors import InputError
from sparsewire.linear import url_like

PNG = b"\x89PNG\r\n\x1a\n"
PLAN = LinearPlan(2, "url", 400, 1000, ("auto",), passes=2, batch=50)


def silence(*how_far):
    """Nobody wants to know."""


def test_every_contender_trains_the_same_model_on_ranks(cli, tmp_path):
    path, picture = tmp_path / "rows.json", tmp_path / "linear.png"
    words = ["-n", 2, "--rows", 400, "--features", 1000, "--batch", 50, "--passes", 2, "--loss", "hinge"]
    words += [
        "--algorithms",
        "auto,split_allgather",
        "--methods",
        "exact,topk",
        "--density",
        0.5,
        "--seed",
        3,
    ]
    done = cli("bench", "linear", *words, "--json", path, "--plot", picture)
    assert done.returncode == 0, done.stderr
    saved = json.loads(path.read_text())
    rows = {row["contender"]: row for row in saved["rows"]}
    of_ranks = {"auto", "split_allgather", "topk", "dense", "gloo-dense"}
    assert set(rows) == {*of_ranks, "sklearn-sgd"}
    assert set(saved["skipped"]) == {"sklearn-lbfgs", "spark-sgd", "spark-lbfgs"}
    assert saved["packages"]["scikit-learn"] == sklearn.__version__
    assert saved["command"] == (
        "sparsewire bench linear --data url --rows 400 --features 1000 -n 2 --batch 50 --passes 2 "
        "--algorithms auto,split_allgather --methods exact,topk --density 0.5 --loss hinge --driver tcp "
        "--seed 3"
    )
    made, labels = url_like(400, features=1000, seed=3)
    for name, row in rows.items():
        assert (row["data"], row["rows"], row["features"], row["passes"]) == ("url", 400, 1000, 2)
        assert (row["nnz"], row["loss_name"]) == (made.nnz, "hinge")
        assert row["seconds_min"] == min(row["seconds"]) <= row["seconds_median"]
        assert (row["wrong"], row["same_model"]) == (0, True)
        assert row["loss"] > 0
        assert max(np.mean(labels == 1), np.mean(labels == -1)) - 0.05 < row["accuracy"] <= 1
        assert (row["driver"], row["ranks"]) == (("tcp", 2) if name in of_ranks else (None, 1))
    for name in of_ranks:
        assert (rows[name]["batch"], rows[name]["steps_per_pass"]) == (50, 4)
        assert 0 < rows[name]["communicating_min"] <= rows[name]["communicating_median"]
        assert rows[name]["communication_share"] < 1
        assert (rows[name]["bytes_sent_max"] is None) == (name == "gloo-dense")
    for name in of_ranks - {"topk"}:  # of two terms there is one sum
        assert rows[name]["distance"] == 0
        assert rows[name]["loss"] == rows["dense"]["loss"]
    assert rows["topk"]["distance"] > 0
    assert rows["gloo-dense"]["speedup_vs_dense"] == 1
    assert picture.read_bytes().startswith(PNG)
    for text in ("data url  rows 400", "loopback, unlimited", "4 steps a pass", "the speed of gloo-dense"):
        assert text in done.stdout


# ---- one rank, in this process --------------------------------------------------------------------


def test_contenders_differ_in_nothing_but_the_sum():
    plan = replace(PLAN, ranks=1, contenders=("dense", "auto", "split_allgather", "topk"), density=1.0)
    with sw.init() as comm:
        found = compare(comm, plan, silence)
    assert found["data"] == {"rows": 400, "features": 1000, "nnz": url_like(400, features=1000)[0].nnz} | {
        "most_rows": 400
    }
    dense, *others = found["records"]
    assert [record["contender"] for record in found["records"]] == list(plan.contenders)
    for record in others:
        assert len(record["seconds"]) == len(record["communicating"]) == 1 + plan.passes
        assert (record["loss"], record["accuracy"]) == (dense["loss"], dense["accuracy"])
        assert (record["digest"], record["distance"]) == (dense["digest"], 0.0)


def test_turns_are_told_one_by_one():
    heard = []
    with sw.init() as comm:
        compare(comm, replace(PLAN, ranks=1, contenders=("dense", "auto")), lambda *turn: heard.append(turn))
    assert heard == [(turn, 6) for turn in range(6)]


def test_a_dense_sum_has_one_array_for_all_its_calls():
    def double(array):
        array *= 2
        return 7

    exchange, arrays = DenseSum(double), []
    for value in (1.0, 3.0):
        total, bytes_sent = exchange(sw.SparseVector(4, [1, 2], np.array([value, 5.0], np.float32)))
        assert total.is_dense
        assert total.to_dense().tolist() == [0, 2 * value, 10, 0]
        assert bytes_sent == 7
        arrays.append(total.values)
    assert np.shares_memory(*arrays)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared_hinge"])
def test_models_are_judged_by_objective_and_accuracy(loss):
    problem = load_problem(replace(PLAN, rows=50, features=20, loss=loss))
    chance = np.random.default_rng(0)
    coef, intercept = chance.normal(size=(20, 1)), np.array([0.5])
    rows, labels = url_like(50, features=20)
    margins = labels * (rows.toarray() @ coef[:, 0] + 0.5)
    values = {
        "logistic": np.log1p(np.exp(-margins)),
        "hinge": np.maximum(0, 1 - margins),
        "squared_hinge": np.maximum(0, 1 - margins) ** 2,
    }
    found, accuracy = evaluate(problem, (coef, intercept))
    assert found == pytest.approx(values[loss].mean() + 1e-4 / 2 * (coef**2).sum(), rel=1e-6)
    assert accuracy == np.mean(margins > 0)


def test_generated_data_have_the_seed_the_width_and_the_rows_of_the_plan():
    problem = load_problem(replace(PLAN, data="webspam", rows=30, features=500, seed=5))
    assert problem.rows.shape == (30, 500)
    assert np.linalg.norm(problem.rows.toarray(), axis=1) == pytest.approx(1, rel=1e-6)
    assert load_problem(replace(PLAN, rows=3, features=None)).rows.shape == (3, 3_231_961)
    assert tuple(GENERATORS) == DATA


def test_files_have_the_labels_they_have(tmp_path):
    path = tmp_path / "rows.svm"
    path.write_text("7 1:1\n9 2:2\n9 1:3\n")
    problem = load_problem(replace(PLAN, data=str(path), rows=None, features=None))
    assert problem.rows.toarray().tolist() == [[1, 0], [0, 2], [3, 0]]
    assert problem.targets.tolist() == [0, 1, 1]


@pytest.mark.parametrize(("text", "labels"), [("1 1:1\n2 1:1\n3 1:1\n4 1:1\n", "1, 2, 3"), ("1 1:1\n", "1")])
def test_files_of_other_than_two_labels_are_refused(tmp_path, text, labels):
    path = tmp_path / "rows.svm"
    path.write_text(text)
    with pytest.raises(InputError, match=f"rows.svm has the labels {labels}; there must be two"):
        load_problem(replace(PLAN, data=str(path), rows=None, features=None))


def test_memory_is_that_of_rows_and_model_and_of_what_training_takes():
    plan = replace(PLAN, ranks=1, rows=3000, features=500_000)
    with sw.init() as comm:
        found = measure_memory(comm, plan, silence)
    rows, _ = url_like(3000, features=500_000)
    entries = rows.nnz * (4 + 4)
    assert found["shard_bytes"] == entries + 4 * 3001 + 8 * 3000
    assert found["model_bytes"] == 4 * 500_001
    assert found["peak_bytes"] >= entries
    assert found["data"]["nnz"] == rows.nnz


# ---- what runs alone ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "batch", "times"), [("sklearn-sgd", 1, 4), ("sklearn-lbfgs", 400, 2)])
def test_scikit_learn_minimises_the_same_objective(name, batch, times):
    plan = replace(PLAN, ranks=1, passes=3)
    problem = load_problem(plan)
    record = alone.CONTENDERS[name](plan, problem)
    assert (record.contender, record.batch) == (name, batch)
    assert len(record.seconds) == len(record.communicating) == times
    assert all(seconds > 0 for seconds in record.seconds)
    assert sum(record.communicating) == 0
    assert record.accuracy > 0.6
    if name == "sklearn-lbfgs":
        longer = alone.CONTENDERS[name](replace(plan, passes=30), problem)
        assert longer.loss < record.loss < evaluate(problem, problem.zeros())[0] == pytest.approx(math.log(2))


def test_a_pass_of_lbfgs_is_one_beyond_the_first():
    assert seconds_per_iteration(2.0, 5.0, iterations=4) == 1.0
    assert seconds_per_iteration(2.0, 1.0, iterations=4) == 0.25
    assert seconds_per_iteration(2.0, 3.0, iterations=1) == 3.0


def test_spark_needs_pyspark_and_java(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'sparsewire[spark]'" in spark.reason_to_skip_spark()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "there is no Java" in spark.reason_to_skip_spark()
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert spark.reason_to_skip_spark() is None


# ---- the session ----------------------------------------------------------------------------------


def record(name, seconds, communicating, *, sent=(), interface=(), digest=7, distance=0.0, batch=50):
    return {
        "contender": name,
        "batch": batch,
        "seconds": seconds,
        "communicating": communicating,
        "bytes_sent": list(sent),
        "interface_sent": list(interface),
        "loss": 0.25,
        "accuracy": 0.875,
        "digest": digest,
        "distance": distance,
    }


FACTS = {"rows": 400, "features": 1000, "nnz": 9000, "most_rows": 201}


@pytest.fixture
def jobs(monkeypatch):
    """Plans that were run, without ranks."""
    run = []

    def run_ranks(plan, driver, network, on_step=None):
        run.append((plan, driver, network))
        of_rank = {"data": FACTS, "shard_bytes": 60, "model_bytes": 40, "peak_bytes": 110}
        of_rank["records"] = [record(name, [1.0] * 3, [0.5] * 3) for name in plan.contenders]
        return [{"found": [of_rank] * plan.ranks}]

    monkeypatch.setattr("sparsewire.bench.linear.session.run_ranks", run_ranks)
    monkeypatch.setattr("sparsewire.bench.linear.session.reason_to_skip_spark", lambda: None)
    return run


def test_ranks_come_first_and_then_scikit_learn_and_spark(jobs):
    rows, skipped = run_linear(PLAN, "tcp", "1gbit", peers=True, alone=True, on_progress=silence)
    told = [(plan.work, plan.contenders, plan.ranks, plan.batch, *where) for plan, *where in jobs]
    assert told == [
        (TIME, ("dense", "gloo-dense", "auto"), 2, 50, "tcp", "1gbit"),
        ("alone:train", ("sklearn-sgd", "sklearn-lbfgs"), 1, 100, "tcp", None),
        ("spark:train", ("spark-sgd", "spark-lbfgs"), 1, 100, "tcp", None),
    ]
    assert skipped == {}
    assert {row.contender: row.network for row in rows} == dict.fromkeys(jobs[0][0].contenders, "1gbit") | (
        dict.fromkeys(("sklearn-sgd", "sklearn-lbfgs", "spark-sgd", "spark-lbfgs"))
    )


def test_what_is_left_out_does_not_run(jobs):
    run_linear(PLAN, "mpi", None, peers=False, alone=False, on_progress=silence)
    [(plan, driver, network)] = jobs
    assert (plan.contenders, driver, network) == (("dense", "auto"), "mpi", None)


def test_other_losses_are_for_those_that_have_them(jobs):
    _, skipped = run_linear(
        replace(PLAN, loss="hinge"), "mpi", None, peers=True, alone=True, on_progress=silence
    )
    assert [plan.contenders for plan, *_ in jobs] == [("dense", "mpi-dense", "auto"), ("sklearn-sgd",)]
    assert set(skipped) == {"sklearn-lbfgs", "spark-sgd", "spark-lbfgs"}


def test_memory_is_measured_in_a_job_for_each_contender(jobs):
    rows = run_linear_memory(replace(PLAN, contenders=("auto", "topk"), passes=9), "tcp", silence)
    assert [(plan.contenders, plan.passes, plan.work) for plan, *_ in jobs] == [
        (("auto",), 2, MEMORY),
        (("topk",), 2, MEMORY),
    ]
    assert [(row.contender, row.ratio) for row in rows] == [("auto", 1.1), ("topk", 1.1)]


@pytest.mark.parametrize(
    ("changes", "driver", "message"),
    [
        (
            {"data": "nowhere.svm"},
            "tcp",
            "there is no file nowhere.svm, and data that can be made is url, web",
        ),
        ({"loss": "squared"}, "tcp", "unknown loss 'squared'; known are logistic, hinge, squared_hinge"),
        ({"density": 1.5}, "tcp", r"density is 1\.5"),
        ({}, "local", "unknown driver 'local'; known are tcp, mpi"),
    ],
)
def test_an_unusable_plan_starts_no_ranks(jobs, changes, driver, message):
    for run in (
        lambda plan: run_linear(plan, driver, None, peers=False, alone=False, on_progress=silence),
        lambda plan: run_linear_memory(plan, driver, silence),
    ):
        with pytest.raises(InputError, match=message):
            run(replace(PLAN, **changes))
    assert jobs == []


def test_contenders_are_algorithms_and_methods():
    assert choose_contenders("auto,split_allgather", "exact,topk") == ("auto", "split_allgather", "topk")
    assert choose_contenders("auto", "gtopk,topk") == ("gtopk", "topk")
    every = choose_contenders("all", "exact")
    assert {"auto", "split_allgather", "recursive_doubling"} <= set(every)
    assert not any(name.startswith("dense") for name in every)
    with pytest.raises(InputError, match="unknown method best; known are exact, topk"):
        choose_contenders("auto", "best")


def test_a_plan_survives_the_command_line():
    plan = replace(PLAN, contenders=("auto", "topk"), features=None)
    assert LinearPlan.from_json(plan.to_json()) == plan


# ---- rows, table and picture ----------------------------------------------------------------------


def rows_of_two_ranks(of_second=None, spark=True):
    """Three passes, of which the first warms up."""
    found = [
        {
            "data": FACTS,
            "records": [
                record("dense", [9.0, 20.0, 30.0], [9.0, 15.0, 25.0], sent=[900, 100, 100]),
                record("gloo-dense", [9.0, 10.0, 14.0], [9.0, 8.0, 8.0], interface=[90, 120, 80]),
                record(
                    *("auto", [9.0, 1.0 + rank, 2.0 - rank], [9.0, 1.0 - rank, 0.5 + rank / 2]),
                    **{"sent": [9, 10, 20 + rank], **((of_second or {}) if rank else {})},
                ),
                record("topk", [9.0, 1.0, 1.0], [9.0, 0.5, 0.5], sent=[1, 1, 1], distance=0.5),
            ],
        }
        for rank in range(2)
    ]
    rows = make_rows(PLAN, found, "tcp", "1gbit")
    alone = [record("sklearn-sgd", [9.0, 0.5, 0.5], [0.0] * 3, batch=1, distance=None)]
    alone += [record("spark-sgd", [9.0, 60.0], [0.0] * 2, batch=100, distance=None)] if spark else []
    facts = FACTS | {"most_rows": 400}
    rows += make_rows(replace(PLAN, ranks=1), [{"data": facts, "records": alone}], None, None)
    return compared(rows)


def test_rows_have_the_slowest_rank_and_no_warm_up():
    rows = {row.contender: row for row in rows_of_two_ranks()}
    assert list(rows) == ["sklearn-sgd", "topk", "auto", "gloo-dense", "dense", "spark-sgd"]
    auto = rows["auto"]
    assert (auto.seconds, auto.seconds_min, auto.seconds_median) == ([2.0, 2.0], 2.0, 2.0)
    assert (auto.communicating_min, auto.communicating_median) == (0.5, 0.625)  # 0.5 and 0.75, means of ranks
    assert auto.communication_share == 0.625 / 2
    assert (auto.bytes_sent_max, auto.interface_bytes_max) == (15.5, None)
    assert (auto.steps_per_pass, auto.batch, auto.ranks) == (5, 50, 2)
    assert (auto.loss, auto.accuracy, auto.loss_name) == (0.25, 0.875, "logistic")
    assert (rows["gloo-dense"].bytes_sent_max, rows["gloo-dense"].interface_bytes_max) == (100, 100)
    assert (rows["sklearn-sgd"].steps_per_pass, rows["sklearn-sgd"].ranks) == (400, 1)
    assert (rows["spark-sgd"].steps_per_pass, rows["spark-sgd"].bytes_sent_max) == (4, None)


def test_rows_are_compared_with_the_peer_and_with_spark():
    rows = {row.contender: row for row in rows_of_two_ranks()}
    assert rows["auto"].speedup_vs_dense == 12.0 / 2.0
    assert rows["auto"].communication_speedup_vs_dense == 8.0 / 0.625
    assert rows["auto"].speedup_vs_spark == 60.0 / 2.0
    assert rows["gloo-dense"].speedup_vs_dense == rows["spark-sgd"].speedup_vs_spark == 1
    assert rows["sklearn-sgd"].communication_speedup_vs_dense is None


def test_without_peers_our_own_dense_sum_is_the_dense_baseline():
    rows = [row for row in rows_of_two_ranks(spark=False) if row.contender != "gloo-dense"]
    assert dense_baseline(rows).contender == "dense"
    assert {row.contender: row.speedup_vs_dense for row in compared(rows)}["auto"] == 25.0 / 2.0
    assert {row.speedup_vs_spark for row in compared(rows)} == {None}
    assert dense_baseline([row for row in rows if row.contender == "auto"]) is None


def test_ranks_that_end_with_different_models_are_reported():
    rows = rows_of_two_ranks({"digest": 8})
    assert {row.contender: row.wrong for row in rows if row.wrong} == {"auto": 1}
    assert {row.contender for row in rows if not row.same_model} == {"auto"}
    assert "Ranks ended with different models: auto." in printed(rows)


def test_the_table_says_what_was_trained_and_how_fast():
    said = printed(rows_of_two_ranks(), {"spark-lbfgs": "there is no Java"})
    for text in (
        "data url  rows 400  features 1,000  non-zeros 9,000  loss logistic",
        "ranks 2  batch 50 a rank  5 steps a pass  passes 2 and one before",
        "network 1gbit",
        "spark-lbfgs did not run: there is no Java",
        "Fastest of the exact ones is auto with 2.00 s a pass: 6.0x the speed of gloo-dense, "
        "12.8x that of its communication, 30.0x the speed of Spark.",
    ):
        assert text in said


def test_the_conclusion_needs_no_exact_contender():
    assert "All ranks have the same models." in printed(
        [row for row in rows_of_two_ranks() if row.contender != "auto"]
    )


def printed(rows, skipped=()):
    console = Console(file=io.StringIO(), width=250)
    show(console, linear.BENCHMARK, linear.make_result(rows, dict(skipped)))
    return console.file.getvalue()


def test_memory_is_reported_at_the_rank_where_the_ratio_is_largest():
    found = [
        {"data": FACTS, "shard_bytes": shard, "model_bytes": 40_000_000, "peak_bytes": 110_000_000}
        for shard in (70_000_000, 60_000_000)
    ]
    row = make_memory_row(PLAN, found)
    assert (row.contender, row.shard_bytes, row.ratio, row.ranks) == ("auto", 60_000_000, 1.1, 2)
    console = Console(file=io.StringIO(), width=200)
    show(console, linear.BENCHMARK, linear.make_memory_result([row]))
    said = console.file.getvalue()
    for text in ("auto", "60.00 MB", "40.00 MB", "110.00 MB", "1.100", "after 2 passes"):
        assert text in said


def test_files_are_named_without_their_folders():
    [row] = make_rows(
        replace(PLAN, data="/somewhere/rows.svm"),
        [{"data": FACTS, "records": [record("auto", [1.0] * 3, [0.5] * 3)]}],
        *("tcp", None),
    )
    assert row.data == "rows.svm"


def test_plots_have_a_bar_for_every_contender(tmp_path):
    path = tmp_path / "linear.svg"
    linear.plot(rows_of_two_ranks(), path)
    text = path.read_text()
    for name in ("auto", "gloo-dense", "dense", "topk", "sklearn-sgd", "spark-sgd"):
        assert f"<!-- {name} -->" in text
    assert "<!-- 60 s -->" in text
