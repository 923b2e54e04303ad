"""Momentum correction, non-finite gradients, rounding, and what feedback refuses."""

import numpy as np
import pytest
from compressor_cases import COMPRESSORS, added, bits, values

import sparsewire.compress as swc
from sparsewire import kernels
from sparsewire.coding.values import QSGD
from sparsewire.compress.feedback import FeedbackState
from sparsewire.compress.topk import TopKState
from sparsewire.errors import InputError
from sparsewire.vector import SparseVector

FLOATS = ["float32", "float64", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_momentum_is_that_of_deep_gradient_compression(dtype):
    """Small whole numbers and momentum 1/2: five steps are exact in every dtype."""
    rng = np.random.default_rng(2)
    length, k = 21, 4
    compressor = swc.ErrorFeedback(swc.TopK(k=k), momentum=0.5)
    state = compressor.init(length, dtype)
    velocity, residual = np.zeros(length), np.zeros(length)
    for _ in range(5):
        gradient = rng.integers(-3, 4, length).astype(float)
        velocity = 0.5 * velocity + gradient
        residual = residual + velocity
        chosen = np.sort(np.argsort(-np.abs(residual), kind="stable")[:k])
        sent, state = compressor.step(gradient.astype(state.residual.dtype), state)
        assert np.array_equal(sent.indices, chosen)
        assert np.array_equal(sent.values.astype(float), residual[chosen])
        residual[chosen] = velocity[chosen] = 0
        assert np.array_equal(state.residual.astype(float), residual)
        assert np.array_equal(state.velocity.astype(float), velocity)


@pytest.mark.parametrize("cuts", [[], [16, 37]], ids=["one array", "three pieces"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", COMPRESSORS)
def test_momentum_sends_what_velocities_as_gradients_would(name, dtype, cuts):
    corrected, plain = (swc.ErrorFeedback(COMPRESSORS[name], momentum) for momentum in (0.9, 0.0))
    state, plain_state = corrected.init(100, dtype), plain.init(100, dtype)
    velocity = np.zeros_like(state.velocity)
    for step in range(4):
        gradient = values("normal", 100, dtype, step)
        velocity = added(velocity * velocity.dtype.type(0.9), gradient)
        sent, state = corrected.add(np.split(gradient, cuts), state)
        expected, plain_state = plain.step(velocity, plain_state)
        assert np.array_equal(bits(sent.to_dense()), bits(expected.to_dense()))
        assert np.array_equal(bits(state.residual), bits(plain_state.residual))
        velocity[expected.as_sparse().indices] = 0
        assert np.array_equal(bits(state.velocity), bits(velocity))


def test_what_was_only_a_candidate_keeps_its_velocity():
    feedback = swc.ErrorFeedback(swc.TopK(k=1), momentum=0.5)
    gradient = np.array([4, 3, 2, 1], np.float32)
    state = FeedbackState(np.zeros(4, np.float32), np.full(4, 2, np.float32), TopKState(guess=2.5))
    sent, state = feedback.step(gradient, state)
    assert sent.to_dense().tolist() == [5, 0, 0, 0]
    assert state.residual.tolist() == state.velocity.tolist() == [0, 4, 3, 2]


@pytest.mark.parametrize("inner", [swc.TopK(0.01), swc.GaussianK(0.01)], ids=["topk", "gaussian-k"])
def test_momentum_costs_no_pass_of_its_own(inner, monkeypatch):
    calls = []
    for name in ("accumulate_select", "select"):
        kernel = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *a, n=name, k=kernel, **o: calls.append(n) or k(*a, **o))
    rng, feedback = np.random.default_rng(6), swc.ErrorFeedback(inner, momentum=0.5)
    state = feedback.init(1 << 16)
    for _ in range(10):
        _, state = feedback.step(rng.standard_normal(1 << 16, dtype=np.float32), state)
    assert calls == ["accumulate_select"] * 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_value_that_is_not_finite_is_refused_on_request(bad, momentum):
    strict = swc.ErrorFeedback(swc.TopK(k=2), momentum, check_finite=True)
    sent, state = strict.step(np.array([8, 4, 2, 1], np.float32), strict.init(4))
    assert sent.indices.tolist() == [0, 1]
    with pytest.raises(InputError, match="at index 3"):
        strict.step(np.array([1, 1, 1, bad], np.float32), state)
    assert state.residual.tolist() == [1, 1, 3 + momentum * 2, 0]
    sent, state = strict.step(np.zeros(4, np.float32), state)
    assert np.isfinite(sent.values).all()


def test_by_default_a_nan_is_sent_like_the_largest_value():
    feedback = swc.ErrorFeedback(swc.TopK(k=1))
    sent, state = feedback.step(np.array([5, np.nan, np.inf], np.float32), feedback.init(3))
    assert sent.indices.tolist() == [1]
    assert state.residual.tolist() == [5, 0, np.inf]


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "qsgd2", "qsgd4", "qsgd8", QSGD(4, bucket=64)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_error_stays_in_the_residual(precision, dtype):
    rounding = swc.ErrorFeedback(swc.Quantized(swc.TopK(0.1), precision))
    state = rounding.init(1000, dtype)
    for step in range(20):
        gradient = values("normal", 1000, dtype, step)
        total = state.residual + gradient
        sent, state = rounding.step(gradient, state)
        assert sent.packed is not None
        assert sent.nnz == 100
        assert np.allclose(state.residual + sent.to_dense(), total, rtol=1e-6, atol=1e-6)
    assert np.abs(state.residual).max() < 30  # it does not grow


def test_a_precision_that_the_values_have_anyway_rounds_nothing():
    rounding = swc.Quantized(swc.TopK(k=2), "float16")
    entries, _ = rounding.step(values("normal", 10, "float16", 1), rounding.init(10, "float16"))
    assert entries.packed is None


def test_what_overflows_is_not_kept():
    rounding = swc.ErrorFeedback(swc.Quantized(swc.TopK(k=1), "float16"))
    sent, state = rounding.step(np.array([1e6, 1], np.float32), rounding.init(2))
    assert sent.values.tolist() == [np.inf]
    assert state.residual.tolist() == [0, 1]


def test_rounded_entries_given_back_are_whole_again():
    rounding = swc.ErrorFeedback(swc.Quantized(swc.TopK(k=1), "bfloat16"))
    gradient = np.array([1 + 2**-10, 0.5], np.float32)
    sent, state = rounding.step(gradient, rounding.init(2))
    assert sent.values.tolist() == [1]
    assert np.array_equal(rounding.give_back(sent, state).residual, gradient)


def test_entries_given_back_are_added_to_what_waits():
    feedback = swc.ErrorFeedback(swc.TopK(k=1))
    _, state = feedback.step(np.array([4, 3, 0], np.float32), feedback.init(3))
    state = feedback.give_back(SparseVector(3, [0, 1], np.array([1, 2], np.float32)), state)
    assert state.residual.tolist() == [1, 5, 0]


@pytest.mark.parametrize(
    ("gradient", "named"),
    [
        (np.zeros(4, np.float32), "3 float32 values and the gradient has 4 float32"),
        (np.zeros(3, np.float64), "3 float32 values and the gradient has 3 float64"),
    ],
)
def test_a_gradient_of_another_shape_is_refused(gradient, named):
    feedback = swc.ErrorFeedback(swc.TopK(k=1))
    with pytest.raises(InputError, match=named):
        feedback.step(gradient, feedback.init(3))
