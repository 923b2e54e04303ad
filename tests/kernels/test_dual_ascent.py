"""A pass of dual coordinate ascent: each row's variable moves to the maximum of its problem."""

import itertools

import kernel_cases as cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from sparsewire import kernels

FLOATS = [np.dtype(np.float32), np.dtype(np.float64)]
LOSSES = ["logistic", "hinge", "squared_hinge", "squared"]
each_loss = pytest.mark.parametrize("loss", LOSSES)
ENDS = {"logistic": (0, 1), "hinge": (0, 1), "squared_hinge": (0, 60), "squared": (-60, 60)}


def negative_conjugate(loss, a, target):
    """What the variable a adds to the dual; for classes a is not negative."""
    if loss == "logistic":
        return -sum(p * np.log(p) for p in (a, 1 - a) if p > 0)
    return {"hinge": a, "squared_hinge": a - a * a / 4, "squared": a * target - a * a / 2}[loss]


def best(loss, before, target, margin, q):
    """The maximum of a row's problem by a search that knows no derivatives."""
    sign = 1.0 if loss == "squared" else target
    before = sign * before

    def falls(a):
        moved = a - before
        return sign * margin * moved + q * moved * moved / 2 - negative_conjugate(loss, a, target)

    options = {"xatol": 1e-12}
    return sign * minimize_scalar(falls, bounds=ENDS[loss], method="bounded", options=options).x


def one_row(loss, dtype, *, target, before, weight, value, share, sigma, bias, isa):
    """The variable, the weight and the intercept after a step of one row with one entry."""
    variables, weights, intercepts = np.array([before]), np.array([float(weight)]), np.array([0.25])
    with kernels.use_isa(isa):
        kernels.dual_ascent(
            np.array([0, 1]), np.array([value], dtype), np.array([0]), np.zeros(1, np.uint32), loss,
            shares=np.array([float(share)]), squares=np.array([float(value * value)]),
            targets=np.array([target]), sigma=np.array([float(sigma)]), bias=bias,
            variables=variables, weights=weights, intercepts=intercepts,
        )  # fmt: skip
    return float(variables[0]), float(weights[0]), float(intercepts[0])


@cases.each_isa
@each_loss
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("weight", "share", "sigma", "bias"), [(0.5, 0.1, 1, 0), (-2, 3, 2, 0.5), (4, 50, 1, 1)]
)
@pytest.mark.parametrize("target", [1.0, -1.0])
@pytest.mark.parametrize("size", [0.0, 0.3, 1.0])
def test_a_step_finds_the_maximum(isa, loss, dtype, weight, share, sigma, bias, target, size):
    before, value = size * target, 1.5
    after, moved, intercept = one_row(
        loss, dtype, target=target, before=before, weight=weight, value=value,
        share=share, sigma=sigma, bias=bias, isa=isa,
    )  # fmt: skip
    q = sigma * share * (value * value + bias)
    assert after == pytest.approx(best(loss, before, target, value * weight + 0.25, q), abs=1e-5)
    change = sigma * share * (after - before)
    assert moved == pytest.approx(weight + change * value, rel=1e-12)
    assert intercept == pytest.approx(0.25 + change * bias, rel=1e-12)


@st.composite
def passes(draw):
    """The arguments of a pass; rows may be empty, left out, chosen twice, or of no share."""
    seed, count = draw(st.integers(0, 2**32)), draw(st.integers(0, 6))
    outputs, width = draw(st.integers(1, 3)), draw(st.integers(1, 70))
    random, dtype = np.random.default_rng(seed), draw(st.sampled_from(FLOATS))
    starts = np.cumsum([0, *random.integers(0, 9, count)])
    values = random.normal(size=starts[-1]).astype(dtype)
    loss = draw(st.sampled_from(LOSSES))
    targets = (
        random.normal(size=count * outputs)
        if loss == "squared"
        else random.choice([-1.0, 1.0], count * outputs)
    )
    squares = [float(np.square(values[a:b], dtype=np.float64).sum()) for a, b in itertools.pairwise(starts)]
    facts = {
        "shares": random.choice([0.0, 0.01, 1.0, 30.0], count),
        "squares": np.array(squares, np.float64),
        "targets": targets,
        "sigma": random.uniform(1, 4, outputs),
        "bias": draw(st.sampled_from([0.0, 0.5])),
    }
    rows = random.integers(0, count, 2 * count) if count else np.empty(0, np.int64)
    positions = random.integers(0, width, starts[-1]).astype(np.uint32)
    state = {
        "variables": random.random(count * outputs) * (targets if loss != "squared" else 1.0),
        "weights": random.normal(size=width * outputs),
        "intercepts": random.normal(size=outputs),
    }
    return (starts, values, rows, positions, loss), facts, state


@given(example=passes(), shift=cases.shifts)
def test_every_version_returns_the_bits_of_the_reference(example, shift):
    arguments, facts, state = example
    results = []
    for isa in kernels.available_isas():
        ours = {name: cases.misaligned(array, shift) for name, array in state.items()}
        with kernels.use_isa(isa), cases.canaries_around_outputs():
            kernels.dual_ascent(*arguments, **facts, **ours)
        results.append(ours)
        for name, array in ours.items():
            assert cases.same_bits(array, results[0][name])
            assert not array.base[:shift].any()
            assert not array.base[shift + len(array) :].any()


@cases.each_isa
@each_loss
def test_a_row_of_no_share_stays(isa, loss):
    after = one_row(
        loss, np.float64, target=1.0, before=0.5, weight=3, value=2, share=0, sigma=1, bias=1, isa=isa
    )
    assert after == (0.5, 3, 0.25)


@cases.each_isa
@each_loss
@pytest.mark.parametrize("weight", [-1e300, -1e3, 1e3, 1e300])
def test_steps_of_huge_margins_stay_in_range(isa, loss, weight):
    after, moved, _ = one_row(
        loss, np.float64, target=1.0, before=0.5, weight=weight, value=1, share=1, sigma=1, bias=0, isa=isa
    )
    low, high = (-np.inf if loss == "squared" else 0, 1 if loss in ("logistic", "hinge") else np.inf)
    assert low <= after <= high
    assert np.isfinite(moved)


def wrong_passes():
    good = {
        "starts": np.array([0, 1]), "values": np.ones(1), "rows": np.array([0]),
        "positions": np.zeros(1, np.uint32), "loss": "hinge", "shares": np.ones(1), "squares": np.ones(1),
        "targets": np.ones(1), "sigma": np.ones(1), "bias": 0.0, "variables": np.zeros(1),
        "weights": np.zeros(1), "intercepts": np.zeros(1),
    }  # fmt: skip
    kernels.dual_ascent(**good)
    for name in ("shares", "squares", "targets", "variables", "intercepts"):
        yield good | {name: np.ones(2)}, f"{name} must have 1 numbers, not 2"
    yield good | {"loss": "huber"}, "unknown loss 'huber'"
    yield good | {"positions": np.ones(1, np.uint32)}, "too few weights"
    yield good | {"positions": np.zeros(2, np.uint32)}, "1 entries and 2 positions"
    yield good | {"rows": np.array([1])}, "rows must be in"
    yield good | {"starts": np.array([0, 2])}, "starts must be increasing"
    yield good | {"sigma": np.ones(0)}, "at least one output"
    yield good | {"variables": cases.frozen(np.zeros(1))}, "variables is read-only"


@cases.each_isa
@pytest.mark.parametrize(("arguments", "message"), [*wrong_passes()])
def test_wrong_arguments_are_refused(isa, arguments, message):
    with kernels.use_isa(isa), pytest.raises(ValueError, match=message):
        kernels.dual_ascent(**arguments)
