"""When training stops, and how long its steps are."""

import numpy as np
import pytest

from sparsewire.errors import InputError
from sparsewire.linear.schedule import Schedule
from sparsewire.linear.training import Progress, Stopping, train, within_the_optimum


class Scripted:
    """A solver whose passes have these losses."""

    def __init__(self, losses, gaps=()):
        self.losses, self.gaps = iter(losses), iter(gaps)

    def epoch(self):
        return Progress(next(self.losses), 0.0, 0.0, 0, gap=next(self.gaps, None))


@pytest.mark.parametrize(
    ("losses", "tol", "passes"),
    [
        ([5, 4, 3, 2, 1, 0], 0, 6),
        ([3, 1, 2, 1.5, 1.2, 0], 0, 5),  # passes must gain on the best pass, not on the last
        ([3, 1, 2, 1.5, 0.5, 2, 2], 0, 7),
        ([3, 2.9, 2.8, 2.7, 0], 1, 4),
        ([3, 3, 3, 3, 3, 3], None, 6),
    ],
)
def test_training_ends_when_no_pass_has_gained_on_the_best(losses, tol, passes):
    stopping = Stopping(max_iter=len(losses), tol=tol, n_iter_no_change=3)
    assert [progress.loss for progress in train(Scripted(losses), stopping)] == losses[:passes]


def test_training_goes_by_the_rows_that_are_held_out():
    held_out = iter([3, 2, 2, 2, 2])
    stopping = Stopping(max_iter=5, tol=0, n_iter_no_change=2)
    passes = list(train(Scripted([5, 4, 3, 2, 1]), stopping, lambda: next(held_out)))
    assert [progress.held_out_loss for progress in passes] == [3, 2, 2, 2]


@pytest.mark.parametrize(("tol", "passes"), [(0.1, 3), (0.05, 4), (None, 5), (0, 5)])
def test_training_ends_when_the_gap_is_within_the_tolerance(tol, passes):
    gaps = [0.9, 0.4, 0.1, 0.05, 0.02]
    stopping = Stopping(max_iter=5, tol=tol, n_iter_no_change=1)
    assert [progress.gap for progress in train(Scripted([1] * 5, gaps), stopping)] == gaps[:passes]


def test_training_by_held_out_rows_does_not_look_at_the_gap():
    held_out = iter([3, 2, 2, 2])
    stopping = Stopping(max_iter=4, tol=0, n_iter_no_change=2)
    passes = list(train(Scripted([1] * 4, [0.0] * 4), stopping, lambda: next(held_out)))
    assert len(passes) == 4


@pytest.mark.parametrize(
    ("gap", "words"),
    [(0.01, "1%"), (0.010001, "1.1%"), (0.35, "35%"), (12.3, "1300%"), (0, "0%"), (3.21e-7, "0.000033%")],
)
def test_a_gap_in_words_is_never_smaller_than_it_is(gap, words):
    assert within_the_optimum(gap) == f"within {words} of the optimum"


def test_training_does_not_go_on_from_a_loss_that_is_no_number():
    for loss in (np.nan, np.inf):
        with pytest.raises(InputError, match="smaller eta0"):
            list(train(Scripted([1.0, loss]), Stopping(5, None, 1)))


def test_schedules_have_the_lengths_that_they_name():
    assert Schedule().factor(step=7, epoch=7) == 1
    assert [Schedule("invscaling", power=0.5).factor(step, 9) for step in (0, 3, 15)] == [1, 0.5, 0.25]
    assert [Schedule("epoch_decay", decay=0.5).factor(9, epoch) for epoch in (0, 1, 3)] == [1, 0.5, 0.125]
