"""The models as users of scikit-learn use them: what they learn, and how they continue."""

import itertools
import pickle
import warnings

import numpy as np
import pytest
from model_cases import FEATURES, MODELS, ROWS, STEADY, bits, each_model, labels, one_hot, rows, targets
from scipy.sparse import csr_array
from sklearn import linear_model, svm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.estimator_checks import check_estimator

from sparsewire.errors import InputError
from sparsewire.linear import LinearSVC, LogisticRegression, Ridge

ALPHA = 0.05


def strength(alpha=ALPHA, count=ROWS):
    """The parameter C of scikit-learn, which weighs the sum of losses and not their mean."""
    return 1 / (alpha * count)


# scikit-learn's own solvers that visit rows in random order fail these too: a row of weight 2 is visited
# once, and two equal rows are visited twice, so the models are equal at the optimum only.
IN_RANDOM_ORDER = {
    f"check_sample_weight_equivalence_on_{kind}_data": "rows are visited in random order"
    for kind in ("dense", "sparse")
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["sdca", "sgd", "cd"])
@each_model
def test_scikit_learn_finds_nothing_wrong(kind, solver):
    check_estimator(
        MODELS[kind](solver=solver, max_iter=50),  # with 1000 passes this takes ten times as long
        on_skip=None,
        expected_failed_checks=IN_RANDOM_ORDER if solver == "sdca" else {},
    )


# -- the minimum is that of scikit-learn -----------------------------------------------------------

LOSSES = {
    LogisticRegression: lambda margins, signs: np.log1p(np.exp(-signs * margins)),
    LinearSVC: lambda margins, signs: np.maximum(0, 1 - signs * margins) ** 2,
    Ridge: lambda margins, wanted: (margins - wanted) ** 2 / 2,
}
EXACT = {"solver": "sgd", "alpha": ALPHA, "tol": 1e-12, "max_iter": 20_000}
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
    wanted = targets("ridge") if isinstance(model, Ridge) else 2 * labels() - 1
    l1_ratio = {"l2": 0, "l1": 1, "elasticnet": model.l1_ratio, None: 0}[model.penalty]
    alpha, coef = model.alpha * (model.penalty is not None), np.ravel(coef)
    data = LOSSES[type(model)](rows().toarray() @ coef + np.ravel(intercept), wanted).mean()
    return data + alpha * (l1_ratio * abs(coef).sum() + (1 - l1_ratio) / 2 * coef @ coef)


@pytest.mark.parametrize("case", MINIMA)
def test_the_minimum_is_that_of_scikit_learn(case):
    model, peer = map(clone, MINIMA[case])
    wanted = targets("ridge") if isinstance(model, Ridge) else labels()
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
# class_weight, sample_weight, and the weights of classes that follow from the first.
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
    model = Ridge(solver="sgd", alpha=0, max_iter=10, tol=None, batch_size=1000, random_state=0)
    model.fit(many, wanted)
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
    options = {"solver": "sgd", "batch_size": 16, "random_state": 7, "tol": None}
    whole = MODELS[kind](max_iter=1, **options).fit(rows(), targets(kind))
    assert bits(MODELS[kind](**options).partial_fit(rows(), targets(kind))) == bits(whole)


@pytest.mark.parametrize("moving", [{}, {"momentum": 0.8}, {"average": True}])
def test_partial_fit_goes_on_after_pickling(moving):
    stays, travels = (LogisticRegression(**STEADY, **moving).partial_fit(rows(), labels()) for _ in range(2))
    travels = pickle.loads(pickle.dumps(travels))
    assert bits(stays.partial_fit(rows(), labels())) == bits(travels.partial_fit(rows(), labels()))


@each_model
def test_partial_fit_after_fit_goes_on_from_there(kind):
    model = MODELS[kind](solver="sgd", max_iter=300, tol=None, eta0=0.05)
    model.partial_fit(rows()[:, :4], targets(kind))
    model.fit(rows(), targets(kind))
    end = model.coef_.copy()
    model.partial_fit(rows(), targets(kind))
    assert model.coef_ == pytest.approx(end, abs=1e-2)
    assert len(model.loss_curve_) == 301


def test_partial_fit_heeds_parameters_that_have_changed():
    model = Ridge(**STEADY).partial_fit(rows(), targets("ridge"))
    before = model.coef_.copy()
    model.set_params(eta0=1e-12).partial_fit(rows(), targets("ridge"))
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


def test_early_stopping_learns_from_none_of_the_rows_that_it_holds_out():
    identity, wanted = one_hot(40)
    model = LogisticRegression(early_stopping=True, validation_fraction=0.2, fit_intercept=False)
    held_out = [progress.held_out_loss for progress in model.iter_fit(identity, wanted)]
    assert np.count_nonzero(model.coef_) == 32
    # The rows to learn from say nothing about the held-out rows, so their loss stays and training ends.
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
        LogisticRegression(solver="sgd", max_iter=10, tol=0).fit(rows(), labels())


def test_a_gap_that_is_still_wider_than_the_tolerance_is_a_warning():
    with pytest.warns(ConvergenceWarning, match=r"after 2 passes .* within .*% of the optimum, and tol is 0"):
        model = LogisticRegression(max_iter=2, tol=0).fit(rows(), labels())
    assert model.gap_ > 0


@pytest.mark.parametrize("solver", ["sgd", "cd"])
def test_a_tolerance_ends_it_without_a_warning(solver):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LogisticRegression(solver=solver, tol=1e-3).fit(rows(), labels())
    assert 5 < model.n_iter_ < 1000
    assert model.gap_ is None
