"""The loop holds the density from the first step on, through drift and jumps, and never exceeds its cap."""

import math

import numpy as np
import pytest

import sparsewire.compress as swc
from sparsewire import kernels
from sparsewire.compress.control import Point, Trend, secant

SCALES = {
    "the same": lambda step: 1.0,
    "growing": lambda step: 1.01**step,
    "shrinking": lambda step: 0.99**step,
    "times ten": lambda step: 10.0 if step >= 250 else 1.0,
    "a tenth": lambda step: 0.1 if step >= 250 else 1.0,
}


def counts(compressor, length, steps, scale):
    rng = np.random.default_rng(11)
    state = compressor.init(length)
    for step in range(steps):
        gradient = rng.standard_normal(length, dtype=np.float32) * np.float32(scale(step))
        sent, state = compressor.step(gradient, state)
        yield sent.nnz


@pytest.mark.parametrize("scale", SCALES)
def test_density_is_held_from_a_cold_start(scale):
    length, k = 1 << 16, 655
    held = swc.ErrorFeedback(swc.ControlledThreshold(0.01))
    seen = list(counts(held, length, 500, SCALES[scale]))
    assert sum(0.8 * k <= count <= 1.25 * k for count in seen) >= 0.95 * len(seen)
    assert max(seen) <= math.ceil(1.25 * k)


@pytest.mark.parametrize("scale", SCALES)
def test_density_is_held_without_feedback(scale):
    length, k = 1 << 16, 655
    seen = list(counts(swc.ControlledThreshold(0.01), length, 300, SCALES[scale]))
    assert sum(0.8 * k <= count <= 1.25 * k for count in seen) >= 0.95 * len(seen)


def test_every_step_is_one_pass(monkeypatch):
    length, calls = 1 << 17, []
    for name in ("accumulate_select", "select", "threshold_for_k"):
        kernel = getattr(kernels, name)

        def counting(x, *args, _name=name, _kernel=kernel, **options):
            if len(x) == length:
                calls.append(_name)
            return _kernel(x, *args, **options)

        monkeypatch.setattr(kernels, name, counting)
    held = swc.ErrorFeedback(swc.ControlledThreshold(0.01))
    steps = len(list(counts(held, length, 30, lambda step: 0.1 if step >= 15 else 1.0)))
    assert calls == ["accumulate_select"] * steps


def test_beyond_the_cap_the_largest_are_sent():
    held = swc.ControlledThreshold(0.1)
    _, state = held.step(np.arange(100, dtype=np.float32), held.init(100))
    entries, _ = held.step(np.arange(1000, 1100, dtype=np.float32), state)
    assert entries.indices.tolist() == list(range(87, 100))


def test_after_nothing_was_found_it_begins_anew():
    held = swc.ControlledThreshold(0.1)
    x = np.arange(100, dtype=np.float32)
    first, state = held.step(x, held.init(100))
    none, state = held.step(x / 1000, state)
    again, _ = held.step(x / 1000, state)
    assert (first.nnz, none.nnz, again.nnz) == (10, 0, 10)


def test_after_far_too_few_were_found_it_begins_anew():
    held = swc.ControlledThreshold(0.1)
    x = np.arange(1000, dtype=np.float32)
    _, state = held.step(x, held.init(1000))
    few, state = held.step(x * np.float32(0.91), state)
    again, _ = held.step(x * np.float32(0.91), state)
    assert 0 < few.nnz < 50
    assert again.nnz == 100


def test_secant_goes_no_farther_than_a_factor_of_four_in_count():
    assert secant(Point(1.0, 10), Point(2.0, 5), 10_000) == pytest.approx(1 / 4)


def test_secant_is_exact_on_a_power_law():
    """count = 1000 / threshold^2."""
    assert secant(Point(1.0, 1000), Point(2.0, 250), 500) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("threshold", [0.0, math.inf, math.nan])
def test_secant_stays_at_a_threshold_that_tells_nothing(threshold):
    assert str(float(secant(Point(threshold, 10), Point(1.0, 20), 15))) == str(threshold)


@pytest.mark.parametrize("other", [Point(1.0, 10), Point(0.0, 20), Point(math.nan, 5), Point(2.0, 20)])
def test_secant_always_lowers_the_threshold_for_more(other):
    assert 0.5 < secant(Point(1.0, 10), other, 20) < 1


def test_a_trend_learns_a_steady_change_and_is_not_thrown_by_a_jump():
    trend = Trend()
    for step in range(50):
        trend = trend.after(0.9**step)
    assert trend.rate == pytest.approx(math.log(0.9), rel=1e-4)
    assert abs(trend.after(1e30).rate) < 0.1
    assert trend.after(math.inf) is trend
