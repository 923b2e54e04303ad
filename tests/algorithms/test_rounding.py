"""Rounding as a step of scripts: ranks agree, runs repeat, the mean is right, and feedback loses nothing."""

import math

import numpy as np
import pytest

from sparsewire.algorithms import ALGORITHMS, Context
from sparsewire.coding.rounding import Feedback, PrecisionRounding, rounded
from sparsewire.coding.values import PRECISIONS, QSGD
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers import local, simulator
from sparsewire.errors import InputError
from sparsewire.reduction import MAX, SUM
from sparsewire.testing import dense, same_bits
from sparsewire.vector import SparseVector
from strategies import in_one_test

ROUNDING = [name for name, algorithm in ALGORITHMS.items() if algorithm.supports_precision]
SIZES = [1, 2, 3, 4, 5, 8]
# Half of the distance between neighbours, in parts of the number; and levels of the largest one.
RELATIVE = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
LEVELS = {"qsgd2": 1, "qsgd4": 7, "qsgd8": 127}


def contributions(size, length=3000, density=0.2, dtype="float32", seed=0):
    chance = np.random.default_rng(seed)
    vectors = []
    for _ in range(size):
        indices = np.flatnonzero(chance.random(length) < density)
        vectors.append(SparseVector(length, indices, chance.standard_normal(len(indices)).astype(dtype)))
    return vectors


def run(name, inputs, precision, number=1, feedback=None, op=SUM, seed=0):
    """Everybody's result; ``feedback`` has one for each rank."""
    size = len(inputs)

    def script(rank):
        rounding = PrecisionRounding(precision, rank, number, feedback[rank] if feedback else None)
        with rounding:
            return (yield from ALGORITHMS[name].run(rank, size, inputs[rank], Context(op, rounding)))

    results, _ = local.run([script(rank) for rank in range(size)], seed)
    assert all(same_bits(results[0], result) for result in results), "ranks differ"
    return results[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ROUNDING)
@in_one_test(precision=PRECISIONS, density=[0.0, 0.05, 1.0])
def test_all_ranks_and_runs_have_the_same_bits_within_the_error_of_two_roundings(
    name, size, precision, density
):
    inputs = contributions(size, density=density)
    result = run(name, inputs, PRECISIONS[precision])
    assert same_bits(result, run(name, inputs, PRECISIONS[precision], seed=5))
    exact = sum(dense(vector).astype(np.float64) for vector in inputs)
    if precision in RELATIVE:
        bound = sum(np.abs(dense(vector)) for vector in inputs) * RELATIVE[precision] * 2.1 + 1e-7
    else:
        steps = [np.abs(dense(vector)).max(initial=0) / LEVELS[precision] for vector in inputs]
        bound = sum(steps) + (np.abs(exact).max() + sum(steps)) / LEVELS[precision] + 1e-5
    assert (np.abs(dense(result) - exact) <= bound).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ROUNDING)
def test_numbers_that_few_bits_can_hold_are_summed_exactly(name, size):
    """Of size 1 each, at different places: a single level of any scale; small integers in float16."""
    inputs = [
        SparseVector(40, range(r, 40, size), (-1.0) ** np.arange(len(range(r, 40, size))))
        for r in range(size)
    ]
    exact = sum(dense(vector) for vector in inputs)
    for precision in PRECISIONS.values():
        assert (dense(run(name, inputs, precision)) == exact).all()
    full = [SparseVector.from_dense(np.arange(100.0) - 50 * rank) for rank in range(size)]
    assert (dense(run(name, full, PRECISIONS["float16"])) == sum(dense(v) for v in full)).all()


@pytest.mark.parametrize("name", ROUNDING)
def test_half_types_are_added_up_in_float32(name):
    """1 + 8 * 2**-11: in float16 each addition would be lost, the sum is a float16 number."""
    inputs = [
        SparseVector(1, [0], np.array([1.0 if rank == 0 else 2.0**-11], "float32")) for rank in range(9)
    ]
    assert dense(run(name, inputs, PRECISIONS["float16"]))[0] == 1 + 2.0**-8


@pytest.mark.parametrize("name", ROUNDING)
def test_the_largest_of_rounded_values(name):
    inputs = [SparseVector(9, [rank], np.array([1 + 2.0**-20], "float32")) for rank in range(3)]
    assert dense(run(name, inputs, PRECISIONS["float16"], op=MAX)).tolist() == [1.0] * 3 + [0.0] * 6


@pytest.mark.parametrize("norm", ["max", "2"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("name", ROUNDING)
def test_the_mean_over_calls_is_the_exact_sum(name, bits, norm):
    """Three sums of the errors of all positions: the mean of 300 calls, in standard errors of that mean.

    They are sums of some hundred bounded errors, so all but normal.  Seeds are fixed; were they not, right
    code would exceed 5 standard errors once in 500,000 runs.
    """
    inputs, calls = contributions(3, length=400, density=0.3), 300
    exact = sum(dense(vector).astype(np.float64) for vector in inputs)
    errors = np.array(
        [
            dense(run(name, inputs, QSGD(bits, bucket=64, norm=norm), number)) - exact
            for number in range(calls)
        ]
    )
    for weights in (np.sign(exact), np.ones(len(exact)), exact):  # towards zero, towards the left, too short
        sums = errors @ weights
        assert sums.std() > 0
        assert abs(sums.mean()) < 5 * sums.std(ddof=1) / math.sqrt(calls)


def test_chance_depends_on_seed_call_rank_and_stage():
    values = SparseVector.from_dense(np.linspace(0.01, 1, 2000, dtype="float32"))
    places = {
        (seed, place): None for seed in (0, 1) for place in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]
    }
    results = {rounded(values, QSGD(4, seed=seed), place).values.tobytes() for seed, place in places}
    assert len(results) == len(places)
    again = rounded(values, QSGD(4, seed=1), (1, 1, 0))
    assert again.values.tobytes() in results


def test_chance_goes_by_position_not_by_place_in_memory():
    """Cut anywhere, the same values at the same positions are rounded alike, if scales agree."""
    indices = np.arange(0, 4000, 3)
    values = np.random.default_rng(3).choice([0.3, -0.7, 1.0], len(indices)).astype("float32")
    whole = SparseVector(4000, indices, values)
    precision = QSGD(4, bucket=1 << 20)
    together = rounded(whole, precision, (1, 1, 0))
    pieces = [rounded(piece, precision, (1, 1, 0)) for piece in whole.split_at([0, 1000, 1700, 4000])]
    assert (np.concatenate([piece.values for piece in pieces]) == together.values).all()


def test_what_is_not_finite_becomes_nan_and_nothing_else_changes():
    values = np.linspace(-1, 1, 100)
    odd = values.copy()
    odd[[3, 50, 97]] = np.nan, np.inf, -np.inf
    values[[3, 50, 97]] = 0
    for bits in (2, 4, 8):
        clean = rounded(SparseVector.from_dense(values), QSGD(bits), (0, 0, 0)).values
        got = rounded(SparseVector.from_dense(odd), QSGD(bits), (0, 0, 0)).values
        assert np.isnan(got[[3, 50, 97]]).all()
        assert (np.delete(got, [3, 50, 97]) == np.delete(clean, [3, 50, 97])).all()


# -- feedback ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "precision", [*PRECISIONS.values(), QSGD(4, bucket=7, norm="2")], ids=lambda p: p.name
)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ROUNDING)
def test_feedback_loses_nothing(name, size, precision):
    """All results and all that is still kept are the sum of all that was given, up to float64's rounding."""
    feedback = [Feedback() for _ in range(size)]
    given = came_out = 0.0
    for step in range(6):
        inputs = contributions(size, dtype="float64", density=[0.0, 0.1, 1.0][step % 3], seed=step)
        for rank in range(size):
            feedback[rank].make_room(inputs[rank].length, inputs[rank].dtype)
        given += sum(dense(vector) for vector in inputs)
        came_out += dense(run(name, inputs, precision, step, feedback))
    kept = sum(f.contribution + f.owned for f in feedback)
    assert np.abs(kept).max() > 0
    np.testing.assert_allclose(came_out + kept, given, rtol=0, atol=1e-12 * size * 6)


@pytest.mark.parametrize("name", ROUNDING)
def test_with_feedback_the_error_of_many_calls_does_not_grow(name):
    """The same values again and again: the mean of T results is off by one call's error / T."""
    inputs, calls = contributions(2, length=500), 200
    exact = sum(dense(vector).astype(np.float64) for vector in inputs)
    means = {}
    for with_feedback in (False, True):
        feedback = [Feedback() for _ in inputs] if with_feedback else None
        for rank, vector in enumerate(inputs if with_feedback else []):
            feedback[rank].make_room(vector.length, vector.dtype)
        total = sum(
            dense(run(name, inputs, QSGD(2, bucket=32), number, feedback)).astype(np.float64)
            for number in range(calls)
        )
        means[with_feedback] = np.abs(total / calls - exact).max()
    assert means[True] < means[False] / 2


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("name", ROUNDING)
def test_feedback_does_not_grow_from_call_to_call(name, bits):
    """Two bits at random would miss a dense vector of normal numbers by more than its length, each time."""
    feedback = [Feedback() for _ in range(2)]
    largest = []
    for step in range(100):
        inputs = contributions(2, length=1000, density=1.0, seed=step)
        for rank in range(2):
            feedback[rank].make_room(1000, inputs[rank].dtype)
        run(name, inputs, QSGD(bits), step, feedback)
        largest.append(max(np.abs(f.contribution).max() for f in feedback))
    assert max(largest[50:]) <= 1.5 * max(largest[:50])
    assert max(largest) < 6  # the largest value, which is below 5, and a little more


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ROUNDING)
def test_two_bits_with_feedback_round_no_entry_to_zero(name, size):
    """Each position is an entry of one rank, so that no sum is zero by chance."""
    chance = np.random.default_rng(size)
    feedback = [Feedback() for _ in range(size)]
    for step in range(3):
        values = [chance.standard_t(1.5, 2000).astype("float32") for _ in range(size)]
        places = [range(3 * rank, 6000 * size, 3 * size) for rank in range(size)]
        inputs = [SparseVector(6000 * size, *mine) for mine in zip(places, values, strict=True)]
        for rank in range(size):
            feedback[rank].make_room(6000 * size, inputs[rank].dtype)
        result = run(name, inputs, QSGD(2), step, feedback)
        assert result.nnz == 2000 * size
        assert (result.values != 0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ROUNDING)
def test_two_bits_with_feedback_give_nothing_where_nobody_gave_a_value(name, size):
    """Also if ranges are stored densely, where such positions are zeros among the values."""
    inputs = contributions(size, density=0.7)
    feedback = [Feedback() for _ in range(size)]
    for vector, kept in zip(inputs, feedback, strict=True):
        kept.make_room(vector.length, vector.dtype)
    given = np.any([dense(vector) != 0 for vector in inputs], axis=0)
    for step in range(3):
        result = dense(run(name, inputs, QSGD(2), step, feedback))
        assert not result[~given].any()
        assert result[given].any()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_pieces_of_a_vector_that_was_rounded_to_the_nearest_lose_little(bits):
    """Their buckets begin elsewhere; random levels of two bits would lose twice the length of the vector."""
    values = np.random.default_rng(0).standard_t(3, 40_000).astype("float32")
    indices = np.flatnonzero(np.abs(values) > 3)
    sent = rounded(SparseVector(len(values), indices, values[indices]), QSGD(bits), None)
    rounding = PrecisionRounding(QSGD(bits), 0, 1, None, sent.packed)
    shares = [rounding.contribution(share) for share in sent.split_evenly(4)]
    lost = np.concatenate([share.values for share in shares]) - sent.values
    assert np.linalg.norm(lost) < 0.4 * np.linalg.norm(sent.values)
    assert {share.packed.precision for share in shares} == {sent.packed.precision}
    assert rounding.owned(sent).packed.precision == QSGD(bits)


@pytest.mark.parametrize("name", ROUNDING)
def test_a_call_that_fails_gives_the_feedback_back(name):
    inputs = contributions(2)
    feedback = Feedback(np.full(3000, 0.25, "float32"), np.full(3000, 0.5, "float32"))

    def script():
        rounding = PrecisionRounding(QSGD(2), 0, 1, feedback)
        with rounding:
            return (yield from ALGORITHMS[name].run(0, 2, inputs[0], Context(SUM, rounding)))

    failing = script()
    next(failing)
    failing.close()
    assert (feedback.contribution == 0.25).all()
    assert (feedback.owned == 0.5).all()


def test_feedback_keeps_no_nan():
    feedback = Feedback()
    feedback.make_room(3, np.dtype("float32"))
    inputs = [SparseVector.from_dense(np.array([np.nan, np.inf, 1.0], "float32"))]
    assert np.isnan(dense(run("split_allgather", inputs, QSGD(4), 1, [feedback]))).tolist() == [
        True,
        True,
        False,
    ]
    assert (feedback.contribution == 0).all()
    assert (feedback.owned == 0).all()


def test_feedback_of_another_tensor_is_refused():
    feedback = Feedback()
    feedback.make_room(30, np.dtype("float32"))
    with pytest.raises(InputError, match="for 30 float32 values and the vector has 31 float32 values"):
        feedback.make_room(31, np.dtype("float32"))
    with pytest.raises(InputError, match="has 30 float64 values"):
        feedback.make_room(30, np.dtype("float64"))


# -- cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=lambda p: p.name)
@pytest.mark.parametrize("every", [1, 4, 64])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["allgather_sum", "split_allgather"])
def test_bytes_are_those_that_the_cost_function_says(name, size, every, precision):
    length = 1 << 14
    vector = SparseVector(length, range(0, length, every), np.ones(length // every, "float32"))
    inputs, network = [vector.smaller()] * size, CostFigures()

    def script(rank):
        rounding = PrecisionRounding(precision, rank, 0)
        return ALGORITHMS[name].run(rank, size, inputs[rank], Context(SUM, rounding))

    simulation = simulator.run([script(rank) for rank in range(size)], network)
    shape = Shape(size, length, length // every, 4, "identical", precision=precision)
    cost = ALGORITHMS[name].cost(network, shape)
    assert [traffic.bytes_sent for traffic in simulation.traffic] == [cost.bytes_sent] * size
    assert simulation.seconds == pytest.approx(cost.seconds)
