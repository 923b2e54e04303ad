"""The models as scikit-learn's users meet them, on one process and on ranks that agree or do not."""

import itertools
import pickle
import re
import warnings

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array, csr_matrix
from sklearn import linear_model, svm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.estimator_checks import check_estimator

from sparsewire.errors import InputError
from sparsewire.linear import LinearSVC, LogisticRegression, Ridge
from sparsewire.testing import run_program

ROWS, FEATURES, ALPHA = 120, 10, 0.05
MODELS = {"logistic": LogisticRegression, "svm": LinearSVC, "ridge": Ridge}
each_model = pytest.mark.parametrize("kind", MODELS)
STEADY = {"eta0": 0.1, "shuffle": False, "tol": None, "batch_size": 16}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["sgd", "cd"])
@each_model
def test_scikit_learn_finds_nothing_wrong(kind, solver):
    check_estimator(MODELS[kind](solver=solver, max_iter=50), on_skip=None)  # 1000 take ten times as long


def rows(dtype=np.float64):
    random = np.random.default_rng(1)
    dense = random.normal(size=(ROWS, FEATURES)) * (random.random((ROWS, FEATURES)) < 0.5)
    return csr_array(dense.astype(dtype))


def labels(classes=2):
    random = np.random.default_rng(2)
    scores = rows() @ random.normal(size=(FEATURES, classes)) + random.normal(size=(ROWS, classes))
    return (scores + np.arange(classes) / 2).argmax(axis=1)


def values():
    random = np.random.default_rng(3)
    return rows() @ random.normal(size=FEATURES) + 3 + random.normal(size=ROWS)


def targets(kind):
    return values() if kind == "ridge" else labels()


def bits(model):
    return np.asarray(model.coef_).tobytes() + np.asarray(model.intercept_).tobytes()


def strength(alpha=ALPHA, count=ROWS):
    """Of scikit-learn's C, which weighs the sum of losses and not their mean."""
    return 1 / (alpha * count)


# -- the minimum is that of scikit-learn -----------------------------------------------------------

LOSSES = {
    LogisticRegression: lambda margins, signs: np.log1p(np.exp(-signs * margins)),
    LinearSVC: lambda margins, signs: np.maximum(0, 1 - signs * margins) ** 2,
    Ridge: lambda margins, wanted: (margins - wanted) ** 2 / 2,
}
EXACT = {"alpha": ALPHA, "tol": 1e-12, "max_iter": 20_000}
# Momentum overshoots, so the loss rises for a while and falls again.
MOMENTUM = {**EXACT, "momentum": 0.9, "n_iter_no_change": 200}
NEWTON = {"solver": "newton-cholesky", "tol": 1e-12}
MINIMA = {
    "logistic": (LogisticRegression(**MOMENTUM), linear_model.LogisticRegression(C=strength(), **NEWTON)),
    "without intercept": (
        LogisticRegression(fit_intercept=False, **MOMENTUM),
        linear_model.LogisticRegression(C=strength(), fit_intercept=False, **NEWTON),
    ),
    "svm": (
        LinearSVC(fit_intercept=False, **MOMENTUM),
        svm.LinearSVC(C=strength(), fit_intercept=False, dual=False, tol=1e-12, max_iter=10_000),
    ),
    "ridge": (Ridge(**MOMENTUM), linear_model.Ridge(alpha=ALPHA * ROWS, tol=1e-12)),
    "lasso": (Ridge(penalty="l1", **EXACT), linear_model.Lasso(alpha=ALPHA, tol=1e-12)),
    "elastic net": (
        Ridge(penalty="elasticnet", l1_ratio=0.3, **EXACT),
        linear_model.ElasticNet(alpha=ALPHA, l1_ratio=0.3, tol=1e-12),
    ),
    "no penalty": (Ridge(penalty=None, **MOMENTUM), linear_model.LinearRegression()),
}


def objective(model, coef, intercept):
    wanted = values() if isinstance(model, Ridge) else 2 * labels() - 1
    l1_ratio = {"l2": 0, "l1": 1, "elasticnet": model.l1_ratio, None: 0}[model.penalty]
    alpha, coef = model.alpha * (model.penalty is not None), np.ravel(coef)
    data = LOSSES[type(model)](rows().toarray() @ coef + np.ravel(intercept), wanted).mean()
    return data + alpha * (l1_ratio * abs(coef).sum() + (1 - l1_ratio) / 2 * coef @ coef)


@pytest.mark.parametrize("case", MINIMA)
def test_the_minimum_is_that_of_scikit_learn(case):
    model, peer = map(clone, MINIMA[case])
    wanted = values() if isinstance(model, Ridge) else labels()
    model.fit(rows(), wanted)
    peer.fit(rows().toarray(), wanted)
    assert np.shape(model.coef_) == np.shape(peer.coef_)
    assert np.ravel(model.coef_) == pytest.approx(np.ravel(peer.coef_), abs=1e-4)
    assert np.ravel(model.intercept_) == pytest.approx(np.ravel(peer.intercept_), abs=1e-4)
    least = objective(model, peer.coef_, peer.intercept_)
    assert objective(model, model.coef_, model.intercept_) == pytest.approx(least, abs=1e-8)
    assert model.loss_curve_[-1] == pytest.approx(least, abs=1e-8)
    assert np.array_equal(model.predict(rows()), peer.predict(rows().toarray())) or isinstance(model, Ridge)


def test_more_than_two_classes_are_each_against_the_rest():
    wanted = np.array(["ash", "beech", "cedar"])[labels(3)]
    model = LogisticRegression(**MOMENTUM).fit(rows(), wanted)
    peer = OneVsRestClassifier(linear_model.LogisticRegression(C=strength(), **NEWTON))
    peer.fit(rows().toarray(), wanted)
    assert model.classes_.tolist() == ["ash", "beech", "cedar"]
    assert model.coef_ == pytest.approx(np.vstack([one.coef_ for one in peer.estimators_]), abs=1e-4)
    assert model.decision_function(rows()) == pytest.approx(
        peer.decision_function(rows().toarray()), abs=1e-3
    )
    assert model.predict_proba(rows()) == pytest.approx(peer.predict_proba(rows().toarray()), abs=1e-4)
    assert model.predict(rows()).tolist() == peer.predict(rows().toarray()).tolist()


BALANCED = dict(enumerate(ROWS / (2 * np.bincount(labels()))))
# What is given for classes and for rows, and what a class then weighs.
WEIGHTS = {
    "a dict": ({0: 3.0}, None, {0: 3.0, 1: 1.0}),
    "balanced": ("balanced", None, BALANCED),
    "rows": (None, np.random.default_rng(4).integers(0, 4, ROWS).astype(float), {0: 1.0, 1: 1.0}),
    "both": ({0: 3.0, 1: 0.5}, np.linspace(0, 2, ROWS), {0: 3.0, 1: 0.5}),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_classes_and_rows_are_those_of_scikit_learn(case):
    by_class, by_row, of_class = WEIGHTS[case]
    model = LogisticRegression(class_weight=by_class, **MOMENTUM).fit(rows(), labels(), by_row)
    total = np.sum(np.where(labels(), of_class[1], of_class[0]) * (1 if by_row is None else by_row))
    peer = linear_model.LogisticRegression(C=strength(count=total), class_weight=by_class, **NEWTON)
    peer.fit(rows().toarray(), labels(), by_row)
    assert model.coef_ == pytest.approx(peer.coef_, abs=1e-4)
    assert model.intercept_ == pytest.approx(peer.intercept_, abs=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("unit", [1e-60, 1e60])
@each_model
def test_the_unit_of_sample_weights_does_not_matter(kind, unit, dtype):
    weights = np.random.default_rng(5).uniform(0.5, 2, ROWS)
    models = [
        MODELS[kind](max_iter=3, tol=None, random_state=0).fit(rows(dtype), targets(kind), weights * one)
        for one in (1, unit)
    ]
    assert models[1].coef_ == pytest.approx(models[0].coef_, rel=1e-4)


def test_rows_that_do_not_divide_into_batches_do_no_harm():
    random = np.random.default_rng(6)
    many = csr_array(random.normal(size=(2002, 50)) * (random.random((2002, 50)) < 0.2))
    wanted = many @ random.normal(size=50)
    model = Ridge(alpha=0, max_iter=10, tol=None, batch_size=1000, random_state=0).fit(many, wanted)
    assert all(after < before for before, after in itertools.pairwise(model.loss_curve_))


# -- further passes --------------------------------------------------------------------------------


@each_model
def test_a_warm_start_goes_on_where_fit_has_ended(kind):
    once = MODELS[kind](max_iter=6, **STEADY).fit(rows(), targets(kind))
    warm = MODELS[kind](max_iter=3, warm_start=True, **STEADY)
    assert bits(warm.fit(rows(), targets(kind)).fit(rows(), targets(kind))) == bits(once)
    cold = MODELS[kind](max_iter=6, **STEADY).fit(rows()[:50], targets(kind)[:50])
    assert bits(cold.fit(rows(), targets(kind))) == bits(once)


@each_model
def test_a_warm_start_of_another_width_begins_anew(kind):
    model = MODELS[kind](max_iter=3, warm_start=True, **STEADY).fit(rows()[:, :4], targets(kind))
    anew = MODELS[kind](max_iter=3, **STEADY).fit(rows(), targets(kind))
    assert bits(model.fit(rows(), targets(kind))) == bits(anew)


@pytest.mark.parametrize(
    "moving", [{}, {"momentum": 0.8}, {"average": True}, {"learning_rate": "invscaling"}]
)
@each_model
def test_partial_fit_is_a_pass_of_fit(kind, moving):
    whole = MODELS[kind](max_iter=3, **STEADY, **moving).fit(rows(), targets(kind))
    by_pass = MODELS[kind](**STEADY, **moving)
    for _ in range(3):
        assert by_pass.partial_fit(rows(), targets(kind)) is by_pass
    assert bits(by_pass) == bits(whole)
    assert by_pass.loss_curve_ == whole.loss_curve_
    assert by_pass.n_iter_ == 3


@each_model
def test_the_first_partial_fit_shuffles_as_fit_does(kind):
    options = {"batch_size": 16, "random_state": 7, "tol": None}
    whole = MODELS[kind](max_iter=1, **options).fit(rows(), targets(kind))
    assert bits(MODELS[kind](**options).partial_fit(rows(), targets(kind))) == bits(whole)


@pytest.mark.parametrize("moving", [{}, {"momentum": 0.8}, {"average": True}])
def test_partial_fit_goes_on_after_pickling(moving):
    stays, travels = (LogisticRegression(**STEADY, **moving).partial_fit(rows(), labels()) for _ in range(2))
    travels = pickle.loads(pickle.dumps(travels))
    assert bits(stays.partial_fit(rows(), labels())) == bits(travels.partial_fit(rows(), labels()))


@each_model
def test_partial_fit_after_fit_goes_on_from_there(kind):
    model = MODELS[kind](max_iter=300, tol=None, eta0=0.05).partial_fit(rows()[:, :4], targets(kind))
    model.fit(rows(), targets(kind))
    end = model.coef_.copy()
    model.partial_fit(rows(), targets(kind))
    assert model.coef_ == pytest.approx(end, abs=1e-2)
    assert len(model.loss_curve_) == 301


def test_partial_fit_heeds_parameters_that_have_changed():
    model = Ridge(**STEADY).partial_fit(rows(), values())
    before = model.coef_.copy()
    model.set_params(eta0=1e-12).partial_fit(rows(), values())
    assert model.coef_ == pytest.approx(before, rel=1e-6)


def test_partial_fit_has_the_classes_that_were_named():
    model = LogisticRegression(**STEADY).partial_fit(rows()[:8], np.ones(8, int), classes=[2, 1, 0])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.coef_.shape == (3, FEATURES)
    model.partial_fit(rows()[:8], np.zeros(8, int))
    with pytest.raises(InputError, match="rows of class 5; the classes are \\[0, 1, 2\\]"):
        model.partial_fit(rows()[:8], np.full(8, 5))


def test_partial_fit_cannot_balance_classes():
    with pytest.raises(InputError, match="'balanced' needs all rows at once"):
        LogisticRegression(class_weight="balanced").partial_fit(rows(), labels())


@each_model
def test_passes_can_be_watched_and_stopped(kind):
    watched = MODELS[kind](max_iter=100, **STEADY)
    for count, progress in enumerate(watched.iter_fit(rows(), targets(kind)), 1):
        assert progress.loss == watched.loss_curve_[-1]
        assert watched.n_iter_ == count
        assert watched.predict(rows()).shape == (ROWS,)
        if count == 4:
            break
    assert bits(watched) == bits(MODELS[kind](max_iter=4, **STEADY).fit(rows(), targets(kind)))


def one_hot(count):
    """Row i has feature i alone, so a coefficient tells whether its row was learnt from."""
    return csr_array(np.eye(count)), np.arange(count) % 2


def test_early_stopping_learns_from_none_of_the_rows_that_it_holds_out():
    identity, wanted = one_hot(40)
    model = LogisticRegression(early_stopping=True, validation_fraction=0.2, fit_intercept=False)
    held_out = [progress.held_out_loss for progress in model.iter_fit(identity, wanted)]
    assert np.count_nonzero(model.coef_) == 32
    # What is learnt of other rows says nothing of these: the loss stays what it was, and that is the end.
    assert held_out == pytest.approx([np.log(2)] * (1 + model.n_iter_no_change))


def test_early_stopping_stops_while_the_loss_still_falls():
    options = {"max_iter": 2000, "alpha": 0, "random_state": 0}
    random = np.random.default_rng(8)
    stopped = LogisticRegression(early_stopping=True, tol=1e-5, **options)
    stopped.fit(rows(), random.integers(0, 2, ROWS))
    assert stopped.n_iter_ < 1000
    assert stopped.loss_curve_[-1] < stopped.loss_curve_[-2]


def test_early_stopping_needs_rows_to_learn_from():
    with pytest.raises(InputError, match="leaves no rows to learn from"):
        Ridge(early_stopping=True).fit(rows()[:1], [1.0])


def test_a_loss_that_still_falls_is_a_warning():
    with pytest.warns(ConvergenceWarning, match="still fell after 10 passes"):
        LogisticRegression(max_iter=10, tol=0).fit(rows(), labels())


@pytest.mark.parametrize("solver", ["sgd", "cd"])
def test_a_tolerance_ends_it_without_a_warning(solver):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LogisticRegression(solver=solver, tol=1e-3).fit(rows(), labels())
    assert 5 < model.n_iter_ < 1000


# -- data ------------------------------------------------------------------------------------------


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
    # Dense, they would fill 80 GB.
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


def malformed(index):
    """scipy does not look at indices."""
    wrong = rows()
    wrong.indices[7] = index
    return wrong


BAD = {
    "an index beyond the width": (lambda: (malformed(FEATURES), labels()), "index|indices"),
    "a negative index": (lambda: (malformed(-1), labels()), "index|indices"),
    "not a number": (lambda: (rows() * np.nan, labels()), "NaN"),
    "infinity": (lambda: (rows() * np.inf, labels()), "infinity"),
    "one class": (lambda: (rows(), np.zeros(ROWS, int)), "at least two classes; here is one class: 0"),
    "labels that are measured": (lambda: (rows(), values()), "continuous"),
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
            LogisticRegression(**options).fit(rows(), labels())
    with pytest.raises(InputError, match="unknown loss 'logistic'; known are squared_hinge, hinge"):
        LinearSVC(loss="logistic").fit(rows(), labels())
    with pytest.raises(InputError, match="coordinate descent needs a loss of bounded curvature"):
        LinearSVC(loss="hinge", solver="cd").fit(rows(), labels())


@pytest.mark.parametrize("kind", ["svm", "ridge"])  # the slope of the logistic loss is bounded
def test_steps_that_are_too_long_are_an_error_and_not_a_model(kind):
    with pytest.raises(InputError, match="eta0"):
        MODELS[kind](eta0=1e3, alpha=0, max_iter=2000, tol=None).fit(rows(), targets(kind))


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


# -- ranks -----------------------------------------------------------------------------------------


def part(comm):
    return slice(comm.rank, None, comm.size)


@pytest.mark.parametrize("solver", ["sgd", "cd"])
@each_model
def test_ranks_learn_what_one_process_learns_from_all_rows(kind, solver):
    options = {"solver": solver, "alpha": 0.2, "tol": 1e-9, "max_iter": 5000}
    alone = MODELS[kind](**options).fit(rows(), targets(kind))

    def program(comm):
        return MODELS[kind](comm=comm, **options).fit(rows()[part(comm)], targets(kind)[part(comm)])

    first, *others = run_program(program, 2)
    assert first.coef_ == pytest.approx(alone.coef_, abs=1e-3)
    assert first.score(rows(), targets(kind)) == pytest.approx(alone.score(rows(), targets(kind)), abs=1e-3)
    for other in others:
        assert bits(other) == bits(first)
        assert other.loss_curve_ == first.loss_curve_


@pytest.mark.parametrize("kind", ["logistic", "svm"])
def test_a_rank_need_not_have_every_class_nor_any_row(kind):
    names = np.array(["ash", "beech", "cedar", "a very long name"])[np.arange(ROWS) % 4]

    def program(comm):
        own = names == np.unique(names)[comm.rank] if comm.rank < 4 else np.zeros(ROWS, bool)
        given = names.astype(object) if comm.rank == 1 else names
        weights = np.ones(own.sum()) if comm.rank > 2 else None
        model = MODELS[kind](comm=comm, max_iter=3, **STEADY)
        return model.fit(rows()[own], given[own], sample_weight=weights)

    first, *others = run_program(program, 5)
    assert first.classes_.tolist() == sorted(set(names))
    assert first.coef_.shape == (4, FEATURES)
    assert all(bits(other) == bits(first) for other in others)
    assert all(other.classes_.tolist() == first.classes_.tolist() for other in others)


def test_class_weights_count_the_rows_of_all_ranks():
    alone = LogisticRegression(class_weight="balanced", max_iter=3, eta0=0.5, tol=None).fit(rows(), labels())

    def program(comm):
        own = np.arange(ROWS) < 30 if comm.rank else np.arange(ROWS) >= 30
        model = LogisticRegression(class_weight="balanced", max_iter=3, eta0=0.5, tol=None, comm=comm)
        return model.fit(rows()[own], labels()[own])

    for model in run_program(program, 2):
        assert model.coef_ == pytest.approx(alone.coef_, rel=1e-9)


def test_the_rows_of_a_rank_may_all_have_no_weight():
    alone = LogisticRegression(max_iter=3, eta0=0.5, tol=None).fit(rows()[:60], labels()[:60])

    def program(comm):
        own = slice(60 * comm.rank, 60 * comm.rank + 60)
        model = LogisticRegression(max_iter=3, eta0=0.5, tol=None, comm=comm)
        return model.fit(rows()[own], labels()[own], np.full(60, 1.0 - comm.rank))

    for model in run_program(program, 2):
        assert model.coef_ == pytest.approx(alone.coef_, rel=1e-9)


@pytest.mark.parametrize("first", [10, 20])
def test_every_rank_holds_out_rows_of_its_own(first):
    identity, wanted = one_hot(40)

    def program(comm):
        own = slice(first, 40) if comm.rank else slice(first)
        model = LogisticRegression(comm=comm, early_stopping=True, fit_intercept=False, random_state=0)
        model.fit(identity[own], wanted[own])
        return np.flatnonzero(model.coef_[0] == 0).tolist(), model.n_iter_

    (held_out, passes), again = run_program(program, 2)
    assert (held_out, passes) == again
    ours, theirs = [row for row in held_out if row < first], [row - first for row in held_out if row >= first]
    assert (len(ours), len(theirs)) == (first // 10, (40 - first) // 10)
    assert ours != theirs
    assert passes == 6


def logistic(comm, **options):
    return LogisticRegression(**({"comm": comm, "max_iter": 2, "tol": None, "random_state": 0} | options))


def started_alone(comm, **options):
    """On rank 1 alone, a model that has already learnt something."""
    model = logistic(comm, **options)
    if comm.rank:
        model.set_params(comm=None).fit(rows(), labels()).set_params(comm=comm)
    return model


# What one rank of two does: every rank must say so, and go on.
BAD_ON_A_RANK = {
    "not a number": (
        lambda comm: logistic(comm).fit(rows()[part(comm)] * [1, np.nan][comm.rank], labels()[part(comm)]),
        "rank 1: Input X contains NaN",
    ),
    "a malformed matrix": (
        lambda comm: logistic(comm).fit(malformed(-1) if comm.rank else rows(), labels()),
        "rank 1: .*(index|indices)",
    ),
    "too few labels": (
        lambda comm: logistic(comm).fit(rows(), labels()[: ROWS - comm.rank]),
        "rank 1: .*inconsistent numbers of samples",
    ),
    "a negative weight": (
        lambda comm: logistic(comm).fit(rows(), labels(), np.full(ROWS, 1.0 - 2 * comm.rank)),
        "rank 1: .*must not be negative",
    ),
    "bytes for labels": (
        lambda comm: logistic(comm).fit(rows(), labels().astype("S1") if comm.rank else labels()),
        "rank 1: .*bytes",
    ),
    "strings beside numbers": (
        lambda comm: logistic(comm).fit(rows(), labels().astype(str) if comm.rank else labels()),
        "class",
    ),
    "a bad parameter": (
        lambda comm: logistic(comm, alpha=-comm.rank).fit(rows(), labels()),
        "rank 1: .*alpha",
    ),
    "another parameter": (
        lambda comm: logistic(comm, alpha=1 + comm.rank).fit(rows(), labels()),
        "alpha must be the same on every rank",
    ),
    "another width": (
        lambda comm: logistic(comm).fit(rows()[:, comm.rank :], labels()),
        "number of features must be the same on every rank",
    ),
    "another dtype": (
        lambda comm: logistic(comm).fit(rows([np.float32, np.float64][comm.rank]), labels()),
        "dtype must be the same on every rank",
    ),
    "another model": (
        lambda comm: [Ridge, LogisticRegression][comm.rank](comm=comm).fit(rows(), labels()),
        "must be the same on every rank",
    ),
    "another model on the other rank": (
        lambda comm: [LogisticRegression, Ridge][comm.rank](comm=comm).fit(rows(), labels()),
        "must be the same on every rank",
    ),
    "a warm start on one rank": (
        lambda comm: started_alone(comm, warm_start=True).fit(rows(), labels()),
        "must be the same on every rank",
    ),
    "an earlier partial_fit on one rank": (
        lambda comm: started_alone(comm).partial_fit(rows(), labels()),
        "must be the same on every rank",
    ),
    "no rows anywhere": (
        lambda comm: logistic(comm).fit(rows()[:0], labels()[:0]),
        "rows to learn from",
    ),
    "no weight anywhere": (
        lambda comm: logistic(comm).fit(rows(), labels(), np.zeros(ROWS)),
        "weights",
    ),
    "one class": (
        lambda comm: logistic(comm).fit(rows()[: ROWS * comm.rank], np.ones(ROWS * comm.rank, int)),
        "at least two classes; here is one class: 1",
    ),
    "one row each and early stopping": (
        lambda comm: logistic(comm, early_stopping=True).fit(rows()[:1], [comm.rank]),
        "leaves no rows to learn from",
    ),
    "a class that was not named": (
        lambda comm: (
            logistic(comm).partial_fit(rows(), labels()).partial_fit(rows(), labels() + 2 * comm.rank)
        ),
        "rows of class 2; the classes are",
    ),
    "steps that are too long": (
        lambda comm: Ridge(comm=comm, eta0=1e3, alpha=0, max_iter=2000, tol=None).fit(rows(), values()),
        "eta0",
    ),
    "balanced classes in partial_fit": (
        lambda comm: logistic(comm, class_weight=[None, "balanced"][comm.rank]).partial_fit(rows(), labels()),
        "class_weight|balanced",
    ),
}


def tried(call, comm):
    try:
        return call(comm)
    except Exception as error:
        return error


@pytest.fixture(scope="module")
def refusals():
    """By case: what each of two ranks raised, and the model that it learnt after that."""

    def program(comm):
        outcomes = {}
        for case, (wrong, _) in BAD_ON_A_RANK.items():
            with comm.split(0) as group:  # so that ranks which part here meet again in the next case
                group.timeout = 5.0
                outcomes[case] = [tried(wrong, group), tried(learnt, group)]
                comm.barrier()
        return outcomes

    def learnt(comm):
        return bits(logistic(comm).fit(rows(), labels()))

    with np.errstate(invalid="ignore"):
        return run_program(program, 2)


@pytest.mark.parametrize("case", BAD_ON_A_RANK)
def test_what_is_wrong_on_a_rank_is_refused_on_all_and_they_go_on(case, refusals):
    (first, model), (second, same) = (outcomes[case] for outcomes in refusals)
    for error in (first, second):
        assert isinstance(error, InputError), error
        assert re.search(BAD_ON_A_RANK[case][1], str(error).replace("\n", " "))
    assert model == same


def test_ranks_stop_together_when_passes_are_watched():
    def program(comm):
        model = logistic(comm, max_iter=50)
        for progress in model.iter_fit(rows()[part(comm)], labels()[part(comm)]):
            if progress.loss < 0.65:
                break
        again = logistic(comm, max_iter=50).fit(rows()[part(comm)], labels()[part(comm)])
        return model.n_iter_, bits(model), bits(again)

    first, second = run_program(program, 2)
    assert first == second
    assert first[0] < 50


def test_copies_keep_the_communicator_and_pickles_do_not():
    def program(comm):
        model = logistic(comm).fit(rows()[part(comm)], labels()[part(comm)])
        kept = clone(model).comm is comm
        travelled = pickle.loads(pickle.dumps(model))
        assert bits(travelled) == bits(model)
        assert travelled.predict(rows()).tolist() == model.predict(rows()).tolist()
        return kept, travelled.comm

    assert run_program(program, 2) == [(True, None)] * 2


def test_partial_fit_on_ranks_is_a_pass_of_fit():
    def program(comm):
        own = rows()[part(comm)], labels()[part(comm)]
        model = LogisticRegression(comm=comm, **STEADY)
        for _ in range(3):
            model.partial_fit(*own)
        return bits(model), bits(LogisticRegression(comm=comm, max_iter=3, **STEADY).fit(*own))

    outcomes = {model for both in run_program(program, 3) for model in both}
    assert len(outcomes) == 1


def test_a_grid_is_searched_in_step_when_all_ranks_score_all_rows():
    def program(comm):
        def accuracy_of_all(model, x, y):
            right = np.array([np.sum(model.predict(x) == y), len(y)], np.float64)
            hits, count = comm.allreduce(right)
            return hits / count

        search = GridSearchCV(
            logistic(comm, max_iter=10),
            {"alpha": [1e-4, 1e-1, 1.0]},
            scoring=accuracy_of_all,
            cv=2,
            error_score="raise",
        )
        search.fit(rows()[part(comm)], labels()[part(comm)])
        return search.best_params_, search.best_score_, bits(search.best_estimator_)

    first, second = run_program(program, 2)
    assert first == second
