"""Weights that postpone changes where the gradient is zero, compared with a loop that postpones nothing."""

import numpy as np
import pytest
from eager import Eager

from sparsewire.errors import InputError
from sparsewire.linear import weights as lazy
from sparsewire.linear.weights import make_weights

LENGTH, STEPS = 40, 60
EVERYWHERE = slice(None)

KINDS = {
    "plain": {},
    "l2": {"l2": 0.3},
    "l1": {"l1": 0.2},
    "l1 and l2": {"l1": 0.2, "l2": 0.3},
    "momentum": {"momentum": 0.9},
    "momentum and l2": {"momentum": 0.9, "l2": 0.3},
    "little momentum": {"momentum": 0.1, "l2": 0.3},
    "average": {"average": True},
    "average and l2": {"average": True, "l2": 0.3},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
WITH_STAMPS = [kind for kind in KINDS if "l1" in KINDS[kind] or "momentum" in KINDS[kind]]
WITH_SCALE = [kind for kind in KINDS if "l2" in KINDS[kind]]


def first_weights(dtype=np.float64):
    return np.random.default_rng(1).normal(size=LENGTH).astype(dtype)


def random_steps(seed, count=STEPS, dtype=np.float64):
    """The places of a step: few, none or all, or a slice; never 0 and 1."""
    random = np.random.default_rng(seed)
    for number in range(count):
        length = random.uniform(0.01, 0.5)
        if number % 17 == 16:
            gradient = np.concatenate([[0, 0], random.normal(size=LENGTH - 2)])
            yield EVERYWHERE, gradient.astype(dtype), length
        else:
            share = random.choice([0.0, 0.05, 0.3, 1.0], p=[0.1, 0.5, 0.3, 0.1])
            places = 2 + np.flatnonzero(random.random(LENGTH - 2) < share).astype(np.uint32)
            yield places, random.normal(size=len(places)).astype(dtype), length


def dense(places, gradient):
    array = np.zeros(LENGTH)
    array[places] = gradient
    return array


def bits(weights):
    return weights.result().tobytes()


@each_kind
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_weights_are_at_every_step_as_if_all_had_moved(kind, seed):
    weights, eager = make_weights(first_weights(), **KINDS[kind]), Eager(first_weights(), **KINDS[kind])
    for places, gradient, length in random_steps(seed):
        weights.step(places, gradient, length)
        eager.step(dense(places, gradient), length)
        assert weights.at(EVERYWHERE) == pytest.approx(eager.w, rel=1e-10, abs=1e-13)
        some = np.array([0, 3, 4, LENGTH - 1], np.uint32)
        assert weights.at(some) == pytest.approx(eager.w[some], rel=1e-10, abs=1e-13)
    assert weights.result() == pytest.approx(eager.result(), rel=1e-10, abs=1e-13)
    assert weights.now() == pytest.approx(eager.w, rel=1e-10, abs=1e-13)


@each_kind
def test_single_precision_follows_double_precision(kind):
    weights = make_weights(first_weights(np.float32), **KINDS[kind])
    eager = Eager(first_weights(np.float32), **KINDS[kind])
    for places, gradient, length in random_steps(4, dtype=np.float32):
        weights.step(places, gradient, length)
        eager.step(dense(places, gradient), length)
    assert weights.at(EVERYWHERE).dtype == np.float64
    assert weights.result().dtype == weights.now().dtype == np.float32
    assert weights.result() == pytest.approx(eager.result(), rel=1e-4, abs=1e-5)


@each_kind
def test_reading_changes_no_bit(kind):
    read, unread = (make_weights(first_weights(), **KINDS[kind]) for _ in range(2))
    random = np.random.default_rng(5)
    for step in random_steps(5):
        read.at(np.flatnonzero(random.random(LENGTH) < 0.4))
        read.at(EVERYWHERE)
        for weights in (read, unread):
            weights.step(*step)
    assert bits(read) == bits(unread)


@each_kind
def test_settling_in_between_changes_nothing_but_rounding(kind):
    settled, unsettled = (make_weights(first_weights(), **KINDS[kind]) for _ in range(2))
    for number, step in enumerate(random_steps(6)):
        for weights in (settled, unsettled):
            weights.step(*step)
        if number % 7 == 0:
            settled.settle()
        if number % 11 == 0:
            settled.result()
    assert settled.result() == pytest.approx(unsettled.result(), rel=1e-11, abs=1e-13)
    assert settled.now() == pytest.approx(unsettled.now(), rel=1e-11, abs=1e-13)


@each_kind
def test_the_start_is_the_result_of_no_steps_and_is_not_written_to(kind):
    start = first_weights()
    start.flags.writeable = False
    weights = make_weights(start, **KINDS[kind])
    assert np.array_equal(weights.result(), start)
    assert np.array_equal(weights.at(EVERYWHERE), start)
    for step in random_steps(7, count=3):
        weights.step(*step)
    assert np.array_equal(start, first_weights())


@each_kind
def test_there_may_be_no_weights(kind):
    weights = make_weights(np.zeros(0), **KINDS[kind])
    weights.step(np.zeros(0, np.uint32), np.zeros(0), 0.5)
    assert len(weights.result()) == len(weights.now()) == len(weights.at(EVERYWHERE)) == 0


@each_kind
def test_pieces_of_all_weights_are_settled_alike(kind, monkeypatch):
    monkeypatch.setattr(lazy, "PIECE", 16)  # 40, the number of weights, is no multiple of it
    test_weights_are_at_every_step_as_if_all_had_moved(kind, seed=8)


@pytest.mark.parametrize("kind", WITH_STAMPS)
@pytest.mark.parametrize("horizon", [2, 3, 16, STEPS, STEPS + 1])
def test_stamps_that_run_out_are_renewed(kind, horizon, monkeypatch):
    monkeypatch.setattr(lazy, "HORIZON", horizon)
    test_weights_are_at_every_step_as_if_all_had_moved(kind, seed=9)


@pytest.mark.parametrize("kind", WITH_SCALE)
def test_a_scale_that_becomes_too_small_is_renewed(kind, monkeypatch):
    monkeypatch.setattr(lazy.Weights, "smallest_scale", 0.5)
    test_weights_are_at_every_step_as_if_all_had_moved(kind, seed=10)


@pytest.mark.parametrize("kind", WITH_SCALE)
def test_single_precision_has_room_until_the_scale_is_renewed(kind):
    # Weights shrink by 1e12 in 90 steps, so the scale falls below its limit.
    weights = make_weights(first_weights(np.float32), **KINDS[kind])
    eager = Eager(first_weights(np.float32), **KINDS[kind])
    for places, gradient, _ in random_steps(11, count=90, dtype=np.float32):
        weights.step(places, gradient, 1.2)
        eager.step(dense(places, gradient), 1.2)
    assert weights.result() == pytest.approx(eager.result(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("momentum", [1e-30, 0.5, 0.99])
def test_a_velocity_goes_its_whole_way_although_old_ones_are_forgotten(momentum):
    weights = make_weights(np.zeros(2), momentum=momentum)
    weights.step(np.array([0], np.uint32), np.array([1.0]), 0.125)
    for _ in range(6000):
        weights.step(np.array([1], np.uint32), np.array([0.0]), 0.125)
    assert weights.at(np.array([0])) == pytest.approx([-0.125 / (1 - momentum)], rel=1e-12)


def test_a_weight_at_rest_reaches_zero_and_stays_there():
    weights = make_weights(np.array([0.3, -0.3, 1.0]), l1=0.25)
    for _ in range(3):
        weights.step(np.zeros(0, np.uint32), np.zeros(0), 0.5)
    assert weights.at(EVERYWHERE) == pytest.approx([0, 0, 0.625])
    weights.step(np.array([0], np.uint32), np.array([-1.0]), 0.5)
    assert weights.at(EVERYWHERE) == pytest.approx([0.375, 0, 0.5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.9, "l1": 0.1}, r"momentum \(0.9\) does not go with an L1 penalty"),
        ({"average": True, "l1": 0.1}, "averaging goes with neither"),
        ({"average": True, "momentum": 0.9}, "averaging goes with neither"),
    ],
)
def test_what_cannot_be_combined_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        make_weights(np.zeros(3), **options)
