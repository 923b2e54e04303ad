"""A short soak, and a judge that can say no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from growth import Growth, growths

HERE = Path(__file__).parent


def samples(figure: str, values: list[int], every_s: float = 10.0) -> list[dict]:
    return [{"seconds": every_s * i, "ranks": [{figure: value}]} for i, value in enumerate(values)]


def test_growth_is_what_comes_after_the_first_minute():
    """A figure that grows in its first minute only, and one that grows forever."""
    warmed = [min(number, 6) for number in range(100)]
    assert growths(samples("rss", warmed)) == [Growth(0, "rss", 6, 6)]
    [growth] = growths(samples("rss", list(range(100))))
    assert growth.difference == pytest.approx(85, abs=3)


def test_descriptors_may_come_and_go_but_not_stay():
    [comes_and_goes] = growths(samples("descriptors", [60, 63] * 50))
    assert comes_and_goes.difference <= 0
    [stays] = growths(samples("descriptors", [60 + number // 20 for number in range(100)]))
    assert stays.difference > 0


@pytest.mark.torch
def test_a_short_soak_has_right_sums_and_flat_descriptors(tmp_path):
    """Memory needs minutes to be judged; a short soak only shows that it does not grow by much."""
    path = tmp_path / "soak.json"
    words = ["--minutes", "0.12", "--ranks", "3", "--seed", "5", "--most-mb", "64", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, str(HERE), *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every sum as the oracle says; nothing grows" in done.stdout
    saved = json.loads(path.read_text())
    assert len(saved["samples"]) >= 3
    assert len(saved["growth"]) == 3 * len(saved["samples"][0]["ranks"][0])


@pytest.mark.torch
def test_a_figure_that_grows_ends_a_soak_with_1(tmp_path):
    words = ["--minutes", "0.06", "--ranks", "2", "--most-mb", "-1000"]
    done = subprocess.run(
        [sys.executable, str(HERE), *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "too much" in done.stdout
    assert "every sum as the oracle says; grows: rss of rank 0" in done.stdout
