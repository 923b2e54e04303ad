"""What holds for every compressor, on every kind of input."""

import copy

import numpy as np
import pytest
from compressor_cases import COMPRESSORS, DTYPES, KINDS, LENGTHS, added, bits, values
from hypothesis import given
from hypothesis import strategies as st

import sparsewire.compress as swc
from sparsewire import kernels

inputs = st.builds(
    lambda kinds, length, dtype, seed: [
        values(kind, length, dtype, seed + number) for number, kind in enumerate(kinds)
    ],
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=5),
    st.sampled_from(LENGTHS),
    st.sampled_from(DTYPES),
    st.integers(0, 2**32),
)
finite_inputs = inputs.filter(lambda xs: all(np.isfinite(x.astype(float)).all() for x in xs))


def assert_same(a, b):
    """The same content of two state dicts, to the bit."""
    assert a.keys() == b.keys()
    for name, content in a.items():
        if isinstance(content, dict):
            assert_same(content, b[name])
        elif isinstance(content, np.ndarray):
            assert np.array_equal(bits(content), bits(b[name]))
        else:
            assert content == b[name]


@pytest.mark.parametrize("name", COMPRESSORS)
@given(gradients=inputs)
def test_what_is_sent_and_what_stays_is_what_was_there(name, gradients):
    feedback = swc.ErrorFeedback(COMPRESSORS[name])
    state = feedback.init(len(gradients[0]), gradients[0].dtype)
    for gradient in gradients:
        total = added(state.residual, gradient)
        sent, state = feedback.step(gradient, state)
        assert np.array_equal(bits(sent.values), bits(total[sent.indices]))
        assert np.array_equal(state.residual[sent.indices], np.zeros_like(sent.values))
        rest = np.delete(np.arange(len(total)), sent.indices.astype(int))
        assert np.array_equal(bits(state.residual[rest]), bits(total[rest]))


@pytest.mark.parametrize("name", COMPRESSORS)
@given(xs=inputs)
def test_entries_are_those_of_the_input_in_order(name, xs):
    compressor = COMPRESSORS[name]
    state = compressor.init(len(xs[0]), xs[0].dtype)
    for x in xs:
        entries, state = compressor.step(x, state)
        assert (entries.length, entries.start, entries.stop) == (len(x), 0, len(x))
        assert entries.dtype == x.dtype
        assert kernels.first_invalid(entries.indices, 0, len(x)) == -1
        assert np.array_equal(bits(entries.values), bits(x[entries.indices]))


@pytest.mark.parametrize("name", COMPRESSORS)
@given(gradients=inputs)
def test_selection_from_a_residual_is_selection_from_its_values(name, gradients):
    compressor, feedback = COMPRESSORS[name], swc.ErrorFeedback(COMPRESSORS[name])
    state = feedback.init(len(gradients[0]), gradients[0].dtype)
    for gradient in gradients:
        expected, inner = compressor.step(added(state.residual, gradient), state.inner)
        sent, state = feedback.step(gradient, state)
        assert np.array_equal(sent.indices, expected.indices)
        assert_same(state.inner.state_dict(), inner.state_dict())


@pytest.mark.parametrize("name", COMPRESSORS)
@given(gradients=finite_inputs)
def test_a_step_depends_on_its_arguments_alone(name, gradients):
    feedback = swc.ErrorFeedback(COMPRESSORS[name], momentum=0.5 if gradients[0].dtype.kind != "i" else 0.0)
    state = feedback.init(len(gradients[0]), gradients[0].dtype)
    for gradient in gradients:
        again = copy.deepcopy(state)
        sent, state = feedback.step(gradient, state)
        resent, again = feedback.step(gradient, again)
        assert np.array_equal(sent.indices, resent.indices)
        assert np.array_equal(sent.values, resent.values)
        assert_same(state.state_dict(), again.state_dict())


@pytest.mark.parametrize("name", COMPRESSORS)
@given(gradients=finite_inputs)
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_happened(name, gradients):
    feedback = swc.ErrorFeedback(COMPRESSORS[name])
    fresh = feedback.init(len(gradients[0]), gradients[0].dtype)
    state = copy.deepcopy(fresh)
    for gradient in gradients:
        loaded = fresh.load_state_dict(state.state_dict())
        sent, state = feedback.step(gradient, state)
        resent, loaded = feedback.step(gradient, loaded)
        assert np.array_equal(sent.indices, resent.indices)
        assert np.array_equal(sent.values, resent.values)
        assert_same(state.state_dict(), loaded.state_dict())
    assert_same(state.load_state_dict(fresh.state_dict()).state_dict(), fresh.state_dict())


@pytest.mark.parametrize("name", COMPRESSORS)
def test_entries_given_back_are_as_if_never_sent(name):
    feedback = swc.ErrorFeedback(COMPRESSORS[name])
    gradient = values("normal", 100, "float32", 1)
    state = feedback.init(100)
    sent, state = feedback.step(gradient, state)
    assert np.array_equal(feedback.give_back(sent, state).residual, gradient)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_without_feedback_what_is_given_back_is_dropped(name):
    compressor = COMPRESSORS[name]
    entries, state = compressor.step(values("normal", 100, "float32", 1), compressor.init(100))
    assert compressor.give_back(entries, state) is state


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("wrap", [lambda c: c, swc.ErrorFeedback, lambda c: swc.Quantized(c, "float16")])
def test_only_what_is_drawn_from_a_seed_is_the_same_on_all_ranks(name, wrap):
    assert wrap(COMPRESSORS[name]).shared == ("random" in name)
