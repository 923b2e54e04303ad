"""Losses and their slopes, compared with the formulas in decimal numbers of many digits."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from sparsewire.linear.losses import HINGE, LOGISTIC, LOSSES, SQUARED, SQUARED_HINGE

# On both sides of zero and of 1, where hinge losses bend, and so large that exponentials overflow.
MARGINS = [
    0.0,
    1e-300,
    1e-9,
    0.25,
    0.5,
    1 - 2**-53,
    1.0,
    1 + 2**-52,
    2.0,
    30.0,
    37.5,
    700.0,
    750.0,
    1e6,
    1e150,
]
SIGNED = [sign * margin for margin in MARGINS for sign in (1, -1)]
FARTHEST = [1e308, -1e308]

each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
each_of_two_classes = pytest.mark.parametrize("target", [1.0, -1.0])


def logistic(z):
    return (1 + (-z).exp()).ln()


def logistic_slope(z):
    return -1 / (1 + z.exp())


# Functions of z, the product of margin and target; slopes are derivatives by z.
FORMULAS = {
    LOGISTIC: (logistic, logistic_slope),
    HINGE: (lambda z: max(Decimal(0), 1 - z), lambda z: Decimal(-1 if z < 1 else 0)),
    SQUARED_HINGE: (lambda z: max(Decimal(0), 1 - z) ** 2, lambda z: -2 * max(Decimal(0), 1 - z)),
}


def exactly(formula, margins, target):
    with localcontext() as context:
        context.prec = 400  # digits, so that 1 + 1e-300 is not 1
        return np.array([float(formula(Decimal(margin) * int(target))) for margin in margins])


@each_of_two_classes
@pytest.mark.parametrize("loss", FORMULAS, ids=lambda loss: loss.name)
def test_losses_of_classes_are_the_formulas(loss, target):
    value, slope = FORMULAS[loss]
    near = [margin for margin in SIGNED if abs(margin) < 1e6]  # for larger ones decimal is slow
    margins, targets = np.array(near), np.full(len(near), target)
    assert loss.value(margins, targets) == pytest.approx(exactly(value, near, target), rel=1e-14, abs=1e-16)
    expected = target * exactly(slope, near, target)
    assert loss.slope(margins, targets) == pytest.approx(expected, rel=1e-14, abs=1e-16)


def test_the_squared_loss_is_half_the_square_of_the_error():
    margins, targets = np.array([1.5, -2.0, 2.0**500, 3.0]), np.array([0.5, 2.0, -(2.0**500), 3.0])
    assert SQUARED.value(margins, targets).tolist() == [0.5, 8.0, 2.0**1001, 0.0]
    assert SQUARED.slope(margins, targets).tolist() == [1.0, -4.0, 2.0**501, 0.0]


@each_of_two_classes
def test_far_out_the_loss_is_a_straight_line_or_nothing(target):
    margins, targets = np.array(FARTHEST) * target, np.full(2, target)
    for loss in (LOGISTIC, HINGE):
        assert loss.value(margins, targets).tolist() == [0.0, 1e308]
        assert (loss.slope(margins, targets) * target).tolist() == [0.0, -1.0]
    assert SQUARED_HINGE.value(margins / 1e155, targets) == pytest.approx([0.0, 1e306])
    assert (SQUARED_HINGE.slope(margins / 4, targets) * target).tolist() == [0.0, -5e307]
    assert SQUARED.slope(margins / 4, -targets) == pytest.approx(margins / 4)


@each_loss
def test_a_slope_is_how_the_value_changes(loss):
    margins = np.random.default_rng(1).uniform(-4, 4, 200)
    targets = np.where(np.arange(200) % 2, 1.0, -1.0)
    away = np.abs(targets * margins - 1) > 1e-3  # from where hinge losses bend
    margins, targets = margins[away], targets[away]
    change = (loss.value(margins + 1e-6, targets) - loss.value(margins - 1e-6, targets)) / 2e-6
    assert loss.slope(margins, targets) == pytest.approx(change, rel=1e-6, abs=1e-8)


@each_loss
def test_curvature_is_the_largest_change_of_the_slope(loss):
    margins = np.linspace(-4, 4, 8001)
    slopes = loss.slope(margins, np.ones(len(margins)))
    steepest = np.max(np.diff(slopes) / np.diff(margins))
    if loss is HINGE:
        assert loss.curvature == np.inf
    else:
        assert steepest <= loss.curvature * (1 + 1e-9)
        assert steepest == pytest.approx(loss.curvature, rel=1e-6)


@each_loss
@pytest.mark.parametrize("shape", [(0, 1), (1, 1), (3, 2)])
def test_losses_are_elementwise_and_leave_their_arguments_alone(loss, shape):
    margins, targets = np.full(shape, 0.5), np.ones(shape)
    margins.flags.writeable = targets.flags.writeable = False
    for function in (loss.value, loss.slope):
        result = function(margins, targets)
        assert (result.shape, result.dtype) == (shape, np.float64)
        assert np.all(result == function(np.array([0.5]), np.array([1.0])))


def test_the_table_names_every_loss():
    assert {name: loss.name for name, loss in LOSSES.items()} == {name: name for name in LOSSES}
    assert set(LOSSES.values()) == {*FORMULAS, SQUARED}
