"""Bad arguments and foreign checkpoints are refused, and the message says what was wrong."""

import json

import numpy as np
import pytest

import sparsewire.compress as swc
from sparsewire.coding.values import QSGD
from sparsewire.errors import InputError

REFUSED = {
    "no density": (lambda: swc.TopK(0), "density is 0; it must be above 0"),
    "too dense": (lambda: swc.TopK(1.5), "density is 1.5"),
    "nan": (lambda: swc.RandomK(float("nan")), "density is nan"),
    "negative": (lambda: swc.ControlledThreshold(-0.1), "density is -0.1"),
    "gaussian": (lambda: swc.GaussianK(2), "density is 2"),
    "blocks": (lambda: swc.BlockTopK(0), "density is 0"),
    "neither": (lambda: swc.TopK(), "give density or k"),
    "both": (lambda: swc.TopK(0.1, k=3), "give density or k"),
    "k of zero": (lambda: swc.TopK(k=0), "k is 0; at least 1"),
    "k of all": (lambda: swc.TopK(k=5).init(5), "k is 5 and there are 5 values; .*density=1"),
    "bucket": (lambda: swc.BucketTopK(k=512), "k is 512 of 512"),
    "bucket of none": (lambda: swc.BucketTopK(k=0), "k is 0 of 512"),
    "threshold": (lambda: swc.Threshold(-1), "threshold is -1"),
    "threshold nan": (lambda: swc.BlockThreshold(float("nan")), "threshold is nan"),
    "block": (lambda: swc.BlockRandomK(0.1, block=0), "block of 0 values"),
    "seed": (lambda: swc.RandomK(0.1, seed=-1), "seed is -1"),
    "block seed": (lambda: swc.BlockRandomK(0.1, seed=2**64), "seed is"),
    "warm-up": (lambda: swc.Warmup(0.01, steps=-1), "-1 steps"),
    "warm-up start": (lambda: swc.Warmup(0.01, steps=2, start=0), "density is 0"),
    "schedule": (lambda: swc.TopK(lambda step: 7).init(10), "density at step 0 is 7"),
    "momentum": (lambda: swc.ErrorFeedback(swc.TopK(0.1), momentum=1), "momentum is 1"),
    "momentum of integers": (
        lambda: swc.ErrorFeedback(swc.TopK(0.1), 0.9).init(9, "int32"),
        "of int32 values",
    ),
    "twice": (lambda: swc.ErrorFeedback(swc.ErrorFeedback(swc.TopK(0.1))), "around error feedback"),
    "order": (
        lambda: swc.Quantized(swc.ErrorFeedback(swc.TopK(0.1)), "float16"),
        r"write ErrorFeedback\(Quantized",
    ),
    "precision": (lambda: swc.Quantized(swc.TopK(0.1), "float8"), "unknown precision 'float8'"),
    "precision of integers": (lambda: swc.Quantized(swc.TopK(0.1), QSGD()).init(9, "int64"), "are int64"),
    "dtype": (lambda: swc.TopK(0.1).init(9, "uint8"), "not uint8"),
    "numpy dtype": (lambda: swc.RandomK(0.1).init(9, np.complex64), "not complex64"),
    "length": (lambda: swc.Threshold(1).init(-1), "negative length, got -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused(case):
    build, named = REFUSED[case]
    with pytest.raises(InputError, match=named):
        build()


def test_a_vector_that_is_too_short_for_k_is_refused():
    top = swc.TopK(k=5)
    with pytest.raises(InputError, match="k is 5 and there are 3 values"):
        top.step(np.zeros(3, np.float32), top.init(9))


def test_nothing_is_converted_silently():
    top = swc.TopK(0.5)
    with pytest.raises(TypeError, match="contiguous"):
        top.step(np.zeros(8, np.float32)[::2], top.init(4))


FOREIGN = {
    "keys": (lambda saved: saved | {"extra": 1}, "has inner, residual, velocity, but extra, inner"),
    "missing": (lambda saved: {}, "but nothing was saved"),
    "inner": (lambda saved: saved | {"inner": 3}, "inner is a TopKState, but 3 was saved"),
    "inner keys": (lambda saved: saved | {"inner": {}}, "TopKState has guess, step, trend"),
    "length": (lambda saved: saved | {"residual": np.zeros(7, np.float32)}, "of 9 float32 .* of 7 float32"),
    "dtype": (lambda saved: saved | {"residual": np.zeros(9)}, "of 9 float32 .* of 9 float64"),
    "no array": (lambda saved: saved | {"residual": None}, "of 9 float32 values, but None was saved"),
    "array": (lambda saved: saved | {"velocity": np.zeros(9)}, "velocity is None, but an array"),
    "step": (
        lambda saved: saved | {"inner": saved["inner"] | {"step": 1.5}},
        "step is 0, but 1.5 was saved",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_checkpoint_is_refused(case):
    change, named = FOREIGN[case]
    state = swc.ErrorFeedback(swc.TopK(0.5)).init(9)
    with pytest.raises(InputError, match=named):
        state.load_state_dict(change(state.state_dict()))


def test_a_checkpoint_does_not_change_with_the_run():
    feedback = swc.ErrorFeedback(swc.TopK(0.5))
    gradient = np.arange(1, 5, dtype=np.float32)
    _, state = feedback.step(gradient, feedback.init(4))
    saved = state.state_dict()
    loaded = state.load_state_dict(saved)
    feedback.step(gradient, state)
    assert saved["residual"].tolist() == loaded.residual.tolist() == [1, 2, 0, 0]
    feedback.step(gradient, loaded)
    assert saved["residual"].tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_checkpoint_survives_numpy_and_json(dtype, tmp_path):
    feedback = swc.ErrorFeedback(swc.TopK(0.5))
    fresh = feedback.init(4, dtype)
    _, state = feedback.step(np.arange(1, 5).astype(fresh.residual.dtype), fresh)
    saved = state.state_dict()
    np.savez(tmp_path / "arrays.npz", residual=saved["residual"], step=saved["inner"]["step"])
    with np.load(tmp_path / "arrays.npz") as arrays:
        inner = json.loads(json.dumps(saved["inner"])) | {"step": arrays["step"]}
        again = feedback.init(4, dtype).load_state_dict(
            {"residual": arrays["residual"], "velocity": None, "inner": inner}
        )
    assert again.inner == state.inner
    assert again.residual.dtype == state.residual.dtype
    assert np.array_equal(again.residual, state.residual)
