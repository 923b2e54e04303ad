"""What a user is told about a choice is what the choice is made from."""

import pytest

from sparsewire.algorithms import ALGORITHMS
from sparsewire.choosing.calibration import Calibration
from sparsewire.choosing.choose import choose
from sparsewire.choosing.explain import render, table
from sparsewire.cost import CostFigures, Shape

NETWORK = CostFigures(2.0**-14, 2.0**27, 2.0**-15, 2.0**-28, 2.0**-30, 0.5, 2.0**-10)
SHAPES = [Shape(1, 100, 3), Shape(2, 0, 0), Shape(4, 2**20, 2**10), Shape(8, 2**24, 2**23)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_table_has_every_algorithm_fastest_first(shape):
    rows = table(NETWORK, shape)
    assert {row.algorithm for row in rows} == set(ALGORITHMS)
    seconds = [row.cost.seconds for row in rows]
    assert seconds == sorted(seconds)
    assert ALGORITHMS[rows[0].algorithm].cost(NETWORK, shape).seconds == seconds[0] - NETWORK.startup


@pytest.mark.parametrize("shape", SHAPES)
def test_the_choice_is_at_most_a_tie_behind_the_first_row(shape):
    seconds = {row.algorithm: row.cost.seconds for row in table(NETWORK, shape)}
    assert seconds[choose(NETWORK, shape).algorithm] <= 1.05 * min(seconds.values())


def test_the_text_names_figures_origin_rows_and_choice():
    shape = SHAPES[2]
    text = render(Calibration(NETWORK, 86400.0), shape)
    assert "4 ranks, length 1,048,576, at most 1,024 entries per rank" in text
    assert "tuned on 1970-01-02" in text
    assert "0.134 GB/s" in text
    assert all(f"\n{name} " in text for name in ALGORITHMS)
    assert text.endswith(f"auto takes {choose(NETWORK, shape).algorithm}")


def test_the_text_says_when_nobody_has_measured():
    assert "sparsewire tune" in render(Calibration(NETWORK), SHAPES[2])
