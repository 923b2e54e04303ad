"""Exactly the k largest, whatever happened before, and one pass over the vector when little has changed."""

import numpy as np
import pytest
from compressor_cases import DTYPES, KINDS, LENGTHS, added, largest, values
from hypothesis import given
from hypothesis import strategies as st

import sparsewire.compress as swc
from sparsewire import kernels

PASSES = ("accumulate_select", "select", "threshold_for_k")
JUMPS = {
    "none": lambda step: 1.0,
    "up": lambda step: 1000.0 if step >= 12 else 1.0,
    "down": lambda step: 0.001 if step >= 12 else 1.0,
    "spike": lambda step: 1e6 if step == 12 else 1.0,
    "zeros": lambda step: 0.0 if 12 <= step < 14 else 1.0,
}


@pytest.fixture
def passes(monkeypatch):
    """The names of the kernels that went over an array of ``passes.length``."""

    class Passes(list):
        length = 1 << 17

    calls = Passes()
    for name in PASSES:
        kernel = getattr(kernels, name)

        def counting(x, *args, _name=name, _kernel=kernel, **options):
            if len(x) == calls.length:
                calls.append(_name)
            return _kernel(x, *args, **options)

        monkeypatch.setattr(kernels, name, counting)
    return calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [length for length in LENGTHS if length > 1])
def test_k_from_one_to_all_but_one(kind, dtype, length):
    x = values(kind, length, dtype, seed=3)
    for k in {1, length // 2, length - 1}:
        top = swc.TopK(k=k)
        entries, _ = top.step(x, top.init(length, dtype))
        assert np.array_equal(entries.indices, largest(x, k))


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=8),
    length=st.sampled_from([2, 17, 1025]),
    dtype=st.sampled_from(DTYPES),
    density=st.sampled_from([0.001, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_any_history_leaves_it_exact(kinds, length, dtype, density, seed):
    top = swc.TopK(density)
    state = top.init(length, dtype)
    for number, kind in enumerate(kinds):
        x = values(kind, length, dtype, seed + number)
        entries, state = top.step(x, state)
        assert np.array_equal(entries.indices, largest(x, max(1, int(length * density))))


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("length", [1000, 1 << 17])
def test_exact_with_feedback_when_gradients_jump(jump, length):
    rng = np.random.default_rng(5)
    feedback = swc.ErrorFeedback(swc.TopK(0.01))
    state = feedback.init(length)
    for step in range(24):
        gradient = rng.standard_normal(length, dtype=np.float32) * np.float32(JUMPS[jump](step))
        total = added(state.residual, gradient)
        sent, state = feedback.step(gradient, state)
        assert np.array_equal(sent.indices, largest(total, length // 100))


@pytest.mark.parametrize(
    ("compressor", "kernel"),
    [(swc.ErrorFeedback(swc.TopK(0.01)), "accumulate_select"), (swc.TopK(0.01), "select")],
    ids=["with feedback", "without"],
)
def test_steady_state_is_one_pass(passes, compressor, kernel):
    rng = np.random.default_rng(6)
    state = compressor.init(passes.length)
    for _ in range(40):
        passes.clear()
        _, state = compressor.step(rng.standard_normal(passes.length, dtype=np.float32), state)
        assert passes == [kernel]


def test_candidates_are_few_more_than_k(monkeypatch):
    rng = np.random.default_rng(6)
    feedback, length = swc.ErrorFeedback(swc.TopK(0.01)), 1 << 16
    state, counts = feedback.init(length), []
    accumulate_select = kernels.accumulate_select

    def counting(*args, **options):
        entries = accumulate_select(*args, **options)
        counts.append(len(entries[0]))
        return entries

    monkeypatch.setattr(kernels, "accumulate_select", counting)
    for _ in range(100):
        _, state = feedback.step(rng.standard_normal(length, dtype=np.float32), state)
    k = length // 100
    assert all(k <= count <= 1.75 * k for count in counts[20:])


def test_smaller_values_cost_one_more_pass(passes):
    rng = np.random.default_rng(6)
    top = swc.TopK(0.01)
    _, state = top.step(rng.standard_normal(passes.length, dtype=np.float32), top.init(passes.length))
    passes.clear()
    top.step(rng.standard_normal(passes.length, dtype=np.float32) / 10, state)
    assert passes == ["select", "select"]


def test_where_a_sample_misleads_all_values_are_looked_at(passes):
    """The few large values lie where the sample looks."""
    x = np.ones(passes.length, np.float32)
    x[:16] = 100
    x[16:] += np.arange(passes.length - 16, dtype=np.float32) % 2
    top = swc.TopK(k=passes.length // 2 + 100)
    entries, _ = top.step(x, top.init(passes.length))
    assert np.array_equal(entries.indices, largest(x, passes.length // 2 + 100))
    assert "threshold_for_k" in passes


def test_fewer_entries_than_k_are_found_in_one_pass(passes):
    x = np.zeros(passes.length, np.float32)
    x[[5, 70_000]] = 1
    top = swc.TopK(0.01)
    entries, _ = top.step(x, top.init(passes.length))
    assert entries.indices.tolist() == [5, 70_000]
    assert passes == ["select"]


def test_zeros_are_no_entries_where_a_sample_hides_them(passes):
    """All that the sample sees is not zero, and half of the values are."""
    x = np.zeros(passes.length, np.float32)
    seen = swc.Values(np.arange(passes.length, dtype=np.int64)).sample()
    x[seen] = np.arange(1, len(seen) + 1)
    top = swc.TopK(k=len(seen) + 1000)
    entries, _ = top.step(x, top.init(passes.length))
    assert np.array_equal(entries.indices, np.sort(seen))
    assert "threshold_for_k" in passes


def test_while_what_waits_is_sent_the_guess_falls_with_it(passes):
    """After gradients have shrunk, the k-th magnitude falls in every step, and a second pass is rare."""
    rng = np.random.default_rng(6)
    feedback = swc.ErrorFeedback(swc.TopK(0.01))
    state = feedback.init(passes.length)
    for step in range(60):
        if step == 20:
            passes.clear()
        scale = np.float32(1 if step < 20 else 0.1)
        _, state = feedback.step(rng.standard_normal(passes.length, dtype=np.float32) * scale, state)
    assert passes.count("accumulate_select") == 40
    assert passes.count("select") <= 4


def test_density_follows_a_schedule():
    top = swc.TopK(swc.Warmup(0.01, steps=2, start=0.25))
    state, counts = top.init(10_000), []
    for _ in range(4):
        entries, state = top.step(values("normal", 10_000, "float32", 1), state)
        counts.append(entries.nnz)
    assert counts == [2500, 500, 100, 100]
