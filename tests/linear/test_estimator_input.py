"""Rows, labels and parameters of the models: what they take, and what they refuse."""

import numpy as np
import pytest
from model_cases import FEATURES, MODELS, ROWS, STEADY, bits, each_model, labels, malformed, rows, targets
from scipy.sparse import coo_array, csr_array, csr_matrix
from sklearn.exceptions import NotFittedError

from sparsewire.errors import InputError
from sparsewire.linear import LinearSVC, LogisticRegression, Ridge


@each_model
def test_single_precision_stays_single(kind):
    model = MODELS[kind](max_iter=3, tol=None, warm_start=True)
    for learn in (model.fit, model.partial_fit, model.fit):
        learn(rows(np.float32), targets(kind))
        assert np.asarray(model.coef_).dtype == np.asarray(model.intercept_).dtype == np.float32
    assert model.predict(rows(np.float32)).dtype == (np.float32 if kind == "ridge" else int)
    if kind == "logistic":
        assert model.predict_proba(rows(np.float32)).dtype == np.float32


@pytest.mark.parametrize("pair", [(np.float32, np.float64), (np.float64, np.float32)])
@each_model
def test_the_dtype_may_change_and_the_model_is_that_of_the_last_rows(kind, pair):
    first, second = pair
    for learn in ("fit", "partial_fit"):
        model = MODELS[kind](max_iter=2, warm_start=True, **STEADY)
        getattr(model, learn)(rows(first), targets(kind))
        getattr(model, learn)(rows(second), targets(kind))
        assert np.asarray(model.coef_).dtype == np.asarray(model.intercept_).dtype == second


@each_model
def test_rows_are_never_made_dense(kind):
    # As dense rows they would take 80 GB.
    random = np.random.default_rng(9)
    wide = csr_array(
        (np.ones(30_000), random.integers(0, 10**6, 30_000), np.arange(0, 30_001, 3)), (10_000, 10**6)
    )
    wanted = random.integers(0, 2, 10_000)
    model = MODELS[kind](max_iter=1, tol=None, early_stopping=True).fit(wide, wanted)
    model.partial_fit(wide, wanted).score(wide, wanted)
    assert model.predict(wide).shape == (10_000,)


@pytest.mark.parametrize("form", [csr_matrix, coo_array, csr_array.toarray, lambda x: x.toarray().tolist()])
def test_every_form_of_a_matrix_will_do(form):
    model = LogisticRegression(max_iter=3, **STEADY).fit(rows(), labels())
    assert bits(LogisticRegression(max_iter=3, **STEADY).fit(form(rows()), labels())) == bits(model)
    assert model.predict(form(rows())).tolist() == model.predict(rows()).tolist()


def test_rows_and_labels_are_not_written_to():
    given = rows()
    for array in (given.data, given.indices, given.indptr):
        array.flags.writeable = False
    LogisticRegression(max_iter=2, tol=None, penalty="l1").fit(given, labels())
    assert (given != rows()).nnz == 0


BAD = {
    "an index beyond the width": (lambda: (malformed(FEATURES), labels()), "index|indices"),
    "a negative index": (lambda: (malformed(-1), labels()), "index|indices"),
    "not a number": (lambda: (rows() * np.nan, labels()), "NaN"),
    "infinity": (lambda: (rows() * np.inf, labels()), "infinity"),
    "one class": (lambda: (rows(), np.zeros(ROWS, int)), "at least two classes; here is one class: 0"),
    "labels that are measured": (lambda: (rows(), targets("ridge")), "continuous"),
    "a label that is not a number": (lambda: (rows(), np.where(labels(), np.nan, 1)), "NaN"),
    "no rows": (lambda: (rows()[:0], labels()[:0]), "0 sample"),
    "no features": (lambda: (rows()[:, :0], labels()), "0 feature"),
    "too few labels": (lambda: (rows(), labels()[:9]), "inconsistent numbers of samples"),
    "a negative weight": (
        lambda: (rows(), labels(), np.full(ROWS, -1.0)),
        "must not be negative, that of row 0",
    ),
    "no weight": (lambda: (rows(), labels(), np.zeros(ROWS)), "weight"),
    "too few weights": (lambda: (rows(), labels(), np.ones(9)), "one weight for each of 120 rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_value_errors(case):
    given, message = BAD[case]
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=message):
        LogisticRegression(max_iter=2, tol=None).fit(*given())


PARAMETERS = [
    ("solver", "newton"),
    ("penalty", "l0"),
    ("alpha", -1),
    ("alpha", np.nan),
    ("alpha", np.inf),
    ("alpha", "much"),
    ("l1_ratio", 1.5),
    ("max_iter", 0),
    ("max_iter", 10.5),
    ("tol", -1),
    ("tol", np.nan),
    ("n_iter_no_change", 0),
    ("validation_fraction", 1.0),
    ("batch_size", 0),
    ("batch_size", 2.5),
    ("learning_rate", "optimal"),
    ("eta0", 0),
    ("eta0", np.inf),
    ("power_t", -1),
    ("decay", -1),
    ("decay", 0),
    ("momentum", 1),
    ("momentum", np.nan),
    ("block_size", 0),
    ("method", "most"),
    ("algorithm", "fastest"),
    ("precision", "float8"),
    ("density", 0),
    ("density", 2),
    ("class_weight", "even"),
    ("class_weight", {7: 1.0}),
    ("class_weight", {0: -1.0}),
    ("class_weight", {0: 0.0, 1: 0.0}),
]


@pytest.mark.parametrize(("name", "value"), PARAMETERS)
def test_parameters_that_make_no_sense_are_refused_by_name_and_value(name, value):
    shown = "7" if value == {7: 1.0} else str(value)
    with pytest.raises(InputError) as refused:
        LogisticRegression(**{name: value}).fit(rows(), labels())
    assert name in str(refused.value)
    assert shown in str(refused.value)


def test_what_does_not_go_together_is_refused():
    for options in ({"momentum": 0.9, "penalty": "l1"}, {"average": True, "momentum": 0.9}):
        with pytest.raises(InputError, match="momentum"):
            LogisticRegression(solver="sgd", **options).fit(rows(), labels())
    with pytest.raises(InputError, match="unknown loss 'logistic'; known are squared_hinge, hinge"):
        LinearSVC(loss="logistic").fit(rows(), labels())
    with pytest.raises(InputError, match="coordinate descent needs a loss of bounded curvature"):
        LinearSVC(loss="hinge", solver="cd").fit(rows(), labels())
    for lossy in ({"method": "topk"}, {"precision": "float16"}):
        [(name, value)] = lossy.items()
        with pytest.raises(InputError, match=f"{name} is '{value}'.*take solver 'sgd'"):
            LogisticRegression(solver="sdca", **lossy).fit(rows(), labels())
    for penalty in ({"penalty": "l1"}, {"penalty": None}, {"alpha": 0}):
        with pytest.raises(InputError, match='take penalty="l2" with a positive alpha, or solver="cd"'):
            LogisticRegression(solver="sdca", **penalty).fit(rows(), labels())


@pytest.mark.parametrize("kind", ["svm", "ridge"])  # the slope of the logistic loss is bounded
def test_steps_that_are_too_long_are_an_error_and_not_a_model(kind):
    with pytest.raises(InputError, match="eta0"):
        MODELS[kind](solver="sgd", eta0=1e3, alpha=0, max_iter=2000, tol=None).fit(rows(), targets(kind))


def test_there_is_no_prediction_before_fit():
    for model in (LogisticRegression(), Ridge()):
        with pytest.raises(NotFittedError):
            model.predict(rows())


def test_probabilities_add_up_and_their_logarithms_are_finite():
    for classes in (2, 3):
        model = LogisticRegression(max_iter=20, tol=None).fit(rows(), labels(classes))
        probabilities = model.predict_proba(rows())
        assert probabilities.sum(axis=1) == pytest.approx(np.ones(ROWS))
        assert (probabilities.argmax(axis=1) == model.predict(rows())).all()
        assert np.exp(model.predict_log_proba(rows())) == pytest.approx(probabilities)
    sure = LogisticRegression(max_iter=5, tol=None).fit(rows(), labels())
    assert np.isfinite(sure.predict_log_proba(1e6 * rows())).all()
