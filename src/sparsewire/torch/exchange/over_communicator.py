"""Exchanges over our communicator.

All sums but those of "ok_topk" are made in rank order, so their bits do not depend on which algorithm makes
them.  With a precision they do, because algorithms round in different places.  There, the algorithm follows
from the figures, the options and the step alone, and not from what earlier calls have seen: a process that
continues from a checkpoint has seen nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsewire.choosing.choose import choose
from sparsewire.coding.values import Precision, precision_of
from sparsewire.communicator import Communicator
from sparsewire.communicator.request import Request
from sparsewire.compress.schedule import count_of, density_at
from sparsewire.cost import BLOCK, Shape
from sparsewire.sync import Sync
from sparsewire.torch.codes import Sent
from sparsewire.torch.exchange import Exchange

__all__ = ["Gathering", "RankOrderSums", "SelectedSums"]


class RankOrderSums(Exchange):
    """Everybody's sum, or their mean with op "avg".

    For a sum that is full, the algorithm has the lowest predicted time for dense vectors.  For others, "auto"
    chooses by what it has seen of the name.
    """

    def __init__(self, comm: Communicator, op: str = "sum", precision: str | Precision | None = None) -> None:
        self._comm, self._op, self._precision = comm, op, precision

    def start(self, sent: Sent) -> Request:
        options: dict[str, Any] = {"name": sent.name, "in_rank_order": True}
        if sent.is_full:
            vector, length = sent.content, sent.content.length
            options = {"algorithm": _fastest(self._comm, length, vector.dtype, length, self._precision)}
        return self._comm.iallreduce(sent.content, op=self._op, precision=self._precision, **options)


class SelectedSums(Exchange):
    """The sum of what ``Sync`` has selected; "auto" stands for the algorithm of lowest predicted time."""

    def __init__(self, sync: Sync) -> None:
        self._sync = sync

    def start(self, sent: Sent) -> Request:
        assert sent.state is not None
        sync, vector = self._sync, sent.content
        if sync.algorithm != "auto":
            return sync.iexchange(vector, sent.state)
        density, block = density_at(sync.density, sent.state.step), sync.compressor.block
        nnz = min(vector.length, block * count_of(-(-vector.length // block), density))
        algorithm = _fastest(sync.comm, vector.length, vector.dtype, nnz, sync.precision, block)
        return sync.iexchange(vector, sent.state, algorithm, nnz)


class Gathering(Exchange):
    """Everybody's array, in rank order."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def start(self, sent: Sent) -> Request:
        return self._comm.iallgather(sent.content)


def _fastest(
    comm: Communicator,
    length: int,
    dtype: np.dtype[Any],
    nnz: int,
    precision: str | Precision | None,
    block: int = 1,
) -> Any:
    """The algorithm of lowest predicted time, of those that add up in rank order, as ``allreduce`` takes it.

    No rank has more than ``nnz`` entries, which come in whole blocks of ``block`` neighbours.
    """
    shape = Shape(
        comm.size,
        length,
        nnz,
        dtype.itemsize,
        precision=precision_of(precision, dtype, "sum"),
        index_price=comm.network.index_price,
        blocks=-(-nnz // BLOCK) if block % BLOCK == 0 or nnz == length else None,
        aggregators=comm.aggregators,
        in_rank_order=True,
    )
    choice = choose(comm.network, shape)
    return choice.options or choice.algorithm
