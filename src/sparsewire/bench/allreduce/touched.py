"""What a sum of blocks has to move where non-zeros come in blocks, and how long that takes at least.

With D the share of blocks that the fullest rank has, U the share that any has, S the bytes of the dense
vector, B the bytes that a link carries in a second each way, P workers and A dedicated aggregators:

    colocated   (P - 1) / P (D + U) S / B
    dedicated   max(D, U, P D / A, P U / A) S / B
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire.bench.harness.problem import Case, touched_blocks
from sparsewire.vector import value_dtype


@dataclass(frozen=True)
class Touched:
    """How many blocks each rank has, and all of them together."""

    of_ranks: tuple[int, ...]
    union: int
    blocks: int  # zero or not
    block_bytes: int
    dense_bytes: int

    @classmethod
    def of(cls, case: Case) -> Touched:
        """The counts of a case whose non-zeros come in blocks, from its inputs."""
        assert case.layout
        of_ranks, found = [], np.zeros(case.blocks, np.bool_)
        for rank in range(case.ranks):
            blocks = touched_blocks(case, rank)
            of_ranks.append(len(blocks))
            found[blocks] = True
        value_bytes = value_dtype(case.dtype).itemsize
        return cls(
            of_ranks=tuple(of_ranks),
            union=int(np.count_nonzero(found)),
            blocks=case.blocks,
            block_bytes=case.layout.block * value_bytes,
            dense_bytes=case.length * value_bytes,
        )

    def seconds(self, bits_per_second: int, aggregators: int = 0) -> float:
        """The seconds of the model; without dedicated aggregators every rank aggregates."""
        ranks = len(self.of_ranks)
        fullest, union = max(self.of_ranks) / self.blocks, self.union / self.blocks
        if aggregators:
            share = max(1.0, ranks / aggregators) * max(fullest, union)
        else:
            share = (ranks - 1) / ranks * (fullest + union)
        return share * self.dense_bytes * 8 / bits_per_second

    def bytes_sent(self, rank: int) -> float:
        """The bytes that a rank sends if it also aggregates: its blocks, and its sums to all others."""
        ranks = len(self.of_ranks)
        return (self.of_ranks[rank] + self.union * (ranks - 1) / ranks) * self.block_bytes
