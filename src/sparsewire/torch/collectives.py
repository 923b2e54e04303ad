"""``all_reduce``, as torch.distributed has it, but for sparse tensors too and with any backend."""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from sparsewire.communicator import Communicator
from sparsewire.communicator.request import Request
from sparsewire.errors import InputError
from sparsewire.torch.device import wait_for_queued_work
from sparsewire.torch.transport import communicator, group_of

__all__ = ["Work", "all_reduce"]

OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}
# The communicator of each group; it is closed when the group is deleted.
_communicators: weakref.WeakKeyDictionary[Any, Communicator] = weakref.WeakKeyDictionary()


def all_reduce(
    tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Replace ``tensor`` by everybody's sum, mean, maximum or minimum, the same bits on every rank.

    Call it as ``dist.all_reduce``.  ``tensor`` is strided or sparse COO, with any dimensions sparse; a sparse
    one comes back coalesced, and entries that became zero may be missing.  For ``MAX`` and ``MIN``, positions
    that are not stored count as zero.  float16, bfloat16, float32, float64, int32 and int64 can be reduced;
    integers have no mean.  CUDA tensors go through host memory.

    The first call for a group connects its ranks.  Errors are those of ``sparsewire``, raised on every rank.
    After a ``TransportError``, further calls for the group fail too.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> gradient = torch.sparse_coo_tensor([[3, 1, 3]], [1.0, 2.0, 4.0], (5,), check_invariants=True)
    >>> all_reduce(gradient, op=dist.ReduceOp.AVG)
    >>> gradient.indices(), gradient.values()
    (tensor([[1, 3]]), tensor([2., 5.]))
    >>> all_reduce(gradient, async_op=True).wait()
    True
    >>> dist.destroy_process_group()
    """
    comm = _communicator_of(group_of(group))
    if not isinstance(tensor, torch.Tensor):
        comm.refuse(InputError(f"{type(tensor).__name__} is no tensor, and cannot be reduced in place"))
    name = next((name for known, name in OPS.items() if op == known), None)
    if name is None:
        comm.refuse(InputError(f"op is {op}; known are SUM, AVG, MAX and MIN of dist.ReduceOp"))
    if async_op:
        return Work(comm.iallreduce(tensor, op=name), tensor)
    _assign(tensor, comm.allreduce(tensor, op=name))
    return None


class Work:
    """An ``all_reduce`` in flight, to be waited for as a ``dist.Work``."""

    def __init__(self, request: Request, tensor: torch.Tensor) -> None:
        self._request = request
        self._tensor = tensor
        self._future: Any = torch.futures.Future()
        request.add_done_callback(self._finish)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True when the tensor has its new content; raises what went wrong.

        After ``timeout`` it raises TimeoutError; the collective continues, and can be waited for again.
        """
        self._request.wait(timeout.total_seconds() if timeout else None)
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, with success or with an error."""
        return bool(self._future.done())

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of a list with the tensor."""
        return self._future

    def _finish(self, request: Future[Any]) -> None:
        try:
            _assign(self._tensor, request.result())
            wait_for_queued_work(self._tensor)  # of this thread; the caller reads in another
        except Exception as error:
            self._future.set_exception(error)
        else:
            self._future.set_result([self._tensor])


def _assign(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Replace the content of a tensor, even if it requires a gradient or is sparse."""
    with torch.no_grad():
        tensor.copy_(content)


def _communicator_of(group: Any) -> Communicator:
    if group not in _communicators:
        made = _communicators[group] = communicator(group)
        weakref.finalize(group, made.close)
    return _communicators[group]
