"""What ranks do during a soak: seeded random calls, each checked against an oracle in plain numpy.

All ranks draw the same random numbers.  The vector of a rank follows from a seed and the rank, so every rank
knows the vectors of all others and computes the expected sum itself.  Values are small whole numbers, so sums
are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import sparsewire as sw
import sparsewire.torch as swt
from sparsewire.errors import CallMismatchError, InputError

LENGTHS = (1, 7, 64, 1000, 4096, 20_000, 65_536)
DENSITIES = (0.0, 0.001, 0.01, 0.1, 1.0)
DTYPES = ("float32", "float64", "int32", "int64")
COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
DDP_METHODS = ("topk", "ok_topk", "block_topk", "exact", "dense")
MOST_IN_FLIGHT = 8
SYNC_STEPS = 8


class WrongSumError(AssertionError):
    """A result differs from the oracle's."""


def check(found: Any, expected: Any, what: str) -> None:
    if isinstance(found, sw.SparseVector):
        found = found.to_dense()
    if not np.array_equal(np.asarray(found), expected):
        raise WrongSumError(what)


class Problem:
    """The vectors of all ranks of a communicator."""

    def __init__(self, comm: sw.Communicator, rng: Random, dtype: str | None = None) -> None:
        self.length, self.density = rng.choice(LENGTHS), rng.choice(DENSITIES)
        self.dtype, seed = dtype or rng.choice(DTYPES), rng.getrandbits(32)
        self.all = [self._draw(seed, rank) for rank in range(comm.size)]
        own = self.all[comm.rank]
        self.is_sparse = rng.random() < 0.7
        self.own = sw.SparseVector.from_dense(own) if self.is_sparse else own

    def _draw(self, seed: int, rank: int) -> Any:
        draw = np.random.default_rng([seed, rank])
        values = draw.integers(-8, 9, self.length)
        return np.where(draw.random(self.length) < self.density, values, 0).astype(self.dtype)

    def reduced(self, op: str = "sum") -> Any:
        total = self.all[0]
        for vector in self.all[1:]:
            total = COMBINE[op](total, vector)
        return total


class Activities:
    """The activities of a rank, and what they keep: models under DDP, and a counter for new names."""

    def __init__(self, comm: sw.Communicator, rng: Random) -> None:
        self.comm, self.rng, self.calls = comm, rng, 0
        self._numbers = itertools.count()
        self._models: dict[str, tuple[DistributedDataParallel, swt.Compression]] = {}
        self._fill_memory()
        for method in DDP_METHODS:
            self._make_model(method)

    def _fill_memory(self) -> None:
        """Have the most and largest calls in flight that ever are, because their memory is kept for reuse.

        Otherwise memory would grow with every record of what happens to be in flight, more and more slowly.
        """
        for algorithm in sw.ALGORITHMS:
            for dtype in ("float32", "float64"):
                vector = np.ones(LENGTHS[-1], dtype)
                requests = [self.comm.iallreduce(vector, algorithm=algorithm) for _ in range(MOST_IN_FLIGHT)]
                for request in requests:
                    check(request.wait(), vector * self.comm.size, f"{algorithm} in flight")

    def perform(self) -> None:
        """Perform one activity, the same on all ranks."""
        activities: list[Callable[[], None]] = [
            *[self.sum, self.in_flight, self.other_collectives] * 4,
            *[self.topk, self.feedback, self.refused, self.mismatch, self.train] * 2,
            *[self.split, self.compress_again],
        ]
        self.rng.choice(activities)()

    # -- collectives ---------------------------------------------------------------------------------

    def sum(self) -> None:
        check(*self._sum(self.comm, self.comm.allreduce))

    def _sum(self, comm: sw.Communicator, allreduce: Callable[..., Any]) -> tuple[Any, Any, str]:
        problem, op = Problem(comm, self.rng), self.rng.choice([*COMBINE])
        options: dict[str, Any] = {"op": op, "algorithm": self.rng.choice(["auto", *sw.ALGORITHMS])}
        named = self.rng.random()
        if named < 0.3:
            options["name"] = f"{problem.length} {problem.dtype} {op}"
        elif named < 0.5:
            options["name"] = f"used once {next(self._numbers)}"
        if op == "sum" and self.rng.random() < 0.2 and problem.dtype.startswith("float"):
            options |= {"algorithm": "auto", "precision": self.rng.choice(["float16", "bfloat16"])}
        self.calls += 1
        return allreduce(problem.own, **options), problem.reduced(op), f"allreduce {options}"

    def in_flight(self) -> None:
        """Several calls at once, whose results are taken in another order."""
        started = []
        for _ in range(self.rng.randint(2, MOST_IN_FLIGHT)):
            if self.rng.random() < 0.7:
                started.append(self._sum(self.comm, self.comm.iallreduce))
            else:
                problem, root = Problem(self.comm, self.rng), self.rng.randrange(self.comm.size)
                request = self.comm.ibroadcast(problem.all[self.comm.rank], root=root)
                started.append((request, problem.all[root], f"ibroadcast from {root}"))
        self.rng.shuffle(started)
        for request, expected, what in started:
            check(request.wait(), expected, what)

    def other_collectives(self) -> None:
        comm, problem = self.comm, Problem(self.comm, self.rng)
        root, own = self.rng.randrange(comm.size), problem.all[comm.rank]
        check(np.stack(comm.allgather(own)), np.stack(problem.all), "allgather")
        check(comm.broadcast(own, root=root), problem.all[root], "broadcast")
        total, found = problem.reduced(), comm.reduce(problem.own, root=root)
        if comm.rank == root:
            check(found, total, "reduce")
        check(np.concatenate(comm.allgather(comm.reduce_scatter(own))), total, "reduce_scatter")
        comm.barrier()
        self.calls += 6

    def split(self) -> None:
        colors = [self.rng.randrange(2) for _ in range(self.comm.size)]
        group = self.comm.split(colors[self.comm.rank], key=self.rng.randrange(3))
        assert group is not None
        with group:
            for _ in range(3):
                check(*self._sum(group, group.allreduce))
            check(group.iallreduce(np.ones(5)).wait(), np.full(5, float(group.size)), "iallreduce of a group")
        self.calls += 1

    # -- errors on purpose -----------------------------------------------------------------------------

    def refused(self) -> None:
        """One rank gives indices that are not sorted; then all ranks raise, and the next call works."""
        culprit, name = self.rng.randrange(self.comm.size), self.rng.choice([None, "refused"])
        is_blocking = self.rng.random() < 0.5
        bad = (9, np.array([5, 3], np.uint32), np.ones(2, np.float32))
        good = (9, np.array([3, 5], np.uint32), np.ones(2, np.float32))
        given = bad if self.comm.rank == culprit else good
        self._raises(InputError, lambda: self._call(is_blocking, given, name=name))
        total = self.comm.allreduce(good, name=name)
        check(total.values, np.full(2, self.comm.size, np.float32), "the call after a refusal")
        self.calls += 2

    def mismatch(self) -> None:
        """One rank has another length; then all ranks raise, and the next call works."""
        culprit, is_blocking = self.rng.randrange(self.comm.size), self.rng.random() < 0.5
        given = np.ones(10 + (self.comm.rank == culprit))
        self._raises(CallMismatchError, lambda: self._call(is_blocking, given))
        check(self.comm.allreduce(np.ones(3)), np.full(3, float(self.comm.size)), "the call after a mismatch")
        self.calls += 2

    def _call(self, is_blocking: bool, given: Any, **options: Any) -> None:
        if is_blocking:
            self.comm.allreduce(given, **options)
        else:
            self.comm.iallreduce(given, **options).wait()

    def _raises(self, kind: type[Exception], call: Callable[[], None]) -> None:
        try:
            call()
        except kind:
            return
        raise WrongSumError(f"a call that must raise {kind.__name__} returned")

    # -- parts of gradients ------------------------------------------------------------------------------

    def topk(self) -> None:
        """The law: the vectors of all ranks together are the result and what is left on all ranks."""
        problem = Problem(self.comm, self.rng, "float32")
        algorithm = self.rng.choice([*sw.TOPK_ALGORITHMS])
        k = self.rng.randint(1, max(1, problem.length // 10))
        total, left, _ = self.comm.allreduce_topk(problem.own, k, algorithm=algorithm)
        lefts = self.comm.allreduce(left.to_dense())
        check(total.to_dense() + lefts, problem.reduced(), f"{algorithm} with {k}")
        self.calls += 2

    def feedback(self) -> None:
        """The law: gradients of all ranks and steps are the means times the ranks, and the residuals."""
        sync = sw.Sync(self.comm, self.rng.choice(["ok_topk", "gtopk", "topk_allgather"]), density=0.05)
        problem = Problem(self.comm, self.rng, "float32")
        state, owed = sync.init(problem.length), np.zeros(problem.length, np.float32)
        for _ in range(SYNC_STEPS):
            mean, state = sync.step(problem.all[self.comm.rank], state)
            owed += problem.reduced() - mean.to_dense() * self.comm.size
        check(self.comm.allreduce(state.compressor.residual.copy()), owed, f"feedback of {sync.algorithm}")
        self.calls += SYNC_STEPS + 1

    # -- DDP --------------------------------------------------------------------------------------------

    def _make_model(self, method: str) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(40, 50, bias=False), torch.nn.Linear(50, 10))
        ddp, density = DistributedDataParallel(model), 0.4 if method == "block_topk" else 0.05
        handle = swt.compress(
            ddp, method=method, density=density, min_size=64, group_bytes=4096, timeout=60.0
        )
        self._models[method] = ddp, handle
        self._step(method)

    def train(self) -> None:
        """Steps of a model under DDP: all ranks have the same gradients, and exact methods give the mean."""
        method = self.rng.choice(DDP_METHODS)
        for _ in range(3):
            self._step(method)

    def _step(self, method: str) -> None:
        ddp, _ = self._models[method]
        seed = self.rng.getrandbits(32)
        rows = torch.randn(8, 40, generator=torch.Generator().manual_seed(seed + self.comm.rank))
        ddp.zero_grad()
        ddp(rows).square().mean().backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in ddp.parameters() if p.grad is not None])
        largest = self.comm.allreduce(gradient.numpy(), op="max")
        check(gradient.numpy(), largest, f"the gradient under {method} differs between ranks")
        if method in ("exact", "dense"):
            self._check_mean(ddp, rows, gradient)
        self.calls += 1

    def _check_mean(self, ddp: DistributedDataParallel, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        own = torch.autograd.grad(ddp.module(rows).square().mean(), list(ddp.module.parameters()))
        flat = torch.cat([part.reshape(-1) for part in own]).numpy().astype(np.float64)
        mean = self.comm.allreduce(flat) / self.comm.size
        if not np.allclose(gradient.numpy(), mean, rtol=1e-4, atol=1e-6):
            raise WrongSumError("the gradient under DDP is not the mean")

    def compress_again(self) -> None:
        """Take the hook from a model, and make another model with a hook and new connections."""
        method = self.rng.choice(DDP_METHODS)
        _, handle = self._models.pop(method)
        handle.detach()
        self._make_model(method)

    def close(self) -> None:
        for _, handle in self._models.values():
            handle.detach()
