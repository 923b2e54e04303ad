"""Bits per index of codes that might have been chosen, for three kinds of support.

    python benchmarks/index_codes.py > benchmarks/index_codes.txt

Sizes only, by formula from the gaps: Elias and Fano's code, Golomb and Rice's of the gaps with the best parameter, and
gaps packed in blocks of 128 with as many bits as the largest of a block needs, or with those that need more than most
written behind it (patched; the number of bits is the best one for the block, an exception takes 8 + 32 bits).
"""

import numpy as np

from sparsewire import kernels
from sparsewire.bench.coding import bits_at_the_limit
from sparsewire.bench.harness.problem import Case, make_input

LENGTH = 1 << 24
BLOCK = 128


def elias_fano(gaps, length):
    return 64 * kernels.elias_fano_words(len(gaps), length)


def rice(gaps, length):
    return min(int(len(gaps) * (bits + 1) + (gaps >> bits).sum()) for bits in range(25))


def blocks(gaps, length):
    return sum(8 + BLOCK * int(block.max()).bit_length() for block in _blocks(gaps))


def patched(gaps, length):
    total = 0
    for block in _blocks(gaps):
        widths = np.ceil(np.log2(block + 1)).astype(int)
        total += 16 + min(BLOCK * width + 40 * int((widths > width).sum()) for width in range(26))
    return total


def _blocks(gaps):
    return np.pad(gaps, (0, -len(gaps) % BLOCK)).reshape(-1, BLOCK)


if __name__ == "__main__":
    codes = [elias_fano, rice, blocks, patched]
    print(f"{'support':<10}{'density':>9}{'limit':>9}", *(f"{code.__name__:>12}" for code in codes))
    for distribution in ("uniform", "zipf", "rows"):
        for density in (1e-4, 1e-2, 1e-1):
            indices = make_input(Case(1, LENGTH, density, distribution=distribution), 0)[0].astype(np.int64)
            gaps = np.diff(indices, prepend=-1) - 1
            sizes = [code(gaps, LENGTH) / len(gaps) for code in codes]
            limit = bits_at_the_limit(len(gaps) / LENGTH)
            print(f"{distribution:<10}{density:>9g}{limit:>9.2f}", *(f"{size:>12.2f}" for size in sizes))
