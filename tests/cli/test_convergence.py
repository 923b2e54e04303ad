"""``benchmarks/convergence.py``: its network, its schedule, and what its committed run says."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

import sparsewire as sw

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
convergence = runpy.run_path(str(BENCHMARKS / "convergence.py"))


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    return convergence["data"]()


def test_the_gradient_is_that_of_the_loss(digits):
    images, labels = digits[0][:50].astype(np.float64), digits[1][:50]
    chance = np.random.default_rng(0)
    parameters = chance.standard_normal(len(convergence["first_parameters"](0))) / 8
    _, gradient = convergence["loss_and_gradient"](parameters, images, labels)
    for _ in range(10):
        direction = chance.standard_normal(len(parameters))
        ahead, behind = (
            convergence["loss_and_gradient"](parameters + step * direction, images, labels)[0]
            for step in (1e-6, -1e-6)
        )
        assert (ahead - behind) / 2e-6 == pytest.approx(gradient @ direction, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("method", convergence["METHODS"])
def test_every_method_learns(digits, method):
    curve = convergence["train"](sw.init(), method, 0, steps=120)
    assert len(curve) == 1 + 120 // convergence["EVERY"] + 1  # before, now and then, and at the end
    assert curve[-1] < curve[0] / 2


def test_the_learning_rate_is_constant_and_then_falls_to_zero():
    rates = [convergence["learning_rate"](step, 100) for step in range(101)]
    assert rates[:51] == [convergence["RATE"]] * 51
    assert rates[50:] == sorted(rates[50:], reverse=True)
    assert rates[100] == 0


def test_committed_runs_end_within_two_per_cent_of_dense():
    saved = json.loads((BENCHMARKS / "convergence.json").read_text())
    rows = {(row["method"], row["seed"]): row for row in saved["rows"]}
    assert set(rows) == {(m, s) for m in convergence["METHODS"] for s in convergence["SEEDS"]}
    assert saved["setup"] == convergence["setup"]()
    for (_, seed), row in rows.items():
        assert row["ratio_to_dense"] == row["final_loss"] / rows["dense", seed]["final_loss"]
        assert row["ratio_to_dense"] <= convergence["WITHIN"]
