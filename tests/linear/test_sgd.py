"""SGD on one to four ranks, compared with a dense loop over the same batches."""

import functools
import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from eager import Eager
from scipy.sparse import csr_array

from sparsewire.algorithms import ALGORITHMS
from sparsewire.linear.exchange import LOSSY, Exact, Lossy
from sparsewire.linear.losses import HINGE, LOGISTIC, SQUARED, SQUARED_HINGE
from sparsewire.linear.problem import REGRESSION, Problem
from sparsewire.linear.schedule import Schedule
from sparsewire.linear.sgd import SGD, Options
from sparsewire.testing import RankErrors, run_program

FEATURES, EPOCHS = 30, 2
# Rows of each rank: one has fewer than the others, one has none.
SHARES = {1: [50], 2: [40, 10], 3: [25, 25, 0], 4: [20, 13, 0, 17]}
ROWS = 50
STEADY = Options(batch_size=7, eta0=0.3, shuffle=False)

VALUES = {
    "logistic": lambda margins, targets: np.log1p(np.exp(-targets * margins)),
    "hinge": lambda margins, targets: np.maximum(0, 1 - targets * margins),
    "squared_hinge": lambda margins, targets: np.maximum(0, 1 - targets * margins) ** 2,
    "squared": lambda margins, targets: (margins - targets) ** 2 / 2,
}
SLOPES = {
    "logistic": lambda margins, targets: -targets / (1 + np.exp(targets * margins)),
    "hinge": lambda margins, targets: -targets * (targets * margins < 1),
    "squared_hinge": lambda margins, targets: -2 * targets * np.maximum(0, 1 - targets * margins),
    "squared": lambda margins, targets: margins - targets,
}


def matrix():
    """A fifth of the entries are not zero; row 5 has none, and feature 3 is in no row."""
    random = np.random.default_rng(1)
    dense = random.normal(size=(ROWS, FEATURES)) * (random.random((ROWS, FEATURES)) < 0.2)
    dense[5], dense[:, 3] = 0, 0
    return dense


def targets(classes):
    random = np.random.default_rng(2)
    return random.normal(size=ROWS) if classes == REGRESSION else random.integers(0, classes, ROWS)


CASES = {
    "logistic": ({}, {}),
    "hinge": ({"loss": HINGE}, {}),
    "squared_hinge": ({"loss": SQUARED_HINGE}, {"eta0": 0.1}),
    "squared": ({"loss": SQUARED, "classes": REGRESSION}, {}),
    "l2": ({"l2": 0.1}, {}),
    "l1": ({"l1": 0.02}, {}),
    "elastic net": ({"l1": 0.02, "l2": 0.1}, {}),
    "three classes": ({"classes": 3, "l2": 0.1}, {}),
    "three classes, l1": ({"classes": 3, "l1": 0.02}, {}),
    "sample weights": ({"l2": 0.1}, {}),
    "no intercept": ({"fit_intercept": False}, {}),
    "momentum": ({"l2": 0.1}, {"momentum": 0.8}),
    "momentum, three classes": ({"classes": 3}, {"momentum": 0.8}),
    "average": ({"l2": 0.1}, {"average": True}),
    "invscaling": ({}, {"schedule": Schedule("invscaling", power=0.3)}),
    "epoch_decay": ({}, {"schedule": Schedule("epoch_decay", decay=0.5)}),
    "shuffled": ({"l2": 0.1}, {"shuffle": True, "seed": 5}),
    "one batch": ({"l2": 0.1}, {"batch_size": 1000}),
    "single rows": ({"l2": 0.1}, {"batch_size": 1}),
}
LENGTHS = {
    "constant": lambda schedule, step, epoch: 1.0,
    "invscaling": lambda schedule, step, epoch: (step + 1) ** -schedule.power,
    "epoch_decay": lambda schedule, step, epoch: schedule.decay**epoch,
}


def shard(size, rank):
    first = sum(SHARES[size][:rank])
    return slice(first, first + SHARES[size][rank])


def sample_weights(size):
    """Weights of which the first eight of every rank are zero, so the first step has no gradient."""
    weights = np.random.default_rng(3).uniform(0.5, 3, ROWS)
    for rank in range(size):
        weights[shard(size, rank)][:8] = 0
    return weights


def problem_of(case, size, rank, dtype=np.float64):
    asked, own = {"loss": LOGISTIC, **CASES[case][0]}, shard(size, rank)
    if case == "sample weights":
        asked["sample_weight"] = sample_weights(size)[own]
    return Problem(csr_array(matrix()[own].astype(dtype)), targets(asked.get("classes", 2))[own], **asked)


def options_of(case):
    return replace(STEADY, **CASES[case][1])


def fitted(problem, options, comm, algorithm="auto", epochs=EPOCHS, exchange=None):
    """The coefficients, and the progress of each pass."""
    solver = SGD(problem, options, comm, exchange or (Exact(comm, algorithm) if comm else None))
    passes = [solver.epoch() for _ in range(epochs)]
    return solver.coefficients(), passes


def dealt(problem, options, comm, epochs=EPOCHS):
    """The numbers of the rows of each batch of each pass.

    The targets are the numbers of the rows, so that the loss sees which rows are in a batch.
    """
    seen = []

    def slope(margins, targets):
        seen[-1].append(targets[:, 0].astype(int))
        return np.zeros(margins.shape)

    numbered = replace(
        problem,
        targets=np.arange(problem.rows.shape[0]),
        loss=SQUARED._replace(slope=slope),
        classes=REGRESSION,
    )
    solver = SGD(numbered, replace(options, eta0=1.0), comm, Exact(comm) if comm else None)
    for _ in range(epochs):
        seen.append([])
        solver.epoch()
    return seen


def bits(coefficients):
    return [array.tobytes() for array in coefficients]


@functools.cache
def runs(size):
    """For each case, the outcome of every rank and its batches."""

    def program(comm):
        return {
            case: (
                fitted(problem_of(case, size, comm.rank), options_of(case), comm),
                dealt(problem_of(case, size, comm.rank), options_of(case), comm),
            )
            for case in CASES
        }

    ranks = run_program(program, size)
    return {case: [rank[case] for rank in ranks] for case in CASES}


def plus_minus(numbers, outputs):
    """Targets +1 and -1 of classes; with two classes, class 1 is +1."""
    positive = [1] if outputs == 1 else range(outputs)
    return np.array([[1.0 if number == one else -1.0 for one in positive] for number in numbers])


def descend(case, size, batches):
    """The results of the dense loop: coefficients, intercepts, and the objective during each pass."""
    asked, options = {"loss": LOGISTIC, "classes": 2, "l1": 0, "l2": 0} | CASES[case][0], options_of(case)
    outputs = 3 if asked["classes"] == 3 else 1
    value, slope = (table[asked["loss"].name] for table in (VALUES, SLOPES))
    wanted = targets(asked["classes"])
    wanted = wanted[:, None] if asked["classes"] == REGRESSION else plus_minus(wanted, outputs)
    weights = sample_weights(size) if case == "sample weights" else np.ones(ROWS)
    moving = {"momentum": options.momentum, "average": options.average}
    coef = Eager(np.zeros((FEATURES, outputs)), asked["l1"], asked["l2"], **moving)
    intercept = Eager(np.zeros(outputs), **moving)
    step, losses = 0, []
    for epoch in range(EPOCHS):
        loss, penalty = 0.0, asked["l1"] * abs(coef.w).sum() + asked["l2"] / 2 * np.sum(coef.w**2)
        for everybody in zip(*(rank[epoch] for rank in batches), strict=True):
            rows = np.concatenate([shard(size, r).start + batch for r, batch in enumerate(everybody)])
            margins, share = matrix()[rows] @ coef.w + intercept.w, weights[rows, None]
            loss += np.sum(share * value(margins, wanted[rows]))
            slopes = share * slope(margins, wanted[rows]) / (share.sum() or 1)
            length = options.eta0 * LENGTHS[options.schedule.name](options.schedule, step, epoch)
            coef.step(matrix()[rows].T @ slopes, length)
            intercept.step(slopes.sum(axis=0) * asked.get("fit_intercept", True), length)
            step += 1
        losses.append(loss / weights.sum() + penalty)
    return coef.result(), intercept.result(), losses


@pytest.mark.parametrize("size", SHARES)
@pytest.mark.parametrize("case", CASES)
def test_sgd_does_what_a_dense_loop_does(case, size):
    outcomes = runs(size)[case]
    coef, intercept, losses = descend(case, size, [batches for _, batches in outcomes])
    for (found, passes), _ in outcomes:
        assert found[0] == pytest.approx(coef, rel=1e-9, abs=1e-12)
        assert found[1] == pytest.approx(intercept, rel=1e-9, abs=1e-12)
        assert [progress.loss for progress in passes] == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize("size", SHARES)
@pytest.mark.parametrize("case", CASES)
def test_every_rank_ends_with_the_same_bits(case, size):
    ((first, passes), _), *others = runs(size)[case]
    for (found, theirs), _ in others:
        assert bits(found) == bits(first)
        assert [progress.loss for progress in theirs] == [progress.loss for progress in passes]


@pytest.mark.parametrize("size", SHARES)
def test_passes_are_accounted_for(size):
    for (_, passes), _ in runs(size)["logistic"]:
        for progress in passes:
            assert 0 <= progress.communicating <= progress.seconds
            assert (progress.bytes_sent > 0) == (size > 1)
            assert progress.held_out_loss is None


# -- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SHARES)
@pytest.mark.parametrize("case", ["logistic", "shuffled", "one batch", "single rows"])
def test_every_row_is_in_one_batch_of_every_pass(case, size):
    most = options_of(case).batch_size
    dealt_to_all = [batches for _, batches in runs(size)[case]]
    for rank, batches in enumerate(dealt_to_all):
        for epoch in batches:
            assert sorted(np.concatenate(epoch).tolist()) == list(range(SHARES[size][rank]))
            assert max(map(len, epoch)) <= most
            if case != "shuffled":
                assert np.concatenate(epoch).tolist() == list(range(SHARES[size][rank]))
    assert len({len(epoch) for batches in dealt_to_all for epoch in batches}) == 1


@pytest.mark.parametrize("size", SHARES)
def test_batches_of_a_rank_are_as_large_as_each_other(size):
    # A small last batch would have another curvature than the one for which the step length was chosen.
    for _, batches in runs(size)["logistic"]:
        sizes = [len(batch) for epoch in batches for batch in epoch]
        assert max(sizes) - min(sizes) <= 1


def test_shuffling_differs_by_pass_and_rank_and_seed():
    def order(options, rank_rows=20, comm=None):
        problem = Problem(csr_array((rank_rows, 1)), np.zeros(rank_rows), SQUARED, REGRESSION)
        return [np.concatenate(epoch).tolist() for epoch in dealt(problem, options, comm, epochs=2)]

    options = replace(STEADY, shuffle=True, seed=5)
    first, second = order(options)
    assert first != second
    assert order(options) == [first, second]
    assert order(replace(options, seed=6))[0] != first
    on_ranks = run_program(lambda comm: order(options, comm=comm), 2)
    assert on_ranks[0][0] != on_ranks[1][0]


def test_only_members_are_learnt_from():
    problem = problem_of("logistic", 1, 0)
    members = np.array([2, 3, 5, 20, 21, 40])
    [[*batches]] = dealt(problem.only(members), STEADY, None, epochs=1)
    assert np.concatenate(batches).tolist() == members.tolist()


# -- exchanges -----------------------------------------------------------------------------------


@functools.cache
def by_algorithm(case, size):
    def program(comm):
        problem = problem_of(case, size, comm.rank)
        return {name: fitted(problem, options_of(case), comm, name)[0] for name in ("auto", *ALGORITHMS)}

    ranks = run_program(program, size)
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("case", ["l2", "l1", "momentum", "average"])
def test_algorithms_lead_to_the_same_model(case, size, algorithm):
    outcomes = by_algorithm(case, size)
    first, *others = outcomes[algorithm]
    assert all(bits(other) == bits(first) for other in others)
    if ALGORITHMS[algorithm].in_rank_order:
        assert bits(first) == bits(outcomes["auto"][0])
    for found, expected in zip(first, outcomes["auto"][0], strict=True):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_bits_do_not_depend_on_what_auto_takes_for_the_fastest():
    # For full gradients of this length "auto" does not add in rank order, unless it is asked to.
    random = np.random.default_rng(6)
    dense, values = random.normal(size=(16, 3000)), random.normal(size=16)

    def program(comm):
        own = slice(4 * comm.rank, 4 * comm.rank + 4)
        problem = Problem(csr_array(dense[own]), values[own], SQUARED, REGRESSION)
        comm.allreduce(dense[0])
        assert not ALGORITHMS[comm.last.algorithm].in_rank_order
        return [bits(fitted(problem, Options(), comm, name)[0]) for name in ("auto", "allgather_sum")]

    for auto, ordered in run_program(program, 4):
        assert auto == ordered


def many_rows():
    random = np.random.default_rng(7)
    rows = random.normal(size=(404, 200)) * (random.random((404, 200)) < 0.1)
    return csr_array(rows), rows @ random.normal(size=200)


NOTHING = np.zeros((200, 1)), np.zeros(1)


def mean_square(coefficients):
    rows, values = many_rows()
    return np.mean((rows @ coefficients[0][:, 0] + coefficients[1][0] - values) ** 2)


@functools.cache
def by_exchange():
    """The results of each exchange: least squares on two ranks of 202 rows each, in batches of 100."""
    rows, values = many_rows()

    def program(comm):
        own = slice(comm.rank * 202, comm.rank * 202 + 202)
        problem = Problem(rows[own], values[own], SQUARED, REGRESSION)
        outcomes = {}
        for method in LOSSY:
            # A randomly drawn entry has waited for ten steps, so one step moves it as far as ten.
            options = Options(batch_size=100, eta0=0.2 if method == "randomk" else None)
            exchange = Lossy(comm, method, density=0.1)
            outcomes[method] = fitted(problem, options, comm, epochs=25, exchange=exchange)[0]
        for precision in (None, "float16", "qsgd8"):
            exchange = Exact(comm, precision=precision)
            outcomes[precision] = fitted(
                problem, Options(batch_size=100), comm, epochs=25, exchange=exchange
            )[0]
        return outcomes

    return run_program(program, 2)


@pytest.mark.parametrize("method", LOSSY)
def test_the_largest_entries_lead_to_the_minimum_too(method):
    first, second = (rank[method] for rank in by_exchange())
    assert bits(first) == bits(second)
    assert mean_square(first) < 0.3 * mean_square(NOTHING)


@pytest.mark.parametrize("method", ["topk", "ok_topk", "gtopk"])
def test_the_largest_entries_are_all_of_them_at_a_density_of_one(method):
    def program(comm):
        problem = problem_of("l2", 2, comm.rank)
        exchange = Lossy(comm, method, density=1.0)
        return fitted(problem, STEADY, comm)[0], fitted(problem, STEADY, comm, exchange=exchange)[0]

    for exact, lossy in run_program(program, 2):
        for found, expected in zip(lossy, exact, strict=True):
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("precision", ["float16", "qsgd8"])
def test_rounded_gradients_lead_to_the_minimum_too(precision):
    first, second = (rank[precision] for rank in by_exchange())
    assert bits(first) == bits(second)
    exact = mean_square(by_exchange()[0][None])
    assert exact < 0.1 * mean_square(NOTHING)
    assert mean_square(first) == pytest.approx(exact, rel=0.1)


def test_an_unknown_method_is_refused():
    with pytest.raises(RankErrors, match="InputError: unknown method 'most'; known are exact, topk"):
        run_program(lambda comm: Lossy(comm, "most", 0.1), 1)


# -- the length of steps -------------------------------------------------------------------------

HARD = {
    "symmetric": np.array([[100.0, -100.0], [-100.0, 100.0]] * 5),
    "one long row": np.concatenate([np.eye(20), 50 * np.eye(20)[:1]]),
    "equal columns": np.ones((12, 8)),
    "a tiny feature": np.array([[1e-8, 1.0], [1e-8, -1.0], [1e-8, 2.0]]),
}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("rows", HARD)
def test_the_length_that_is_chosen_lets_the_loss_fall(rows, intercept):
    values = np.random.default_rng(8).normal(size=len(HARD[rows]))
    problem = Problem(csr_array(HARD[rows]), values, SQUARED, REGRESSION, fit_intercept=intercept)
    _, passes = fitted(problem, Options(), None, epochs=30)
    losses = [progress.loss for progress in passes]
    assert losses[0] == pytest.approx(np.mean(values**2) / 2)
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(losses))


@pytest.mark.parametrize("size", [1, 2])
def test_the_length_that_is_chosen_is_that_of_the_largest_curvature(size):
    # After one step from zero on the squared loss, the coefficients show its length, the same on all ranks.
    rows, values = matrix(), targets(REGRESSION)
    problem = Problem(csr_array(rows), values, SQUARED, REGRESSION, fit_intercept=False)
    largest = np.linalg.norm(rows, 2) ** 2 / ROWS
    for (coef, _), _ in run_program(lambda comm: fitted(problem, Options(), comm, epochs=1), size):
        length = np.linalg.norm(coef) / np.linalg.norm(rows.T @ values / ROWS)
        assert 1 / largest <= length < 1.3 / largest


def test_rows_of_zeros_leave_coefficients_at_zero():
    problem = Problem(csr_array((6, 4)), np.array([0, 1, 1, 0, 1, 1]), LOGISTIC, fit_intercept=False)
    (coef, intercept), passes = fitted(problem, Options(), None, epochs=2)
    assert not coef.any()
    assert not intercept.any()
    assert passes[-1].loss == pytest.approx(np.log(2))


# -- from there on -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["l2", "l1", "momentum", "average"])
def test_other_rows_can_be_shown(case):
    problem, options = problem_of(case, 1, 0), options_of(case)
    half = np.arange(ROWS // 2)
    solver = SGD(problem.only(half), options)
    solver.epoch()
    solver.release()
    solver.set_problem(problem.only(half))
    solver.epoch()
    assert bits(solver.coefficients()) == bits(fitted(problem.only(half), options, None, epochs=2)[0])
    solver.set_problem(problem.only(half + ROWS // 2))
    before = solver.coefficients()[0].copy()
    solver.epoch()
    assert not np.array_equal(solver.coefficients()[0], before)


def test_a_start_is_where_descent_begins():
    problem = problem_of("l2", 1, 0)
    whole, _ = fitted(problem, STEADY, None, epochs=4)
    half, _ = fitted(problem, STEADY, None, epochs=2)
    kept = bits(half)
    solver = SGD(problem, STEADY, start=half)
    for _ in range(2):
        solver.epoch()
    assert bits(solver.coefficients()) == bits(whole)
    assert bits(half) == kept, "the start is not written to"


# -- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["l2", "three classes"])
def test_the_form_of_the_matrix_does_not_matter(case):
    problem = problem_of(case, 1, 0)
    expected, _ = fitted(problem, options_of(case), None)
    wide = csr_array(problem.rows)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert bits(fitted(replace(problem, rows=wide), options_of(case), None)[0]) == bits(expected)
    entries = problem.rows.tocoo()
    backwards = csr_array(problem.rows.shape)
    backwards.indptr = problem.rows.indptr
    order = np.lexsort((-entries.col, entries.row))
    backwards.indices, backwards.data = entries.col[order], entries.data[order]
    in_halves = csr_array(problem.rows.shape)  # every entry twice
    in_halves.indptr = 2 * problem.rows.indptr
    in_halves.indices, in_halves.data = np.repeat(entries.col, 2), np.repeat(entries.data / 2, 2)
    for rows in (backwards, in_halves):
        found, _ = fitted(replace(problem, rows=rows), options_of(case), None)
        assert found[0] == pytest.approx(expected[0], rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("case", ["l2", "l1", "momentum", "average", "three classes"])
def test_single_precision_follows_double_precision(case):
    expected, _ = fitted(problem_of(case, 1, 0), options_of(case), None)
    (coef, intercept), _ = fitted(problem_of(case, 1, 0, np.float32), options_of(case), None)
    assert coef.dtype == intercept.dtype == np.float32
    assert coef == pytest.approx(expected[0], rel=1e-4, abs=1e-5)
    assert intercept == pytest.approx(expected[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("case", ["l1", "momentum"])
def test_a_pass_needs_little_memory_beside_the_weights(case):
    features = 1 << 22
    random = np.random.default_rng(9)
    rows = csr_array(
        (np.ones(60, np.float32), random.integers(0, features, 60), np.arange(0, 61, 2)), (30, features)
    )
    problem = Problem(rows, random.integers(0, 2, 30), LOGISTIC, **CASES[case][0])
    solver = SGD(problem, options_of(case))
    tracemalloc.start()
    solver.epoch()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < features * rows.data.itemsize / 4
