"""Random-k draws what its definition says, on every machine, and every place with the same chance."""

import numpy as np
import pytest
from compressor_cases import values

import sparsewire.compress as swc
from sparsewire.compress.randomk import places

MASK = 2**64 - 1


def splitmix64(state):
    """Steele, Lea and Flood, OOPSLA 2014, in plain integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def drawn(length, k, seed, step):
    stream = splitmix64((splitmix64(seed) + step) & MASK)
    for strip in range(k):
        begin = strip * (length // k) + min(strip, length % k)
        width = length // k + (strip < length % k)
        yield begin + splitmix64((stream + strip) & MASK) % width


def test_the_hash_is_splitmix64():
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the published first output for seed 0
    assert splitmix64(1234567) == 6457827717110365317


@pytest.mark.parametrize("length", [1, 2, 10, 1000, 2**40])
@pytest.mark.parametrize("k", [1, 2, 7, 10])
@pytest.mark.parametrize(("seed", "step"), [(0, 0), (0, 1), (1, 0), (2**64 - 1, 10**6)])
def test_places_are_the_hash_of_seed_step_and_strip(length, k, seed, step):
    k = min(k, length)
    assert places(length, k, seed, step).tolist() == list(drawn(length, k, seed, step))


def test_every_place_of_a_strip_has_the_same_chance():
    length, k, steps = 10, 3, 6000
    hits = np.zeros(length)
    for step in range(steps):
        hits[places(length, k, 0, step)] += 1
    chance = np.repeat([1 / 4, 1 / 3, 1 / 3], [4, 3, 3])
    deviation = np.sqrt(steps * chance * (1 - chance))
    assert (np.abs(hits - steps * chance) < 4 * deviation).all()


@pytest.mark.parametrize("compressor", [swc.RandomK(0.1, seed=3), swc.BlockRandomK(0.2, block=8, seed=3)])
def test_ranks_with_different_values_choose_the_same_places(compressor):
    states = [compressor.init(100), compressor.init(100)]
    chosen = []
    for step in range(3):
        steps = [
            compressor.step(x, state)
            for x, state in zip([np.zeros(100), values("normal", 100, "float64", step)], states, strict=True)
        ]
        states = [state for _, state in steps]
        assert np.array_equal(steps[0][0].indices, steps[1][0].indices)
        chosen.append(steps[0][0].indices.tolist())
    assert chosen[0] != chosen[1] != chosen[2]


def test_zeros_are_entries():
    chance = swc.RandomK(0.5)
    entries, _ = chance.step(np.zeros(10, np.float32), chance.init(10))
    assert entries.nnz == 5
