"""Saved models: the same model is loaded, other files are refused, and no file holds half a model."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

from sparsewire.coding.values import QSGD
from sparsewire.errors import InputError
from sparsewire.linear import LinearSVC, LogisticRegression, Ridge, load_model, save_model
from sparsewire.linear.model_file import make_model, model_facts

ROWS = csr_array(
    np.array([[1, 0, 2, 0], [0, 1, 0, 0], [3, 0, 0, 0], [0, 2, 0, 1], [1, 0, 0, 0], [0, 1, 1, 0]], np.float64)
)
TWO, THREE = np.array([0, 1, 0, 1, 0, 1]), np.array([5, -2, 5, 7, 5, -2])
FITTED = {
    "logistic": (LogisticRegression(max_iter=3, tol=None), TWO),
    "three classes": (LogisticRegression(max_iter=3, tol=None), THREE),
    "hinge": (LinearSVC(loss="hinge", max_iter=3, tol=None), TWO),
    "squared hinge": (LinearSVC(max_iter=3, tol=None), THREE),
    "no intercept": (LinearSVC(max_iter=3, tol=None, fit_intercept=False), TWO),
    "regression": (Ridge(max_iter=3, tol=None), np.array([0.5, 1, 2, -3, 0.25, 0])),
    "texts": (
        LogisticRegression(max_iter=3, tol=None),
        np.array(["ham", "spam", "ham", "spam", "ham", "eggs"]),
    ),
    "texts as objects": (
        LogisticRegression(max_iter=3, tol=None),
        np.array(["ham", "spam"] * 3, dtype=object),
    ),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.npz"


def fitted(name="three classes", dtype=np.float64):
    model, targets = FITTED[name]
    return model.fit(ROWS.astype(dtype), targets)


def with_coefficients(coef):
    """A model with these coefficients."""
    model = fitted("three classes" if len(coef) == 3 else "logistic", coef.dtype)
    model.coef_, model.n_features_in_ = coef, coef.shape[1]
    return model


def arrays(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FITTED)
def test_a_saved_model_comes_back(path, name, dtype):
    model = fitted(name, dtype)
    save_model(path, model)
    loaded = load_model(path)
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert same_bits(loaded.coef_, model.coef_)
    assert same_bits(loaded.intercept_, model.intercept_)
    assert (loaded.n_iter_, loaded.n_features_in_, loaded.loss_curve_) == (3, 4, model.loss_curve_)
    assert loaded.gap_ == model.gap_
    assert loaded.predict(ROWS).tolist() == model.predict(ROWS).tolist()
    if name != "regression":
        assert loaded.classes_.tolist() == model.classes_.tolist()


@pytest.mark.parametrize(
    "given",
    [
        {"class_weight": {0: 1.0, 1: 2.5}},
        {"class_weight": "balanced"},
        {"alpha": np.float32(0.5), "batch_size": np.int64(3), "random_state": np.int64(7)},
        {"penalty": None, "tol": None, "solver": "cd", "eta0": 0.25},
        {"precision": "qsgd4", "method": "topk", "density": 0.5},
    ],
)
def test_parameters_come_back(path, given):
    model = LogisticRegression(**{"max_iter": 2, "tol": None, **given}).fit(ROWS, TWO)
    save_model(path, model)
    assert load_model(path).get_params() == model.get_params()


def test_what_cannot_be_written_down_is_left_out(path):
    model = LogisticRegression(max_iter=2, random_state=np.random.RandomState(3), precision=QSGD(bits=2))
    save_model(path, model.fit(ROWS, TWO))
    loaded = load_model(path)
    assert (loaded.random_state, loaded.comm, loaded.precision) == (None, None, "qsgd2")


def test_facts_are_kept_beside_the_model(path):
    save_model(path, fitted(), zero_based=True, positive=[1, 2.5])
    assert model_facts(path) == {"zero_based": True, "positive": [1, 2.5], "epochs": 3}


def test_numpy_alone_can_read_it(path):
    model = fitted()
    save_model(path, model, zero_based=False)
    file = arrays(path)
    assert same_bits(file["coef"], model.coef_)
    assert file["classes"].tolist() == [-2, 5, 7]
    assert (str(file["loss"]), int(file["features"]), int(file["epochs"])) == ("logistic", 4, 3)
    assert json.loads(str(file["parameters"]))["max_iter"] == 3


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("nonzeros", "is_sparse"), [(0, True), (5, True), (6, False), (12, False)])
def test_zeros_are_not_stored_if_they_are_more_than_half(path, outputs, nonzeros, is_sparse):
    coef = np.zeros(12, np.float32)
    coef[np.random.default_rng(0).permutation(12)[:nonzeros]] = np.arange(1, nonzeros + 1)
    model = with_coefficients(coef.reshape(-1, outputs).T)
    save_model(path, model)
    file = arrays(path)
    assert ("coef" not in file) == is_sparse
    if is_sparse:
        assert len(file["coef_values"]) == len(file["coef_places"]) == nonzeros
    assert same_bits(load_model(path).coef_, model.coef_)


def test_a_loaded_model_goes_on_learning(path):
    model = LogisticRegression(solver="sgd", max_iter=3, tol=None).fit(ROWS, TWO)
    save_model(path, model)
    loaded = load_model(path).partial_fit(ROWS, TWO)
    again = load_model(path).set_params(warm_start=True, max_iter=1).fit(ROWS, TWO)
    assert loaded.n_iter_ == 4
    assert loaded.loss_curve_[:3] == model.loss_curve_
    assert loaded.loss_curve_[3] < model.loss_curve_[2]
    assert again.loss_curve_[0] < model.loss_curve_[2]


def test_only_fitted_models_are_saved(path):
    with pytest.raises(NotFittedError):
        save_model(path, LogisticRegression())
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), SystemExit(143)])
def test_the_old_model_stays_until_the_new_one_is_complete(path, monkeypatch, error):
    save_model(path, fitted(), number=1)

    def fail_in_the_middle(file, **_):
        file.write(b"PK half a model")
        raise error

    monkeypatch.setattr(np, "savez", fail_in_the_middle)
    with pytest.raises(type(error)):
        save_model(path, fitted(), number=2)
    assert os.listdir(path.parent) == [path.name]
    assert model_facts(path)["number"] == 1


def test_a_file_that_was_cut_off_is_refused(path):
    save_model(path, fitted())
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"model\.npz is not a model"):
            load_model(path)


def test_a_damaged_byte_is_refused_or_means_nothing(path):
    model = fitted()
    save_model(path, model)
    whole = bytearray(path.read_bytes())
    refused = 0
    for place in range(0, len(whole), 13):
        whole[place] ^= 0x55
        path.write_bytes(whole)
        whole[place] ^= 0x55
        try:
            loaded = load_model(path)
        except InputError as error:
            assert "model.npz" in str(error)  # noqa: PT017
            refused += 1
        else:
            assert same_bits(loaded.coef_, model.coef_)
            assert loaded.get_params() == model.get_params()
    assert refused > len(whole) / 13 / 3


def write_npz(**content):
    return lambda path: np.savez(path, **content)


def npy():
    """A file with a single array."""
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_text("+1 1:0.5\n"), "it is not a complete .npz file"),
        (lambda path: path.write_bytes(b""), "it is not a complete .npz file"),
        (lambda path: path.write_bytes(npy()), "it is not a complete .npz file"),
        (lambda path: zipfile.ZipFile(path, "w").close(), "it has no entry 'format'"),
        (write_npz(coef=np.zeros(3)), "it has no entry 'format'"),
        (write_npz(format=1, coef=np.zeros(3)), "loss"),
        (write_npz(format=2), "later version of sparsewire: update"),
        (write_npz(format=np.array([object()])), "pickle"),
    ],
)
def test_what_is_not_a_model_is_refused_by_name(path, write, complaint):
    write(path)
    with pytest.raises(InputError) as refused:
        load_model(path)
    assert str(refused.value).startswith(str(path))
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("coef", np.zeros((3, 5))),
        ("intercept", np.zeros(2)),
        ("features", 5),
        ("classes", np.array([1, 2])),
        ("loss", "cosine"),
        ("parameters", "{"),
        ("parameters", '{"colour": "red"}'),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(path, name, content):
    save_model(path, fitted())
    np.savez(path, **{**arrays(path), name: content})
    with pytest.raises(InputError, match=r"model\.npz"):
        load_model(path)


def test_every_loss_has_an_estimator():
    assert [type(make_model(loss)) for loss in ("logistic", "hinge", "squared_hinge", "squared")] == [
        LogisticRegression,
        LinearSVC,
        LinearSVC,
        Ridge,
    ]
    with pytest.raises(InputError, match="unknown loss 'cosine'; known are logistic, squared_hinge"):
        make_model("cosine")
