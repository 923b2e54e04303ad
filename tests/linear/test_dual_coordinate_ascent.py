"""Dual coordinate ascent against other solvers: the same minimum, and a gap that is never too small."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.svm import SVC

from sparsewire.errors import InputError
from sparsewire.linear import LogisticRegression, Ridge
from sparsewire.linear.dual_coordinate_ascent import DualCoordinateAscent
from sparsewire.linear.intercepts import zero_of_increasing
from sparsewire.linear.losses import HINGE, LOGISTIC, SQUARED, SQUARED_HINGE
from sparsewire.linear.problem import REGRESSION, Problem
from sparsewire.testing import RankErrors, run_program

ROWS, FEATURES, ALPHA = 90, 12, 0.05
LOSSES = {loss.name: loss for loss in (LOGISTIC, HINGE, SQUARED_HINGE, SQUARED)}
each_loss = pytest.mark.parametrize("loss", LOSSES)
# Written once more, because the solver uses the functions of ``losses``.
VALUES = {
    "logistic": lambda margins, targets: np.log1p(np.exp(-targets * margins)),
    "hinge": lambda margins, targets: np.maximum(0, 1 - targets * margins),
    "squared_hinge": lambda margins, targets: np.maximum(0, 1 - targets * margins) ** 2,
    "squared": lambda margins, targets: (margins - targets) ** 2 / 2,
}


def problem_of(loss, classes=2, dtype=np.float64, **more):
    """Two thirds of the entries are zero, some rows and the fifth feature are empty, classes are uneven."""
    random = np.random.default_rng(1)
    dense = random.normal(size=(ROWS, FEATURES)) * (random.random((ROWS, FEATURES)) < 0.4)
    dense[::17], dense[:, 4] = 0, 0
    scores = dense @ random.normal(size=(FEATURES, classes)) + random.normal(size=(ROWS, classes))
    scores[:, 0] += 1
    rows, more = csr_array(dense.astype(dtype)), {"l2": ALPHA, **more}
    if loss == "squared":
        return Problem(rows, scores[:, 0] + 5, SQUARED, REGRESSION, **more)
    return Problem(rows, scores.argmax(axis=1), LOSSES[loss], classes, **more)


def objective(problem, coef, intercept):
    """By dense arithmetic, for one output."""
    margins = problem.rows.toarray().astype(np.float64) @ np.ravel(coef) + np.ravel(intercept)
    targets = problem.targets if problem.classes == REGRESSION else 2.0 * problem.targets - 1
    weights = np.ones(ROWS) if problem.sample_weight is None else problem.sample_weight
    mean = np.average(VALUES[problem.loss.name](margins, targets), weights=weights)
    return float(mean + problem.l2 / 2 * np.sum(np.square(coef, dtype=np.float64)))


def least(problem):
    """The minimum: libsvm's for the hinge loss, and that of L-BFGS with numeric slopes for others."""
    if problem.loss is HINGE:
        weights = np.ones(ROWS) if problem.sample_weight is None else problem.sample_weight
        peer = SVC(kernel="linear", C=1 / (problem.l2 * weights.sum()), tol=1e-9)
        peer.fit(problem.rows.toarray(), problem.targets, weights)
        return objective(problem, peer.coef_, peer.intercept_)

    def value(x):
        return objective(problem, x[:-1], x[-1] * problem.fit_intercept)

    options = {"maxiter": 10_000, "maxfun": 1_000_000, "ftol": 1e-15, "gtol": 1e-9}
    return minimize(value, np.zeros(FEATURES + 1), method="L-BFGS-B", options=options).fun


def passes_of(problem, count, comm=None, **options):
    """(objective by dense arithmetic, progress) of each pass."""
    solver = DualCoordinateAscent(problem, comm, **options)
    whole = problem.only(np.arange(ROWS))
    for _ in range(count):
        progress = solver.epoch()
        yield objective(whole, *solver.coefficients()), progress


WEIGHTS = np.random.default_rng(2).integers(0, 4, ROWS).astype(float)
CASES = [
    *({"loss": loss, "dtype": dtype} for loss in LOSSES for dtype in (np.float64, np.float32)),
    *({"loss": loss, "sample_weight": WEIGHTS} for loss in LOSSES),
    *({"loss": loss, "fit_intercept": False} for loss in LOSSES if loss != "hinge"),
    {"loss": "logistic", "l2": 1e-3},
    {"loss": "squared", "l2": 10.0},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pass_is_as_near_to_the_minimum_as_it_says(case):
    problem = problem_of(**case)
    minimum = least(problem)
    rounding = 1e-6 if problem.dtype == np.float32 else 1e-8
    for found, progress in passes_of(problem, 400):
        assert progress.loss == pytest.approx(found, rel=rounding)
        assert found <= minimum * (1 + progress.gap + rounding)
        if progress.gap < 1e-5:
            break
    assert found == pytest.approx(minimum, rel=2e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@each_loss
def test_ranks_have_the_same_model_and_a_true_gap(size, loss):
    problem = problem_of(loss, sample_weight=WEIGHTS)
    minimum = least(problem)

    def program(comm):
        own = problem.only(np.arange(comm.rank, ROWS, comm.size))
        solver = DualCoordinateAscent(own, comm, seed=3)
        gaps = [solver.epoch() for _ in range(6)]
        return [(progress.loss, progress.gap) for progress in gaps], solver.coefficients()

    (passes, model), *others = run_program(program, size)
    for loss_of_pass, gap in passes:
        assert minimum * (1 - 1e-9) <= loss_of_pass <= minimum * (1 + gap + 1e-9)
    assert passes[-1][0] == pytest.approx(objective(problem, *model), rel=1e-9)
    assert passes[-1][1] < passes[0][1] / 2
    for again, other in others:
        assert again == passes
        assert [part.tobytes() for part in other] == [part.tobytes() for part in model]


def test_a_second_run_gives_the_same_bits():
    def program(comm):
        own = problem_of("logistic").only(np.arange(comm.rank, ROWS, comm.size))
        solver = DualCoordinateAscent(own, comm, seed=5)
        return [solver.epoch().gap for _ in range(3)], solver.coefficients()[0].tobytes()

    assert run_program(program, 2) == run_program(program, 2)


@each_loss
def test_ranks_that_all_do_the_same_work_do_not_overshoot(loss):
    # The sum of their changes is as long as it can be, and the first pass is the only cautious one.
    problem = problem_of(loss)

    def program(comm):
        solver = DualCoordinateAscent(problem, comm)
        return [solver.epoch() for _ in range(8)]

    [passes, *_] = run_program(program, 3)
    bounds = [progress.loss / (1 + progress.gap) for progress in passes]
    assert all(after >= before * (1 - 1e-12) for before, after in itertools.pairwise(bounds))
    assert passes[-1].gap < 0.5


def test_ranks_may_have_no_rows_or_features_of_their_own():
    identity = csr_array(np.eye(6))
    members = {0: [0, 1, 2, 3], 1: [], 2: [4, 5]}

    def program(comm):
        own = Problem(identity, np.arange(6) % 2, LOGISTIC, l2=0.1).only(
            np.array(members[comm.rank], np.int64)
        )
        solver = DualCoordinateAscent(own, comm)
        for _ in range(30):
            gap = solver.epoch().gap
        return gap, solver.coefficients()[0]

    [(gap, coef), *others] = run_program(program, 3)
    alone = DualCoordinateAscent(Problem(identity, np.arange(6) % 2, LOGISTIC, l2=0.1))
    for _ in range(30):
        alone.epoch()
    assert gap < 1e-6
    assert coef == pytest.approx(alone.coefficients()[0], abs=1e-3)
    assert all(np.array_equal(other, coef) for _, other in others)


def test_classes_against_the_rest_are_problems_of_their_own():
    problem = problem_of("squared_hinge", classes=3)
    solver = DualCoordinateAscent(problem)
    while solver.epoch().gap > 1e-7:
        pass
    coef, intercept = solver.coefficients()
    for output in range(3):
        one = Problem(problem.rows, (problem.targets == output).astype(int), SQUARED_HINGE, l2=ALPHA)
        assert objective(one, coef[:, output], intercept[output]) == pytest.approx(least(one), rel=1e-6)


def test_entries_of_one_feature_are_added_up():
    twice = csr_array((np.array([1.0, 1.0, 1.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    once = csr_array(np.array([[2.0, 0.0], [0.0, 1.0]]))
    found = []
    for rows in (twice, once):
        solver = DualCoordinateAscent(Problem(rows, np.array([0, 1]), HINGE, l2=1e-2))
        found.append([solver.epoch().loss for _ in range(5)])
    assert found[0] == found[1]
    assert twice.nnz == 3


def test_a_start_at_the_minimum_stays_there():
    for loss in ("logistic", "squared_hinge", "squared"):
        problem = problem_of(loss)
        solver = DualCoordinateAscent(problem)
        while solver.epoch().gap > 1e-9:
            pass
        assert DualCoordinateAscent(problem, start=solver.coefficients()).epoch().gap < 1e-6


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_equal_values_are_learnt_by_the_intercept_alone(value):
    rows = problem_of("squared").rows
    model = Ridge().fit(rows, np.full(ROWS, value))
    assert model.coef_ == pytest.approx(np.zeros(FEATURES), abs=1e-6)
    assert model.intercept_ == pytest.approx(value)
    assert model.gap_ <= model.tol


def test_rows_without_entries_leave_everything_to_the_intercept():
    empty = csr_array((10, 3), dtype=np.float64)
    model = LogisticRegression(tol=1e-6).fit(empty, [1] * 8 + [0] * 2)
    assert model.intercept_ == pytest.approx([np.log(4)], abs=1e-2)
    assert not model.coef_.any()


def test_a_pass_alone_sends_nothing_and_ranks_send_their_changes():
    [(_, alone)] = passes_of(problem_of("logistic"), 1)
    assert alone.bytes_sent == 0

    def program(comm):
        own = problem_of("logistic").only(np.arange(comm.rank, ROWS, comm.size))
        return [progress.bytes_sent for _, progress in passes_of(own, 2, comm)]

    assert all(sent > 0 for passes in run_program(program, 2) for sent in passes)


@pytest.mark.parametrize("penalty", [{"l1": 0.1}, {"l2": 0.0}])
def test_a_problem_without_a_dual_is_refused_by_all_ranks_with_a_remedy(penalty):
    with pytest.raises(RankErrors) as raised:
        run_program(lambda comm: DualCoordinateAscent(problem_of("logistic", **penalty), comm), 2)
    assert sorted(raised.value.errors) == [0, 1]
    for error in raised.value.errors.values():
        assert isinstance(error, InputError)
        assert 'solver="cd"' in str(error)


def test_the_certificate_is_in_the_model():
    problem = problem_of("logistic")
    model = LogisticRegression(alpha=ALPHA, tol=1e-3).fit(problem.rows, problem.targets)
    assert model.gap_ <= 1e-3
    assert model.loss_curve_[-1] <= least(problem) * (1 + model.gap_)
    assert model.partial_fit(problem.rows, problem.targets).gap_ is None


@pytest.mark.parametrize(
    ("options", "solver"),
    [
        ({}, "sdca"),
        ({"penalty": "l1"}, "cd"),
        ({"penalty": None}, "cd"),
        ({"alpha": 0}, "cd"),
        ({"method": "topk"}, "sgd"),
        ({"precision": "float16"}, "sgd"),
        ({"solver": "sgd"}, "sgd"),
    ],
)
def test_the_default_is_the_dual_where_there_is_one(options, solver):
    assert LogisticRegression(**options).solver_name() == solver


def test_the_search_for_intercepts_finds_each_zero():
    goals, start = np.array([-40.0, 0.0, 0.3, 1e-9]), np.zeros(4)
    found = zero_of_increasing(lambda x: np.tanh(0.1 * (x - goals)), start, np.ones(4))
    assert found == pytest.approx(goals, abs=0.5)
    assert zero_of_increasing(np.sign, np.array([3.0]), np.array([1.0])) == pytest.approx([0.0], abs=0.1)
    assert np.isfinite(zero_of_increasing(np.ones_like, start, np.ones(4))).all()
