"""A rank that performs the calls of its trial, and compares each result with the exact one.

Values are small integers, so every sum is exact, whatever the algorithm and the order.
"""

from __future__ import annotations

import random
import time
from itertools import groupby
from typing import Any

import numpy as np
from injectors import Injector, unusable
from journal import Journal
from trials import Call, Trial

import sparsewire as sw
from sparsewire.algorithms import TOPK_ALGORITHMS
from sparsewire.testing import run_local

JOINING = -1  # in the place of a call's number
K = 5  # entries of a top-k sum


def perform(trial: Trial, injector: Injector, journal: Journal) -> None:
    injector.before_joining()
    try:
        comm = injector.comm = sw.init(timeout=trial.joins_within, aggregators=trial.aggregators)
    except sw.SparsewireError as error:
        journal.failed(JOINING, error)
        return
    comm.timeout = trial.timeout
    if comm.is_aggregator:
        _serve(trial, injector, journal)
        return
    chance = random.Random(f"{trial.seed}/{trial.number}/{comm.rank}")
    for _, burst in groupby(trial.calls, key=lambda call: call.burst):
        time.sleep(chance.uniform(0, trial.skew))
        if not _perform_burst(comm, trial, list(burst), injector, journal):
            time.sleep(trial.linger)
            break
    comm.close()


def _serve(trial: Trial, injector: Injector, journal: Journal) -> None:
    injector.while_serving()
    try:
        injector.comm.serve()
    except sw.SparsewireError as error:
        journal.failed(len(trial.calls), error)
    injector.comm.close()


def _perform_burst(
    comm: sw.Communicator, trial: Trial, calls: list[Call], injector: Injector, journal: Journal
) -> bool:
    """Start all calls, then wait for each.  Returns whether the communicator still works."""
    works = True
    flying: list[tuple[Call, Any]] = []
    for call in calls:
        made = injector.before(call)
        try:
            flying.append((call, _start(comm, trial, made)))
        except sw.SparsewireError as error:
            journal.failed(call.number, error)
            works = works and not isinstance(error, sw.TransportError)
    for call, started in flying:
        try:
            # Longer than every time-out: what ends here is a hang, and no error of ours.
            result = started if call.blocking else started.wait(3 * trial.timeout + 5)
        except sw.SparsewireError as error:
            journal.failed(call.number, error)
            works = works and not isinstance(error, sw.TransportError)
        else:
            journal.write(call=call.number, right=_is_right(trial, call, comm.rank, result))
    if not works:
        _check_broken(comm, journal)
    return works


def _check_broken(comm: sw.Communicator, journal: Journal) -> None:
    """A communicator that broke says so in every later call."""
    try:
        comm.barrier()
    except sw.TransportError:
        return
    except Exception as error:
        journal.write(unnamed=f"a broken communicator raised {type(error).__name__}: {error}")
    else:
        journal.write(unnamed="a broken communicator did not raise")


def _start(comm: sw.Communicator, trial: Trial, call: Call) -> Any:
    """The result of a blocking call, or the request of another one."""
    prefix = "" if call.blocking else "i"
    if call.operation.startswith("unusable"):
        x, options = unusable(call)
        return getattr(comm, f"{prefix}allreduce")(x, **options)
    collective = getattr(comm, prefix + call.operation)
    if call.operation == "barrier":
        return collective()
    x = given(trial, call, comm.rank)
    if call.operation == "allreduce":
        options = {"algorithm": call.algorithm, "op": call.op, "name": call.name, "precision": call.precision}
        return collective(x, **options)
    if call.operation == "allreduce_topk":
        return collective(x, K, algorithm=call.algorithm)
    options = {"reduce_scatter": {"op": call.op}, "broadcast": {"root": call.root}}
    options["reduce"] = {"op": call.op, "root": call.root}
    return collective(x, **options.get(call.operation, {}))


def given(trial: Trial, call: Call, rank: int) -> Any:
    """A rank's argument: a dense array if all entries are there, else a SparseVector."""
    chance = np.random.default_rng([trial.seed, trial.number, call.number, rank])
    values = chance.integers(1, 9, call.nnz) * chance.choice([-1, 1], call.nnz)
    if call.nnz == call.length:
        return values.astype(call.dtype)
    places = np.sort(chance.choice(call.length, call.nnz, replace=False))
    return sw.SparseVector(call.length, places, values.astype(call.dtype))


def _is_right(trial: Trial, call: Call, rank: int, result: Any) -> bool:
    if call.operation == "barrier":
        return result is None
    everybody = [given(trial, call, peer) for peer in range(trial.workers)]
    if call.operation == "allreduce_topk":
        return _is_right_topk(call, everybody, result)
    dense = [_dense(x) for x in everybody]
    if call.operation == "allgather":
        return len(result) == len(dense) and all(map(_same, result, dense))
    if call.operation == "broadcast":
        return _same(result, dense[call.root])
    reduced = {"sum": np.add, "max": np.maximum, "min": np.minimum}[call.op].reduce(dense)
    if call.operation == "reduce_scatter":
        return _same(result, np.array_split(reduced, trial.workers)[rank])
    if call.operation == "reduce" and rank != call.root:
        return result is None
    return _same(result, reduced)


def _is_right_topk(call: Call, everybody: list[Any], result: Any) -> bool:
    """As the same script says when it runs in one process."""
    vectors = [x if isinstance(x, sw.SparseVector) else sw.SparseVector.from_dense(x) for x in everybody]
    script = TOPK_ALGORITHMS[call.algorithm].run
    sums, _ = run_local(lambda rank, size, vector: script(rank, size, vector, K), vectors)
    return _same(result.total, sums[0].total.to_dense())


def _dense(x: Any) -> Any:
    return x.to_dense() if isinstance(x, sw.SparseVector) else x


def _same(result: Any, expected: Any) -> bool:
    found = _dense(result)
    return found.dtype == expected.dtype and np.array_equal(found, expected)
