"""The models on several ranks: the same model as on one, and errors of one rank on all."""

import pickle
import re

import numpy as np
import pytest
from model_cases import (
    FEATURES,
    MODELS,
    ROWS,
    STEADY,
    bits,
    each_model,
    labels,
    malformed,
    one_hot,
    rows,
    targets,
)
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from sparsewire.errors import InputError
from sparsewire.linear import LogisticRegression, Ridge
from sparsewire.testing import run_program


def part(comm):
    return slice(comm.rank, None, comm.size)


@pytest.mark.parametrize("solver", ["sdca", "sgd", "cd"])
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
    alone = LogisticRegression(class_weight="balanced", solver="sgd", max_iter=3, eta0=0.5, tol=None).fit(
        rows(), labels()
    )

    def program(comm):
        own = np.arange(ROWS) < 30 if comm.rank else np.arange(ROWS) >= 30
        model = LogisticRegression(
            class_weight="balanced", solver="sgd", max_iter=3, eta0=0.5, tol=None, comm=comm
        )
        return model.fit(rows()[own], labels()[own])

    for model in run_program(program, 2):
        assert model.coef_ == pytest.approx(alone.coef_, rel=1e-9)


def test_the_rows_of_a_rank_may_all_have_no_weight():
    alone = LogisticRegression(solver="sgd", max_iter=3, eta0=0.5, tol=None).fit(rows()[:60], labels()[:60])

    def program(comm):
        own = slice(60 * comm.rank, 60 * comm.rank + 60)
        model = LogisticRegression(solver="sgd", max_iter=3, eta0=0.5, tol=None, comm=comm)
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
    """A model that has already learnt something on rank 1, and nothing on rank 0."""
    model = logistic(comm, **options)
    if comm.rank:
        model.set_params(comm=None).fit(rows(), labels()).set_params(comm=comm)
    return model


# Wrong calls of one of two ranks, and the error that both must raise; after it both can go on.
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
        lambda comm: Ridge(comm=comm, solver="sgd", eta0=1e3, alpha=0, max_iter=2000, tol=None).fit(
            rows(), targets("ridge")
        ),
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
    """For each case, the error that each of two ranks raised, and the model that it learnt after that."""

    def program(comm):
        outcomes = {}
        for case, (wrong, _) in BAD_ON_A_RANK.items():
            with comm.split(
                0
            ) as group:  # a rank that misses a call in this group is in step again in the next case
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
