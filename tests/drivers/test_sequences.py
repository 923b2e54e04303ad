"""A few random sequences of deaths and returns; ``python tests/drivers/sequences.py 100`` runs a hundred."""

import pytest
import sequences


@pytest.mark.parametrize("seed", range(5))
def test_a_random_sequence_ends_right_or_with_a_named_error(seed):
    verdict = sequences.judge(seed)
    assert verdict.split()[0] in ("right", "named"), verdict


def test_sequences_go_on():
    """Not all have to: a rank may die just after its group was formed, and end the next sum."""
    assert "right" in [sequences.judge(seed) for seed in range(100, 103)]
