"""What the examples show works."""

from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_on_three_ranks(cli, example):
    done = cli("run", "-n", "3", str(example))
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_there_are_examples():
    assert EXAMPLES
