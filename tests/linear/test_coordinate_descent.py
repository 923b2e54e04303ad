"""Coordinate descent ends where scikit-learn does, for any blocks and any division of rows to ranks."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from sparsewire.errors import InputError
from sparsewire.linear.coordinate_descent import CoordinateDescent
from sparsewire.linear.losses import HINGE, LOGISTIC, SQUARED, SQUARED_HINGE
from sparsewire.linear.problem import REGRESSION, Problem
from sparsewire.testing import RankErrors, run_program

ROWS, FEATURES = 80, 12
ALPHA = 0.05
EPOCHS = 150

LOSSES = {
    "logistic": lambda margins, targets: np.log1p(np.exp(-targets * margins)),
    "squared_hinge": lambda margins, targets: np.maximum(0, 1 - targets * margins) ** 2,
    "squared": lambda margins, targets: (margins - targets) ** 2 / 2,
}


def sparse_rows(dtype=np.float64):
    """A third of the entries are not zero, all rows differ, and every fourth feature is in no row."""
    draw = np.random.default_rng(1)
    dense = draw.normal(size=(ROWS, FEATURES)) * (draw.random((ROWS, FEATURES)) < 0.4)
    dense[:, ::4] = 0
    return csr_array(dense.astype(dtype))


def classes_of(rows, count=2):
    draw = np.random.default_rng(2)
    scores = rows @ draw.normal(size=(FEATURES, count)) + draw.normal(size=(ROWS, count))
    return (scores + np.arange(count) / 2).argmax(axis=1)  # classes have different sizes


def values_of(rows):
    draw = np.random.default_rng(3)
    return rows @ draw.normal(size=FEATURES) + 3 + draw.normal(size=ROWS)


def problem_of(kind, dtype=np.float64, **options):
    rows = sparse_rows(dtype)
    if kind is SQUARED:
        return Problem(rows, values_of(rows), SQUARED, classes=REGRESSION, **options)
    return Problem(rows, classes_of(rows), kind, **options)


def targets_of(problem):
    return problem.targets if problem.classes == REGRESSION else np.where(problem.targets == 1, 1.0, -1.0)


def objective(problem, coef, intercept):
    """The objective of docs/linear.md and of scikit-learn, for one output."""
    coef = np.asarray(coef, np.float64).reshape(-1)
    margins = problem.rows.toarray().astype(np.float64) @ coef + intercept
    loss = LOSSES[problem.loss.name](margins, targets_of(problem)).mean()
    return float(loss + problem.l2 / 2 * coef @ coef + problem.l1 * abs(coef).sum())


def minimum(problem, model):
    model.fit(problem.rows.toarray().astype(np.float64), targets_of(problem))
    return objective(problem, model.coef_, np.ravel(model.intercept_)[0] if problem.fit_intercept else 0.0)


def descend(problem, comm=None, epochs=EPOCHS, **options):
    solver = CoordinateDescent(problem, comm, **options)
    passes = [solver.epoch() for _ in range(epochs)]
    return solver.coefficients(), passes


def bits(coefficients):
    return [array.tobytes() for array in coefficients]


CASES = {
    "logistic": (
        LOGISTIC,
        {"l2": ALPHA},
        LogisticRegression(C=1 / (ALPHA * ROWS), solver="newton-cholesky", tol=1e-10),
    ),
    "ridge": (SQUARED, {"l2": ALPHA}, Ridge(alpha=ALPHA * ROWS)),
    "svm": (
        SQUARED_HINGE,
        {"l2": ALPHA, "fit_intercept": False},
        LinearSVC(C=1 / (ALPHA * ROWS), fit_intercept=False, dual=False, tol=1e-10),
    ),
    "lasso": (SQUARED, {"l1": ALPHA}, Lasso(alpha=ALPHA, tol=1e-10)),
    "elastic_net": (
        SQUARED,
        {"l1": 0.3 * ALPHA, "l2": 0.7 * ALPHA},
        ElasticNet(alpha=ALPHA, l1_ratio=0.3, tol=1e-10),
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_descent_ends_in_the_minimum_of_scikit_learn(case, dtype):
    loss, options, model = CASES[case]
    problem = problem_of(loss, dtype, **options)
    (coef, intercept), passes = descend(problem, block=4)
    least = minimum(problem, model)
    assert coef.dtype == intercept.dtype == dtype
    assert (coef.shape, intercept.shape) == ((FEATURES, 1), (1,))
    assert objective(problem, coef, intercept) == pytest.approx(least, abs=1e-6)
    assert passes[-1].loss == pytest.approx(least, abs=1e-6)


@pytest.mark.parametrize("block", [1, 4, FEATURES, 10 * FEATURES])
def test_every_size_of_blocks_ends_in_the_same_minimum(block):
    loss, options, model = CASES["logistic"]
    problem = problem_of(loss, **options)
    _, passes = descend(problem, block=block)
    assert passes[-1].loss == pytest.approx(minimum(problem, model), abs=1e-6)


# The rows of each rank, in the order of their first feature, so that ranks have different features.
DEALS = {
    "one": [range(80)],
    "two": [range(40, 80), range(40)],
    "three, one without rows": [range(70, 80), range(0), range(70)],
}


@pytest.mark.parametrize("case", ["logistic", "lasso"])
@pytest.mark.parametrize("deal", DEALS)
def test_ranks_end_in_the_minimum_over_all_their_rows_with_the_same_bits(deal, case):
    loss, options, model = CASES[case]
    problem = problem_of(loss, **options)
    order = np.argsort((problem.rows.toarray() != 0).argmax(axis=1), kind="stable")

    def program(comm):
        own = problem.only(order[list(DEALS[deal][comm.rank])].astype(np.int64))
        return descend(own, comm, epochs=80, block=3, seed=comm.rank)

    results = run_program(program, len(DEALS[deal]))
    for coefficients, passes in results:
        assert bits(coefficients) == bits(results[0][0])
        assert [one.loss for one in passes] == [one.loss for one in results[0][1]]
    (coef, intercept), passes = results[0]
    least = minimum(problem, model)
    assert objective(problem, coef, intercept) == pytest.approx(least, abs=1e-6)
    assert passes[-1].loss == pytest.approx(least, abs=1e-6)


def test_one_against_the_rest_is_a_problem_of_its_own_for_every_class():
    rows = sparse_rows()
    problem = Problem(rows, classes_of(rows, count=4), LOGISTIC, classes=4, l2=ALPHA)
    (coef, intercept), passes = descend(problem, block=4)
    assert (coef.shape, intercept.shape) == ((FEATURES, 4), (4,))
    _, _, model = CASES["logistic"]
    least = []
    for number in range(4):
        alone = Problem(rows, (problem.targets == number).astype(int), LOGISTIC, l2=ALPHA)
        least.append(minimum(alone, model))
        assert objective(alone, coef[:, number], intercept[number]) == pytest.approx(least[-1], abs=1e-6)
    assert passes[-1].loss == pytest.approx(sum(least), abs=1e-6)


@pytest.mark.parametrize(("size", "block"), [(3, 2), (2, 100), (4, 100)])  # nine features occur
def test_the_blocks_of_all_ranks_are_as_good_as_one(size, block):
    rows = sparse_rows()
    problem = Problem(rows, classes_of(rows, count=4), LOGISTIC, classes=4, l2=ALPHA)

    def program(comm):
        return descend(problem.only(np.arange(comm.rank, ROWS, size)), comm, epochs=5, block=block)

    results = run_program(program, size)
    (coef, intercept), _ = descend(problem, epochs=5, block=size * block)
    for (coef_of_rank, intercept_of_rank), _ in results:
        np.testing.assert_allclose(coef_of_rank, coef, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(intercept_of_rank, intercept, rtol=1e-9)


def test_l1_makes_zeros_where_the_lasso_has_them():
    problem = problem_of(SQUARED, l1=0.3)
    (coef, _), _ = descend(problem, block=4)
    lasso = Lasso(alpha=0.3, tol=1e-10).fit(problem.rows.toarray(), problem.targets)
    assert 0 < np.count_nonzero(lasso.coef_) < FEATURES * 3 // 4
    assert np.flatnonzero(coef).tolist() == np.flatnonzero(lasso.coef_).tolist()


@pytest.mark.parametrize(("features", "block"), [(4, 4), (8, 2), (8, 100)])
def test_alone_features_that_are_alike_share_the_way(features, block):
    """If tau coordinates move, each moves 1 / tau of the way, so that together they arrive."""
    problem = Problem(
        csr_array(np.ones((3, features))), np.full(3, 8.0), SQUARED, REGRESSION, fit_intercept=False
    )
    (coef, _), [first] = descend(problem, epochs=1, block=block)
    moved = min(block, features)
    assert sorted(coef[:, 0]) == [0.0] * (features - moved) + [8.0 / moved] * moved
    assert first.loss == 0.0


def test_with_other_ranks_features_that_are_alike_share_the_way():
    problem = Problem(csr_array(np.ones((1, 8))), np.array([8.0]), SQUARED, REGRESSION, fit_intercept=False)
    results = run_program(lambda comm: descend(problem, comm, epochs=1, block=2), 2)
    assert sorted(results[0][0][0][:, 0]) == [0.0] * 4 + [2.0] * 4


def test_the_objective_never_rises_when_all_coordinates_move_at_once():
    _, passes = descend(problem_of(SQUARED, l1=0.01), block=FEATURES)
    losses = [one.loss for one in passes]
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(losses))


def test_a_weight_is_as_good_as_as_many_rows():
    problem = problem_of(LOGISTIC, l2=ALPHA)
    times = np.arange(ROWS) % 3
    numbers = np.repeat(np.arange(ROWS), times)
    repeated = Problem(problem.rows[numbers], problem.targets[numbers], LOGISTIC, l2=ALPHA)
    weighted = Problem(problem.rows, problem.targets, LOGISTIC, l2=ALPHA, sample_weight=times)
    (coef, intercept), passes = descend(weighted, epochs=20)
    (expected, expected_intercept), expected_passes = descend(repeated, epochs=20)
    np.testing.assert_allclose(coef, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(intercept, expected_intercept, rtol=1e-12)
    assert passes[-1].loss == pytest.approx(expected_passes[-1].loss, rel=1e-12)


def test_rows_that_are_no_members_do_not_count():
    problem = problem_of(LOGISTIC, l2=ALPHA)
    members = np.arange(5, ROWS, 2)
    alone = Problem(problem.rows[members], problem.targets[members], LOGISTIC, l2=ALPHA)
    assert bits(descend(problem.only(members), epochs=3)[0]) == bits(descend(alone, epochs=3)[0])


def test_the_seed_decides_about_every_bit():
    problem = problem_of(LOGISTIC, l2=ALPHA)
    one, again, other = (descend(problem, epochs=2, block=2, seed=seed)[0] for seed in (7, 7, 8))
    assert bits(one) == bits(again)
    assert bits(one) != bits(other)


def test_entries_that_come_twice_are_added_up():
    problem = problem_of(SQUARED, l2=ALPHA)
    rows = problem.rows
    halves = np.repeat(rows.data / 2, 2), np.repeat(rows.indices, 2), 2 * rows.indptr
    twice = Problem(csr_array(halves, rows.shape), problem.targets, SQUARED, REGRESSION, l2=ALPHA)
    assert bits(descend(twice, epochs=2, block=1)[0]) == bits(descend(problem, epochs=2, block=1)[0])
    assert twice.rows.nnz == 2 * rows.nnz


def test_what_margins_lose_to_rounding_is_back_after_a_pass():
    problem = problem_of(SQUARED, l2=ALPHA)
    coef, intercept = problem.zeros()
    coef[1] = 1e17  # so large that adding it rounds the margins away
    (coef, intercept), passes = descend(problem, start=(coef, intercept), block=4)
    assert passes[-1].loss == pytest.approx(minimum(problem, CASES["ridge"][2]), abs=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_without_features_there_is_an_intercept(size):
    problem = Problem(csr_array((8, 0), dtype=np.float64), np.arange(8) % 4 // 3, LOGISTIC)
    results = run_program(lambda comm: descend(problem, comm, epochs=40), size)
    for (coef, intercept), _ in results:
        assert coef.shape == (0, 1)
        assert intercept == pytest.approx([-np.log(3)], abs=1e-6)


def test_features_without_rows_stay_zero():
    (coef, _), _ = descend(problem_of(LOGISTIC, l2=ALPHA), epochs=3)
    assert np.count_nonzero(coef) == np.count_nonzero(coef.reshape(-1, 4)[:, 1:]) == FEATURES * 3 // 4


def test_a_warm_start_goes_on_from_there():
    problem = problem_of(LOGISTIC, l2=ALPHA)
    found, passes = descend(problem, block=4)
    _, further = descend(problem, epochs=1, block=4, start=found)
    assert further[0].loss <= passes[-1].loss + 1e-15


@pytest.mark.parametrize(("penalty", "expected"), [({}, 5.0), ({"l1": ALPHA}, 0.0), ({"l2": ALPHA}, 0.0)])
def test_a_start_at_a_feature_without_rows_is_left_to_the_penalty(penalty, expected):
    problem = problem_of(LOGISTIC, **penalty)
    coef, intercept = problem.zeros()
    coef[4] = 5.0
    (coef, _), _ = descend(problem, epochs=1, start=(coef, intercept))
    assert coef[4] == expected


def test_rows_of_no_weight_change_nothing():
    problem = problem_of(SQUARED, l1=ALPHA)
    rows = problem.rows.toarray()
    rows[0, 4] = 1.0  # a feature that no other row has
    weights = np.r_[0.0, np.ones(ROWS - 1)]
    weighted = Problem(csr_array(rows), problem.targets, SQUARED, REGRESSION, weights, l1=ALPHA)
    _, passes = descend(weighted)
    _, expected = descend(problem.only(np.arange(1, ROWS)))
    assert passes[-1].loss == pytest.approx(expected[-1].loss, abs=1e-9)


def test_a_pass_alone_sends_nothing():
    _, [first] = descend(problem_of(LOGISTIC), epochs=1)
    assert first.bytes_sent == 0
    assert 0 <= first.communicating <= first.seconds


def test_moves_of_zero_are_not_sent():
    def program(comm):
        members = np.arange(comm.rank, ROWS, comm.size)
        still, moving = (problem_of(SQUARED, l1=l1, fit_intercept=False).only(members) for l1 in (1e6, 0.0))
        return [descend(problem, comm, epochs=1)[1][0].bytes_sent for problem in (still, moving)]

    spared = [moving - still for still, moving in run_program(program, 2)]
    assert spared == [5 * 8, 4 * 8]  # nine features occur


def test_a_loss_that_is_not_differentiable_is_refused_with_a_remedy():
    with pytest.raises(InputError, match=r'"squared_hinge".*solver="sgd"'):
        CoordinateDescent(problem_of(HINGE))


def test_a_block_without_coordinates_is_refused():
    with pytest.raises(InputError, match="block is 0"):
        CoordinateDescent(problem_of(LOGISTIC), block=0)


def test_all_ranks_without_rows_is_refused_by_all():
    nothing = problem_of(LOGISTIC).only(np.empty(0, np.int64))
    with pytest.raises(RankErrors) as raised:
        run_program(lambda comm: CoordinateDescent(nothing, comm), 2)
    assert all(isinstance(error, InputError) for error in raised.value.errors.values())
    assert sorted(raised.value.errors) == [0, 1]
