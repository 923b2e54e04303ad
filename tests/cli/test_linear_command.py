"""``sparsewire linear fit``: what it learns, saves, shows and refuses.

Few tests start processes: most have their ranks, or no ranks, in the process of the test.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import shlex
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from rich.console import Console

from processes import PATIENCE_S, next_line, started
from sparsewire.commands import linear_fit
from sparsewire.launch.local import Outcome
from sparsewire.linear import LogisticRegression, fit_rank, load_model, save_model
from sparsewire.linear.fit_rank import FitPlan
from sparsewire.linear.libsvm import ReadOptions, read_libsvm
from sparsewire.linear.model_file import model_facts
from sparsewire.linear.reading import read_for_model
from sparsewire.testing import run_program

COMMAND = [sys.executable, "-m", "sparsewire"]
FEATURES = 6
PASS = {"epoch": 2, "loss": 0.5, "held_out_loss": 0.75, "test_score": 0.875}
PASS |= {"seconds": 3.0, "computing": 2.0, "communicating": 1.5, "bytes_sent": 5_300_000}


def lines(count, first=1, labels=(-1, 1)):
    """Rows with two features: the first is that of their class, and the second is random."""
    generator = np.random.default_rng(first)
    for _ in range(count):
        number = generator.integers(len(labels))
        other = generator.integers(len(labels), FEATURES)
        yield f"{labels[number]} {first + number}:1 {first + other}:0.5\n"


def plan_of(train, **more):
    return FitPlan(train, **{"loss": "logistic", "parameters": {"max_iter": 3, "tol": None}, **more})


def run_ranks(plan, size=2):
    """The exit codes of ranks in this process, and rank 0's events."""
    events = []
    tells = {0: events.append}
    codes = run_program(lambda comm: fit_rank.run(comm, plan, tells.get(comm.rank, lambda event: None)), size)
    return codes, events


def refusal(plan, size=2):
    """What the user sees, once, when ranks refuse a plan."""
    codes, events = run_ranks(plan, size)
    assert codes == [2] * size
    [reason] = [event["refused"] for event in events if "refused" in event]
    assert "rank " not in reason
    return reason


# ---- the whole command, with processes --------------------------------------------------------------


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    """A training by two processes, with all that it leaves behind."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "train.svm").write_text("".join(lines(80)))
    (folder / "test.svm").write_text("".join(lines(30)) + "1 2:1 7:1 1000:3\n-1 1:1\n")
    words = ["linear", "fit", folder / "train.svm", "--test", folder / "test.svm", "-n", 2, "--epochs", 4]
    words += ["--solver", "sgd", "--batch", 5, "--average", "--one-based", "--model", folder / "m.npz"]
    words += ["--json", folder / "m.json"]
    command = [*COMMAND, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_fit_learns_saves_and_sums_up(fit):
    folder, done = fit
    model = load_model(folder / "m.npz")
    assert model.coef_.shape == (1, FEATURES)
    assert model.coef_[0, 0] < 0 < model.coef_[0, 1]
    assert (model.n_iter_, model.batch_size, model.average) == (4, 5, True)
    assert model_facts(folder / "m.npz") == {"zero_based": False, "positive": None, "epochs": 4}
    summary = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert summary["data"].startswith("80 rows, 6 features, 160 non-zeros")
    assert summary["test"].split() == ["accuracy", "1.0000", "of", "32", "rows"]
    assert summary["training"].split() == ["accuracy", "1.0000"]


def test_fit_has_a_line_for_every_pass_and_notes_what_the_model_cannot_know(fit):
    folder, done = fit
    note, *passes = done.stderr.splitlines()
    assert note == (
        f"linear fit: {folder}/test.svm has features beyond the model's 6; entries that are ignored: 2"
    )
    assert [line.partition(": loss")[0] for line in passes] == [
        f"linear fit: pass {epoch} of 4" for epoch in (1, 2, 3, 4)
    ]
    assert all("test accuracy 1.0000" in line and " communicating, " in line for line in passes)


def test_fit_writes_passes_and_the_command_as_json(fit):
    folder, _ = fit
    saved = json.loads((folder / "m.json").read_text())
    words = "sparsewire linear fit train.svm --test test.svm --solver sgd --epochs 4 -n 2 --model m.npz "
    assert saved["command"] == words + "--batch 5 --average --one-based"
    assert [row["epoch"] for row in saved["rows"]] == [1, 2, 3, 4]
    losses = [row["loss"] for row in saved["rows"]]
    assert losses == sorted(losses, reverse=True) == load_model(folder / "m.npz").loss_curve_
    for row in saved["rows"]:
        assert 0 < row["communicating"] <= row["seconds"]
        assert 0 < row["computing"] <= row["seconds"]
        assert row["bytes_sent"] > 0
    assert saved["data"] == {"rows": 80, "features": 6, "entries": 160, "test_rows": 32}
    assert (saved["score"], saved["training_score"]) == ("accuracy", 1.0)


def test_the_default_ends_near_the_optimum_and_says_so(write):
    plan = plan_of(write(lines(80)), parameters={"max_iter": 50, "tol": None, "random_state": 0})
    plan = linear_fit.with_tolerance(plan)
    codes, events = run_ranks(plan)
    assert codes == [0, 0]
    fitted = linear_fit.Fitted("accuracy")
    for event in events:
        fitted.add(event)
    assert fitted.passes[-1].gap <= 0.001 < fitted.passes[-2].gap
    console = Console(file=io.StringIO(), width=200)
    linear_fit.print_fit(console, plan, fitted)
    [loss] = [line for line in console.file.getvalue().splitlines() if line.startswith("loss")]
    assert loss.rstrip().endswith("% of the optimum)")


def test_only_a_solver_with_a_certificate_gets_a_tolerance(write):
    for parameters in ({"solver": "sgd"}, {"penalty": "l1"}, {"precision": "float16"}):
        plan = plan_of("train.svm", parameters={"tol": None, **parameters})
        assert linear_fit.with_tolerance(plan) == plan
    given = plan_of("train.svm", parameters={"tol": 0.5})
    assert linear_fit.with_tolerance(given) == given


def test_ctrl_c_leaves_the_model_of_the_last_complete_pass(write, tmp_path):
    words = ["linear", "fit", write(lines(40)), "-n", "2", "--epochs", "1000000", "--model", "m.npz"]
    words += ["--solver", "sgd"]  # which does not end by itself
    with started([*COMMAND, *words], stdout=subprocess.DEVNULL, cwd=tmp_path) as launcher:
        assert next_line(launcher, "stderr").startswith("linear fit: pass 1 of 1000000: loss ")
        launcher.send_signal(signal.SIGINT)
        _, rest = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 130
    *_, last = rest.splitlines()
    epochs = load_model(tmp_path / "m.npz").n_iter_
    assert epochs >= 1
    assert last == f"linear fit: m.npz is the model after pass {epochs}"
    assert "Traceback" not in rest
    assert sorted(os.listdir(tmp_path)) == ["m.npz", "train.svm"]


def test_a_malformed_line_is_one_line_of_complaint_and_exit_code_2(command, write, tmp_path):
    path = write([*lines(20), "+1 2:1 3;7\n", *lines(20)])
    code, _, errors = command("linear", "fit", path, "-n", 2, "--model", tmp_path / "m.npz")
    assert code == 2
    [complaint] = errors.splitlines()
    assert complaint.startswith(f"sparsewire: {path}, line 21: expected ")
    assert complaint.endswith("got '3;7'")
    assert not (tmp_path / "m.npz").exists()


# ---- what ranks refuse, and what they do not --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "more", "fragments"),
    [
        ("1 1:1\nx 2:1\n", {}, ["train.svm, line 2: expected ", "label", "'x'"]),
        ("1 1:1\n-1 2:nan\n", {}, ["train.svm, line 2: expected a finite number", "nan"]),
        (
            "1 1:1\n-1 8:1\n",
            {"features": 7},
            ["train.svm, line 2: expected an index up to 7", "features is 7", "8:1"],
        ),
        (
            "1 0:1\n-1 7:1\n",
            {"features": 7},
            ["train.svm, line 2: expected an index up to 6", "features is 7", "7:1"],
        ),
        ("1 0:1\n-1 7:1\n", {"zero_based": False}, ["train.svm, line 1: expected an index from 1", "0:1"]),
        ("1 1:1\n0.5 2:1\n", {}, ["train.svm has the label 0.5", "whole numbers", "the loss is squared"]),
        ("1 1:1\n1e300 2:1\n", {}, ["train.svm has the label 1e+300", "whole numbers"]),
        ("1 1:1\n1 2:1\n", {}, ["at least two classes"]),
        ("1 1:1\n2 2:1\n", {"positive": [3.0]}, ["at least two classes"]),
        ("", {"features": 3}, ["rows"]),
    ],
)
def test_bad_data_is_refused_in_the_words_of_the_rank_that_found_it(write, text, more, fragments):
    reason = refusal(plan_of(write(text), **more))
    for fragment in fragments:
        assert fragment in reason


def test_a_bad_test_file_is_refused_too(write):
    train = write(lines(20))
    assert "test.svm, line 1" in refusal(plan_of(train, test=write("1 0:1\n", "test.svm"), zero_based=False))
    assert "test.svm has the label 0.5" in refusal(plan_of(train, test=write("0.5 1:1\n", "test.svm")))
    assert "nosuch.svm" in refusal(plan_of(train, test="nosuch.svm"))


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path):
    assert "nosuch.svm" in refusal(plan_of("nosuch.svm"))
    assert str(tmp_path) in refusal(plan_of(str(tmp_path)))
    whole = lzma.compress("".join(lines(1000)).encode())
    cut_off = tmp_path / "cut.svm.xz"
    cut_off.write_bytes(whole[: len(whole) // 2])
    assert "cut.svm.xz" in refusal(plan_of(str(cut_off)))


def test_a_model_that_cannot_be_written_is_said_by_all(write, tmp_path):
    (tmp_path / "m.npz").mkdir()
    assert "m.npz" in refusal(plan_of(write(lines(20)), model=str(tmp_path / "m.npz")))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow before the error
def test_steps_that_are_too_long_leave_the_model_before(write, tmp_path):
    model = tmp_path / "m.npz"
    parameters = {"solver": "sgd", "max_iter": 1000, "tol": None, "eta0": 1e3}
    train = write(["1 1:9\n", "5 2:9\n", "2 1:1 2:9\n"])
    reason = refusal(plan_of(train, loss="squared", parameters=parameters, model=str(model)))
    assert "smaller eta0" in reason
    assert np.isfinite(load_model(model).coef_).all()


def test_ranks_without_rows_or_without_a_class_take_part(write, tmp_path):
    model = str(tmp_path / "m.npz")
    for text, size in [("1 1:1\n-1 2:1\n", 4), ("1 1:1\n" * 20 + "-1 2:1\n", 2)]:
        codes, events = run_ranks(plan_of(write(text), model=model), size)
        assert codes == [0] * size
        assert events[-1] == {"end": {"training_score": pytest.approx(1.0, abs=0.05)}}
        assert load_model(model).classes_.tolist() == [-1, 1]


def test_every_rank_has_the_model_that_is_saved(write, tmp_path):
    plan = plan_of(write(lines(50, labels=(3, 7, 9))), model=str(tmp_path / "m.npz"), dtype="float64")
    coefs = run_program(lambda comm: fit_rank.fit(comm, plan, lambda event: None).coef_.copy(), 3)
    saved = load_model(plan.model)
    assert saved.classes_.tolist() == [3, 7, 9]
    assert saved.coef_.shape == (3, FEATURES)
    assert all(np.array_equal(coef, saved.coef_) for coef in coefs)


def test_positive_labels_are_one_class_against_the_rest(write, tmp_path, command):
    plan = plan_of(
        write(lines(60, labels=(1, 2, 3))), positive=[1.0, 3.0], test=write("3 3:1\n2 2:1\n", "test.svm")
    )
    plan = FitPlan(**{**vars(plan), "model": str(tmp_path / "m.npz")})
    codes, events = run_ranks(plan)
    assert codes == [0, 0]
    assert [event["pass"]["test_score"] for event in events if "pass" in event][-1] == 1.0
    code, out, errors = command("linear", "predict", plan.model, plan.test)
    assert (code, out) == (0, "1\n-1\n")
    assert "2 rows, accuracy 1.0000" in errors


def test_a_regression_is_scored_over_all_ranks(write):
    values = [0.5, 1.5, -2.0, 4.0, 0.0]
    text = [f"{value} {number + 1}:1\n" for number, value in enumerate(values)]
    codes, events = run_ranks(plan_of(write(text), loss="squared", test=write(text, "test.svm")), 2)
    assert codes == [0, 0]
    *_, last = [event["pass"] for event in events if "pass" in event]
    assert 0.0 < last["test_score"] < 1.0
    assert events[-1]["end"]["training_score"] == last["test_score"]


@pytest.mark.parametrize("comm_size", [1, 3])
def test_what_indices_count_from_is_found_or_said(write, comm_size):
    from_one, from_zero = write("1 1:1 3:2\n-1 2:1\n"), write("1 0:1 3:2\n-1 2:1\n", "zero.svm")

    def read(path, features, zero_based):
        def program(comm):
            options = ReadOptions(features, zero_based, "float32")
            rows, labels, is_zero_based = read_libsvm(path, options, comm)
            return rows.toarray().tolist(), labels.tolist(), is_zero_based

        of_ranks = run_program(program, comm_size)
        rows = sorted(row for rows, _, _ in of_ranks for row in rows)
        [found] = {is_zero_based for _, _, is_zero_based in of_ranks}
        return rows, found

    assert read(from_one, None, "auto") == ([[0, 1, 0], [1, 0, 2]], False)
    assert read(from_one, 4, "auto") == ([[0, 1, 0, 0], [1, 0, 2, 0]], False)
    assert read(from_one, None, True) == ([[0, 0, 1, 0], [0, 1, 0, 2]], True)
    assert read(from_zero, None, "auto") == ([[0, 0, 1, 0], [1, 0, 0, 2]], True)
    assert read(from_zero, 5, "auto") == ([[0, 0, 1, 0, 0], [1, 0, 0, 2, 0]], True)


@pytest.mark.parametrize("features", [1, 2, 3, 7])
def test_rows_are_cut_or_padded_to_what_the_model_knows(write, features):
    whole = np.array([[1, 0, 2], [0, 0, 0], [0, 3, 0]])
    rows, labels, left_out = read_for_model(
        write("1 1:1 3:2\n2\n3 2:3\n"), features=features, zero_based=False, dtype="float64"
    )
    expected = np.pad(whole, ((0, 0), (0, max(0, features - 3))))[:, :features]
    assert np.array_equal(rows.toarray(), expected)
    assert labels.tolist() == [1, 2, 3]
    assert left_out == np.count_nonzero(whole) - np.count_nonzero(expected)


# ---- what is refused before any rank is started -----------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--loss cosine", "unknown loss 'cosine'; known are logistic"),
        ("--algorithm carrier_pigeon", "unknown algorithm 'carrier_pigeon'; known are auto"),
        ("--method best", "unknown method 'best'; known are exact, topk"),
        ("--precision float8", "unknown precision 'float8'"),
        ("--solver lbfgs", "unknown solver 'lbfgs'"),
        ("--penalty l3", "unknown penalty 'l3'"),
        ("--loss hinge --solver cd", "squared_hinge"),
        ("--solver sgd --penalty l1 --momentum 0.9", "momentum (0.9) does not go with an L1 penalty"),
        ("--learning-rate fast", "unknown learning_rate 'fast'"),
        ("--batch 0", "batch_size"),
        ("--class-weight heavy", "'heavy'"),
        ("--class-weight balanced --loss squared", "--loss squared learns values"),
        ("--positive 1 --loss squared", "--loss squared learns values"),
        ("--positive one", "'one' is not a number"),
        ("--dtype float16", "unknown dtype 'float16'; known are float32, float64"),
        ("--model no/such/folder/m.npz", "no/such/folder/m.npz cannot be written"),
        ("--driver pigeon", "unknown driver 'pigeon'"),
        ("--network fast", "rate 'fast' is not understood"),
        ("--network 1gbit", "network emulation needs root: run it with sudo"),
    ],
)
def test_bad_options_get_one_line_and_exit_code_2(command, monkeypatch, write, words, complaint):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    code, out, errors = command("linear", "fit", write(lines(10)), *shlex.split(words))
    assert (code, out) == (2, "")
    [line] = errors.splitlines()
    assert line.startswith("sparsewire: ")
    assert complaint in line


def test_options_reach_the_ranks(command, monkeypatch):
    jobs = []

    def run_job(arguments, size, *, driver, bits_per_second, on_line):
        jobs.append((FitPlan.from_json(arguments[-1]), size, driver, bits_per_second))
        on_line(0, "stdout", b'\x1e{"data": {"rows": 1, "features": 1, "entries": 1, "test_rows": 9}}')
        on_line(0, "stdout", b"\x1e" + json.dumps({"pass": PASS}).encode())
        return Outcome()

    monkeypatch.setattr(linear_fit, "run_job", run_job)
    text = (
        "--test b --loss squared_hinge --solver sgd --epochs 7 -n 5 --network 2mbit --driver mpi "
        "--alpha 0.25 --penalty elasticnet --l1-ratio 0.5 --batch 3 --eta0 0.125 --learning-rate epoch_decay "
        "--power-t 0.75 --decay 0.875 --algorithm balanced --precision float16 --method exact "
        "--density 0.0625 --class-weight balanced --tol 0.03125 --early-stopping --features 11 --zero-based "
        "--dtype float64 --seed 13 --block 17 --positive 1,2.5"
    )
    code, out, errors = command("linear", "fit", "a", *text.split())
    assert code == 0, errors
    assert "test accuracy" in out
    [(plan, *how)] = jobs
    assert how == [5, "mpi", 2_000_000]
    assert plan == FitPlan(
        "a",
        "squared_hinge",
        {
            "solver": "sgd",
            "penalty": "elasticnet",
            "alpha": 0.25,
            "l1_ratio": 0.5,
            "max_iter": 7,
            "tol": 0.03125,
            "early_stopping": True,
            "batch_size": 3,
            "learning_rate": "epoch_decay",
            "eta0": 0.125,
            "power_t": 0.75,
            "decay": 0.875,
            "momentum": 0.0,
            "average": False,
            "block_size": 17,
            "random_state": 13,
            "method": "exact",
            "algorithm": "balanced",
            "precision": "float16",
            "density": 0.0625,
            "class_weight": "balanced",
        },
        test="b",
        features=11,
        zero_based=True,
        dtype="float64",
        positive=[1.0, 2.5],
    )


# ---- what users see ---------------------------------------------------------------------------------


def test_a_rank_that_dies_is_told_with_its_last_words_and_what_is_left(command, monkeypatch, tmp_path):
    model = tmp_path / "m.npz"
    estimator = LogisticRegression(max_iter=2, tol=None).fit(np.eye(2), [0, 1])
    save_model(model, LogisticRegression(max_iter=1, tol=None).fit(np.eye(2), [0, 1]))

    def run_job(arguments, size, *, on_line, **_):
        save_model(model, estimator)
        for number in range(30):
            on_line(1, "stderr", b"word %d" % number)
        on_line(0, "stderr", b"not the last word")
        return Outcome(137, 1, signal.SIGKILL)

    monkeypatch.setattr(linear_fit, "run_job", run_job)
    code, _, errors = command("linear", "fit", "a", "--model", model)
    assert code == 2
    left, outcome, *words = errors.splitlines()
    assert left == f"linear fit: {model} is the model after pass 2"
    assert outcome == "sparsewire: rank 1 was killed by SIGKILL; its last words:"
    assert words == [f"word {number}" for number in range(15, 30)]


@pytest.mark.parametrize(("ending", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_model_that_was_there_is_not_taken_for_one_of_this_training(
    command, monkeypatch, tmp_path, ending, code
):
    model = tmp_path / "m.npz"
    save_model(model, LogisticRegression(max_iter=1, tol=None).fit(np.eye(2), [0, 1]))

    def run_job(*_, **__):
        raise ending

    monkeypatch.setattr(linear_fit, "run_job", run_job)
    found, _, errors = command("linear", "fit", "a", "--model", model)
    assert found == code
    assert errors == f"linear fit: no pass was complete, so {model} was not written\n"


def test_a_terminal_gets_a_bar_with_all_figures(monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=200)
    monkeypatch.setattr("sparsewire.bench.harness.progress.Console", lambda stderr: terminal)
    with linear_fit._bar(10, "accuracy") as show:
        for event in ({"doing": "reading [a]"}, {"note": "[b] is ignored"}, {"data": {}}, {"pass": PASS}):
            show(event)
    text = screen.getvalue()
    for words in ("starting", "reading", "[b] is ignored", "training", "2/10", "loss 0.5  held out 0.75"):
        assert words in text
    figures = "test accuracy 0.8750  3.00 s  2.00 s computing  1.50 s communicating  5.30 MB sent"
    assert figures in text


def test_reading_is_only_spoken_of_when_it_takes_long(monkeypatch):
    told, has_come = [], threading.Event()

    def tell(event):
        told.append(event)
        has_come.set()

    with fit_rank._telling_if_slow(tell, "reading a"):
        pass
    monkeypatch.setattr(fit_rank, "QUIET_S", 0.0)
    with fit_rank._telling_if_slow(tell, "reading b"):
        assert has_come.wait(PATIENCE_S)
    assert told == [{"doing": "reading b"}]


def test_warnings_for_the_user_become_notes(monkeypatch):
    told, shown = [], []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(message))
    fit_rank._tell_warnings(told.append)
    warnings.showwarning("a qid is ignored", UserWarning, "file", 1)
    warnings.showwarning("overflow", RuntimeWarning, "file", 1)
    assert (told, shown) == ([{"note": "a qid is ignored"}], ["overflow"])
