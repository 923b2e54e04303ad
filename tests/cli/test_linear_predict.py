"""``sparsewire linear predict``: what it writes, shows and refuses."""

from __future__ import annotations

import numpy as np
import pytest

from sparsewire.linear import LogisticRegression, Ridge, save_model


@pytest.fixture
def saved(tmp_path):
    """Save a model of these coefficients, for files that count indices from 1; its path."""

    def save(coef, classes=(-1, 1), kind=LogisticRegression):
        coef = np.array(coef, np.float64)
        labels = np.resize(classes, max(2, len(classes)))
        model = kind(max_iter=1, tol=None, fit_intercept=False)
        model.fit(np.eye(len(labels), coef.shape[-1]), labels)
        model.coef_ = coef
        save_model(tmp_path / "m.npz", model, zero_based=False)
        return tmp_path / "m.npz"

    return save


def test_predict_writes_labels_and_says_how_many_are_right(command, saved, write):
    model, data = saved([[1, -1, 0.5]]), write("1 1:1\n1 2:1\n-1 2:2 3:1\n-1 1:1 2:3 9:1\n1 3:4\n")
    code, out, errors = command("linear", "predict", model, data)
    assert (code, out) == (0, "1\n-1\n-1\n-1\n1\n")
    note, line = errors.splitlines()
    assert note == f"sparsewire: {data} has features beyond the model's 3; entries that are ignored: 1"
    assert line.startswith("5 rows, accuracy 0.8000; read in ")
    assert line.endswith(" rows/s")


def test_predict_writes_to_a_file(command, saved, write, tmp_path):
    output = tmp_path / "labels"
    code, out, errors = command("linear", "predict", saved([[1, -1]]), write("1 1:1\n"), "--output", output)
    assert (code, errors) == (0, "")
    assert out.startswith("1 rows, accuracy 1.0000; ")
    assert output.read_text() == "1\n"


def test_predict_writes_probabilities_of_all_classes(command, saved, write):
    model = saved([[0, 9, 0], [np.log(3), 9, 0], [0, 9, 0]], classes=(4, 5, 6))
    code, out, errors = command("linear", "predict", model, write("5 1:1\n4 3:1\n"), "--probabilities")
    assert code == 0
    first, second = (list(map(float, line.split())) for line in out.splitlines())
    assert first == pytest.approx([0.5 / 1.75, 0.75 / 1.75, 0.5 / 1.75])
    assert second == pytest.approx([1 / 3] * 3)
    assert "accuracy 1.0000" in errors


def test_predict_scores_a_regression_by_its_squares(command, saved, write):
    model = saved([2, 1], classes=(0.0, 1.0), kind=Ridge)
    code, out, errors = command("linear", "predict", model, write("2 1:1\n1 2:1\n6 1:2\n"))
    assert (code, out) == (0, "2.0\n1.0\n4.0\n")
    assert f"R^2 {1 - 4 / 14:.4f}" in errors


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_predict_of_no_rows_is_no_lines(command, saved, write, text):
    code, out, errors = command("linear", "predict", saved([[1, -1]]), write(text))
    assert (code, out) == (0, "")
    assert errors.startswith("0 rows; ")


def test_predict_goes_portion_by_portion(command, saved, write, monkeypatch):
    monkeypatch.setattr("sparsewire.linear.scoring.ROWS_AT_A_TIME", 3)
    labels = [1, -1, -1, 1, 1, -1, 1]
    data = write(f"{label} {1 if label > 0 else 2}:1\n" for label in labels)
    code, out, errors = command("linear", "predict", saved([[1, -1]]), data)
    assert (code, out.split()) == (0, [str(label) for label in labels])
    assert "7 rows, accuracy 1.0000" in errors


@pytest.mark.parametrize(
    ("data", "words", "complaint"),
    [
        ("1 0:1\n", "", "line 1: expected an index from 1"),
        ("0.5 1:1\n", "", "has the label 0.5"),
        ("1 1:1\n", "--output no/such/folder/labels", "no/such/folder/labels cannot be written"),
        (None, "", "nosuch.svm"),
    ],
)
def test_predict_refuses_with_one_line_and_exit_code_2(command, saved, write, data, words, complaint):
    path = "nosuch.svm" if data is None else write(data)
    code, out, errors = command("linear", "predict", saved([[1, -1]]), path, *words.split())
    assert (code, out) == (2, "")
    [line] = errors.splitlines()
    assert line.startswith("sparsewire: ")
    assert complaint in line


def test_predict_refuses_what_is_no_model_and_probabilities_where_there_are_none(command, saved, write):
    data = write("1 1:1\n")
    code, _, errors = command("linear", "predict", data, data)
    assert code == 2
    assert "train.svm is not a model" in errors
    code, _, errors = command("linear", "predict", saved([1, 2], (0.0, 1.0), Ridge), data, "--probabilities")
    assert code == 2
    assert "is a Ridge, which has no probabilities" in errors
