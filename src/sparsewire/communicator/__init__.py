"""Communicator: what users hold.  Its calls are collective: all ranks make the same, in the same order."""

from __future__ import annotations

import functools
import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from sparsewire import kernels
from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS, Regions, TopkSum
from sparsewire.algorithms.omnireduce import BLOCK, OmniReduce, aggregate
from sparsewire.algorithms.patterns import allgather
from sparsewire.algorithms.split_allgather import split_reduce
from sparsewire.algorithms.tree import barrier, broadcast, reduce
from sparsewire.choosing import explain
from sparsewire.choosing.calibration import ASSUMED, Calibration, Fingerprint, host_number, load
from sparsewire.choosing.chooser import Choice, Chooser, Key
from sparsewire.coding.call import Call
from sparsewire.coding.rounding import Feedback, PrecisionRounding
from sparsewire.coding.values import Precision, precision_of
from sparsewire.communicator.convert import from_any, into
from sparsewire.communicator.request import Progress, Request
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers.protocols import Driver, ServingDriver, Started, Traffic
from sparsewire.errors import InputError, SparsewireError, TransportError
from sparsewire.reduction import REDUCTIONS, SUM, Reduction
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector, value_dtype

__all__ = ["Communicator", "Last"]

OPS = (*REDUCTIONS, "avg")
SHORTEST_ROW, LONGEST_ROW = 16, 4096  # that make good blocks: shorter ones cost more to name than to send
CLOSED = "this communicator was closed; sparsewire.init() makes a new one"


@dataclass(slots=True)
class Last:
    """What a collective did at this rank; bytes are whole frames, headers included."""

    operation: str
    algorithm: str
    precision: str
    messages_sent: int
    bytes_sent: int
    bytes_received: int
    rounds: int
    seconds: float
    nnz_in: int
    density_in: float
    nnz_out: int
    density_out: float


class Communicator:
    """A group of ranks; make one with ``sparsewire.init()``.

    Calls with an ``i`` before their name return a ``Request`` at once; what is given to them must not be
    written to before it has ended.  One thread at a time may call; any number of calls can be in flight.

    >>> import numpy as np, sparsewire as sw
    >>> comm = sw.init()                          # a process that is alone is a group of one
    >>> comm.allreduce(np.array([0.0, 2.0]))
    array([0., 2.])
    >>> comm.last.density_in
    0.5
    >>> comm.iallreduce(np.array([1.0, 2.0]), op="max").wait()
    array([1., 2.])
    """

    def __init__(self, driver: Driver, timeout: float = 300.0, aggregators: int = 0) -> None:
        self.timeout = timeout
        self.aggregators = aggregators  # ranks that only aggregate; with none, "omnireduce" adds up at all
        self.last: Last | None = None
        self.fingerprint: Fingerprint | None = None  # under which figures are kept; rank 0 alone has it
        self._driver = driver
        self._closed = False
        self._rounded = 0  # calls that round: chance goes by their number
        self._calling = threading.Lock()  # held by the thread that makes a call
        self._refused: deque[SparsewireError] = deque()  # of other threads meanwhile
        self._progress: Progress | None = None
        # The last call of each name.  Weak, because it holds its result; in flight it is held by the driver.
        self._latest: weakref.WeakValueDictionary[Key, Request] = weakref.WeakValueDictionary()
        self._use(Calibration(ASSUMED["local", False]))

    @property
    def rank(self) -> int:
        return self._driver.rank

    @property
    def size(self) -> int:
        """How many ranks make calls; those that only aggregate are not counted, and come after them."""
        return self._driver.size - self.aggregators

    @property
    def is_aggregator(self) -> bool:
        """Does this rank only aggregate?  Then ``serve`` is all that it calls."""
        return self.rank >= self.size

    def serve(self) -> None:
        """Aggregate for the workers' calls of "omnireduce"; returns when all workers have left.

        A call that is refused or that differs is the workers' to raise, and the next one is served; what
        breaks the communicator is raised here too.
        """
        if self._closed:
            raise TransportError(CLOSED)
        if not isinstance(self._driver, ServingDriver):
            those = ", ".join(map(str, self._servers)) or "none"
            raise InputError(f"rank {self.rank} is a worker; ranks that aggregate and call serve(): {those}")
        self._driver.serve(self._aggregate)

    @property
    def _servers(self) -> range:
        return range(self.size, self._driver.size)

    # -- collectives -----------------------------------------------------------------------------

    def allreduce(
        self,
        x: Any,
        *,
        algorithm: str | OmniReduce = "auto",
        op: str = "sum",
        name: str | None = None,
        nnz: int | None = None,
        precision: str | Precision | None = None,
        feedback: Feedback | None = None,
        out: Any = None,
        in_rank_order: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Everybody's sum, mean (``op="avg"``), maximum or minimum, the same bits on every rank.

        ``x`` is a numpy array, a torch tensor (dense or sparse COO), a scipy.sparse matrix, a
        SparseVector or a tuple ``(length, indices, values)``; the result is of the same kind.  For "max" and
        "min", positions that are not stored count as zero, which is what they are.

        "auto" takes the algorithm with the shortest predicted time.  Calls with the same ``name`` are taken
        to be alike: later ones go by what was seen in earlier ones, and only the first asks all ranks.
        ``nnz`` promises that no rank has more entries.  All ranks give the same.  With ``in_rank_order`` it
        chooses among those that add up in rank order, so the bits of a sum do not depend on the choice.

        ``precision`` sends fewer bits: "float16", "bfloat16", or "qsgd2", "qsgd4", "qsgd8" (``QSGD``), which
        is right on average.  Every rank's values are rounded once, and in some algorithms the sums once more;
        sums are made in the dtype of ``x``.  ``feedback`` keeps what rounding left out, for the next call.

        ``out`` is an array or a tensor like a dense ``x`` to which the result is written, and may be ``x``
        itself; if the call fails, what is in it is undefined.

        "omnireduce" takes a dense ``x`` by blocks: its rows if it has any, or 256 values.  An ``OmniReduce``
        says what else it can do, such as another size of blocks.
        """
        options = algorithm, op, name, nnz, precision, feedback, out, in_rank_order
        return self._call(lambda: self._allreduce(x, *options), timeout)

    def iallreduce(
        self,
        x: Any,
        *,
        algorithm: str | OmniReduce = "auto",
        op: str = "sum",
        name: str | None = None,
        nnz: int | None = None,
        precision: str | Precision | None = None,
        feedback: Feedback | None = None,
        out: Any = None,
        in_rank_order: bool = False,
        timeout: float | None = None,
    ) -> Request:
        """``allreduce`` in the background; calls of one ``name`` follow one another, others overlap."""
        options = algorithm, op, name, nnz, precision, feedback, out, in_rank_order
        return self._icall(lambda: self._allreduce(x, *options), timeout)

    def allreduce_topk(
        self,
        x: Any,
        k: int,
        *,
        algorithm: str = "ok_topk",
        regions: Regions | None = None,
        timeout: float | None = None,
    ) -> TopkSum:
        """The k largest entries of the sum, ``total``, the same bits on every rank; and what is ``left``.

        Only a rank's own k largest take part.  All ranks' ``left`` together are what ``total`` is without:
        add them to what is summed next, and nothing is lost.  ``regions`` are what the last call returned,
        which spares a round; all ranks give the same.

        >>> import numpy as np, sparsewire as sw
        >>> total, left, _ = sw.init().allreduce_topk(np.array([3.0, -4.0, 0.5]), 1)
        >>> total.to_dense(), left.to_dense()
        (array([ 0., -4.,  0.]), array([3. , 0. , 0.5]))
        """
        result: TopkSum = self._call(lambda: self._allreduce_topk(x, k, algorithm, regions), timeout)
        return result

    def iallreduce_topk(
        self,
        x: Any,
        k: int,
        *,
        algorithm: str = "ok_topk",
        regions: Regions | None = None,
        timeout: float | None = None,
    ) -> Request:
        """``allreduce_topk`` in the background."""
        return self._icall(lambda: self._allreduce_topk(x, k, algorithm, regions), timeout)

    def allgather(self, x: Any, *, timeout: float | None = None) -> list[Any]:
        """Everybody's ``x``, in rank order; lengths may differ, the dtype may not.

        >>> import numpy as np, sparsewire as sw
        >>> sw.init().allgather(np.array([1, 2]))
        [array([1, 2])]
        """
        everybody: list[Any] = self._call(lambda: self._allgather(x), timeout)
        return everybody

    def iallgather(self, x: Any, *, timeout: float | None = None) -> Request:
        """``allgather`` in the background."""
        return self._icall(lambda: self._allgather(x), timeout)

    def reduce_scatter(self, x: Any, *, op: str = "sum", timeout: float | None = None) -> Any:
        """This rank's range of what ``allreduce`` gives, as a vector of its own.

        The ranges are in rank order and differ by at most one position.
        """
        return self._call(lambda: self._reduce_scatter(x, op), timeout)

    def ireduce_scatter(self, x: Any, *, op: str = "sum", timeout: float | None = None) -> Request:
        """``reduce_scatter`` in the background."""
        return self._icall(lambda: self._reduce_scatter(x, op), timeout)

    def broadcast(self, x: Any = None, *, root: int = 0, timeout: float | None = None) -> Any:
        """The root's ``x``.  Other ranks give one of the same kind, or None for a SparseVector."""
        return self._call(lambda: self._broadcast(x, root), timeout)

    def ibroadcast(self, x: Any = None, *, root: int = 0, timeout: float | None = None) -> Request:
        """``broadcast`` in the background."""
        return self._icall(lambda: self._broadcast(x, root), timeout)

    def reduce(self, x: Any, *, op: str = "sum", root: int = 0, timeout: float | None = None) -> Any:
        """What ``allreduce`` gives at the root, None elsewhere."""
        return self._call(lambda: self._reduce(x, op, root), timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Return when every rank has called it."""
        self._call(self._barrier, timeout)

    def refuse(self, error: Exception) -> NoReturn:
        """Instead of the next collective: raise the error on every rank, as this one cannot take part."""

        def cannot() -> _Plan:
            raise error

        self._call(cannot, None)
        raise AssertionError("a refused call returns nothing")

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Communicator | None:
        """A communicator of the ranks that give the same ``color``, in the order of ``key``, then of rank.

        Who gives None as color gets None.  Groups are independent of each other and of this communicator.
        """
        has_color, color, key = color is not None, int(color or 0), int(key)
        invitation = np.frombuffer(self._driver.invite(), np.uint8)
        everybody = self.allgather(np.array([has_color, color, key, *invitation], np.int64), timeout=timeout)
        if not has_color:
            return None
        alike = [(int(page[2]), rank) for rank, page in enumerate(everybody) if page[0] and page[1] == color]
        group = [rank for _, rank in sorted(alike)]
        invitations = [page[3:].astype(np.uint8).tobytes() for page in everybody]
        return Communicator.of(self._driver.split(group, invitations), self.timeout)

    # -- choosing --------------------------------------------------------------------------------

    @classmethod
    def of(cls, driver: Driver, timeout: float) -> Communicator:
        """A communicator whose ranks all go by the figures that rank 0 has for a group like this."""
        comm = cls(driver, timeout, driver.aggregators)
        if driver.size == 1:
            return comm
        everybody = cls(driver, timeout)  # aggregators too, who code indices by these figures
        hosts = everybody.reduce(comm._own_host())
        if comm.rank == 0:
            transport, network = driver.kind
            comm.fingerprint = Fingerprint.here(
                transport, comm.size, hosts.nnz, network, kernels.active_isa()
            )
            comm._use(load(comm.fingerprint))
        numbers = everybody.broadcast(np.array(comm._calibration.to_numbers()))
        comm._use(Calibration.from_numbers(numbers))
        return comm

    def _own_host(self) -> SparseVector:
        """An entry for the host of a worker; figures are those of the network between workers."""
        numbers = [] if self.is_aggregator else [host_number()]
        return SparseVector(2**32, numbers, np.ones(len(numbers), np.int32))

    def _use(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._chooser = Chooser(self.size, calibration.network, self.aggregators)
        self._driver.index_price = calibration.network.index_price

    @property
    def network(self) -> CostFigures:
        """The figures that "auto" predicts with; all ranks set the same."""
        return self._calibration.network

    @network.setter
    def network(self, network: CostFigures) -> None:
        self._use(Calibration(network, time.time()))

    def explain(
        self, length: int, nnz: int, *, dtype: str = "float32", precision: str | Precision | None = None
    ) -> None:
        """Print the predicted time of every algorithm, if no rank has more than ``nnz`` entries.

        >>> import sparsewire as sw
        >>> sw.init().explain(1000, 10)  # doctest: +ELLIPSIS
        1 ranks, length 1,000, at most 10 entries per rank, 4 bytes per value
        ...
        """
        kind = value_dtype(dtype)
        shape = Shape(
            self.size,
            length,
            nnz,
            kind.itemsize,
            precision=precision_of(precision, kind, "sum"),
            index_price=self.network.index_price,
        )
        print(explain.render(self._calibration, shape))

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group; ranks that still wait for this one will notice."""
        self._closed = True
        if self._progress is not None:
            self._progress.close()
        self._driver.close()
        if self._progress is not None:
            self._progress.drain()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, memo: object) -> Communicator:
        """Itself: it stands for connections.  scikit-learn copies what estimators were given."""
        return self

    def __repr__(self) -> str:
        aggregators = f", aggregators={self.aggregators}" if self.aggregators else ""
        return f"Communicator(rank={self.rank}, size={self.size}{aggregators})"

    # -- what each collective does ---------------------------------------------------------------

    def _allreduce(
        self,
        x: Any,
        algorithm: str | OmniReduce,
        op: str,
        name: str | None,
        nnz: int | None,
        precision: str | Precision | None,
        feedback: Feedback | None,
        out: Any,
        in_rank_order: bool,
    ) -> _Plan:
        vector, restore = from_any(x)
        omnireduce = algorithm if isinstance(algorithm, OmniReduce) else None
        algorithm = algorithm if isinstance(algorithm, str) else "omnireduce"
        _check_choice("algorithm", algorithm, ("auto", *ALGORITHMS))
        block = omnireduce.block if omnireduce else _own_block(algorithm, x, vector)
        reduction = _reduction(op, vector)
        _check_promise(nnz)
        sent_as = precision_of(precision, vector.dtype, op)
        rounding = self._rounding(sent_as, algorithm, vector, feedback)
        key = Key(name, vector.length, vector.dtype.itemsize, sent_as, bool(in_rank_order))
        chooser = self._chooser

        memory = None
        if out is not None:
            memory, restore = into(out, vector)

        def begin() -> _Begun:
            choice = chooser.known(key, nnz) if algorithm == "auto" else Choice(algorithm, block)
            as_it_is = choice and (ALGORITHMS[choice.algorithm].dense or choice.algorithm == "omnireduce")
            given = vector if as_it_is else vector.smaller()
            facts = vector.dtype.name, vector.length, (choice and choice.block) or 0
            precision_name = sent_as.name if sent_as else "exact"
            call = Call("allreduce", choice.algorithm if choice else "auto", op, *facts, precision_name)
            return _Begun(script(choice, given), call, given)

        def script(choice: Choice | None, given: SparseVector) -> Steps[tuple[str, SparseVector]]:
            if choice is None:
                choice = yield from chooser.agree(key, self.rank, given)
            run = ALGORITHMS[choice.algorithm].run
            if choice.algorithm == "omnireduce":
                options = omnireduce or OmniReduce(choice.block)
                run = functools.partial(run, options=options, servers=self._servers or None, out=memory)
            if rounding is None:
                return choice.algorithm, (yield from run(self.rank, self.size, given, reduction))
            with rounding:
                return choice.algorithm, (yield from run(self.rank, self.size, given, reduction, rounding))

        def finish(outcome: tuple[str, SparseVector]) -> _Finished:
            chosen, total = outcome
            if algorithm == "auto":
                chooser.saw(key, total)
            return _Finished(restore(self._mean(op, total)), total.nnz, _density(total), chosen)

        return _Plan(begin, finish, key if algorithm == "auto" and name is not None else None)

    def _aggregate(self, call: Call) -> Steps[None]:
        """What a rank that only aggregates does in a call of the workers."""
        is_known = call.operation == "allreduce" and call.algorithm in ("omnireduce", "auto")
        if not is_known or call.op not in OPS or call.dtype == "none" or call.precision != "exact":
            raise InputError(f"rank {self.rank} only aggregates, and cannot take part in {call}")
        reduction = SUM if call.op == "avg" else REDUCTIONS[call.op]
        facts = reduction, value_dtype(call.dtype), call.length
        yield from aggregate(self.rank, self.size, self._servers, *facts)

    def _rounding(
        self, precision: Precision | None, algorithm: str, vector: SparseVector, feedback: Feedback | None
    ) -> PrecisionRounding | None:
        if precision is None:
            return None
        if algorithm != "auto" and not ALGORITHMS[algorithm].supports_precision:
            those = ", ".join(name for name, row in ALGORITHMS.items() if row.supports_precision)
            raise InputError(
                f"{algorithm} adds up in many places, and would round in each; precision {precision.name} "
                f"needs one of {those}, or auto"
            )
        if feedback is not None:
            feedback.make_room(vector.length, vector.dtype)
        self._rounded += 1
        return PrecisionRounding(precision, self.rank, self._rounded, feedback)

    def _allreduce_topk(self, x: Any, k: int, algorithm: str, regions: Regions | None) -> _Plan:
        vector, _ = from_any(x)
        _check_choice("algorithm", algorithm, tuple(TOPK_ALGORITHMS))
        if not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k is {k!r}; it must be the number of entries of the result, at least 1")
        if regions is not None and (len(regions.cuts), regions.cuts[-1]) != (self.size + 1, vector.length):
            raise InputError(
                f"the regions are {len(regions.cuts) - 1} of a vector of {regions.cuts[-1]:,}, and these are "
                f"{self.size} ranks and a vector of {vector.length:,}; give None to begin anew"
            )
        reused = zlib.crc32(str(regions).encode()) if regions else 0
        kind = f"{algorithm} k={k}"
        call = Call("allreduce_topk", kind, "sum", vector.dtype.name, vector.length, detail=reused)
        script = TOPK_ALGORITHMS[algorithm].run(self.rank, self.size, vector, int(k), regions)

        def finish(result: TopkSum) -> _Finished:
            return _Finished(result, result.total.nnz, _density(result.total), algorithm)

        return _Plan.simple(script, call, vector, finish)

    def _allgather(self, x: Any) -> _Plan:
        vector, restore = from_any(x)
        given = vector.smaller()
        call = Call("allgather", dtype=vector.dtype.name)

        def finish(everybody: list[SparseVector]) -> _Finished:
            return _Finished([restore(vector) for vector in everybody], sum(v.nnz for v in everybody))

        return _Plan.simple(allgather(self.rank, self.size, given), call, given, finish)

    def _reduce_scatter(self, x: Any, op: str) -> _Plan:
        vector, restore = from_any(x)
        given = vector.smaller()
        script = split_reduce(self.rank, self.size, given, _reduction(op, vector))
        call = Call("reduce_scatter", op=op, dtype=vector.dtype.name, length=vector.length)

        def finish(mine: SparseVector) -> _Finished:
            return _Finished(restore(self._mean(op, mine).detached()), mine.nnz, _density(mine))

        return _Plan.simple(script, call, given, finish)

    def _broadcast(self, x: Any, root: int) -> _Plan:
        self._check_root(root)
        if x is None and self.rank == root:
            raise InputError("the root of a broadcast has to give something; it gave None")
        vector, restore = (SparseVector.empty(0), SparseVector.decoded) if x is None else from_any(x)
        given = vector.smaller()

        def finish(sent: SparseVector) -> _Finished:
            return _Finished(restore(sent), sent.nnz, _density(sent))

        script = broadcast(self.rank, self.size, given, root)
        return _Plan.simple(script, Call("broadcast", detail=root), given, finish)

    def _reduce(self, x: Any, op: str, root: int) -> _Plan:
        self._check_root(root)
        vector, restore = from_any(x)
        given = vector.smaller()
        script = reduce(self.rank, self.size, given, root, _reduction(op, vector))
        call = Call("reduce", op=op, dtype=vector.dtype.name, length=vector.length, detail=root)

        def finish(total: SparseVector | None) -> _Finished:
            if total is None:
                return _Finished(None)
            return _Finished(restore(self._mean(op, total)), total.nnz, _density(total))

        return _Plan.simple(script, call, given, finish)

    def _barrier(self) -> _Plan:
        script, nothing = barrier(self.rank, self.size), SparseVector.empty(0)
        return _Plan.simple(script, Call("barrier"), nothing, lambda _: _Finished(None))

    def _mean(self, op: str, total: SparseVector) -> SparseVector:
        return total.divided_by(self.size) if op == "avg" else total

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise InputError(f"root is {root}; the ranks are 0..{self.size - 1}")

    # -- how it is run ---------------------------------------------------------------------------

    def _call(self, prepare: Callable[[], _Plan], timeout: float | None) -> Any:
        """Run a collective: in this thread if nothing is in flight, else beside what is."""
        if Request.in_callback_of(self):
            raise InputError(
                "a blocking call in a done-callback would wait for itself; make calls in another thread"
            )
        self._enter()
        try:
            if self._progress is None:
                return self._run(prepare, timeout)
            if self._progress.parked:
                with self._progress.turn:
                    return self._run(prepare, timeout)
            return self._submit(self._progress, prepare, timeout).result()
        finally:
            self._leave()

    def _icall(self, prepare: Callable[[], _Plan], timeout: float | None) -> Request:
        self._enter()
        try:
            if self._progress is None:
                self._progress = Progress(self._driver)
            return self._submit(self._progress, prepare, timeout)
        finally:
            self._leave()

    def _run(self, prepare: Callable[[], _Plan], timeout: float | None) -> Any:
        try:
            plan = prepare()
            begun, limit = plan.begin(), self._limit(timeout)
        except Exception as error:
            refusal = self._refusal(error)
            self._driver.refuse(refusal)
            raise refusal from error
        started = time.perf_counter()
        try:
            outcome, traffic = self._driver.run(begun.script, begun.call, limit)
        except BaseException:
            self._chooser.forget()
            raise
        return self._finish(plan, begun, outcome, traffic, started)

    def _submit(self, progress: Progress, prepare: Callable[[], _Plan], timeout: float | None) -> Request:
        """Have the thread run a collective."""
        try:
            plan = prepare()
            limit = self._limit(timeout)
            earlier = self._latest.get(plan.key) if plan.key else None
            begun = plan.begin() if earlier is None or earlier.done() else None
        except Exception as error:
            refusal = self._refusal(error)
            progress.submit(lambda: self._refuse(refusal))
            raise refusal from error
        request = Request(self)
        if plan.key:
            self._latest[plan.key] = request
        flight = _Flight(self, plan, limit, request)
        if begun is not None:
            progress.submit(lambda: flight.start(begun))
        else:  # what it does depends on what the earlier one brings; but its place among the calls is now
            assert earlier is not None
            progress.submit(flight.reserve)
            earlier.add_done_callback(lambda _: progress.submit(flight.begin))
        return request

    def _finish(self, plan: _Plan, begun: _Begun, outcome: Any, traffic: Traffic, started: float) -> Any:
        seconds = time.perf_counter() - started
        finished = plan.finish(outcome)
        self.last = Last(
            operation=begun.call.operation,
            algorithm=finished.algorithm or begun.call.algorithm,
            precision=begun.call.precision,
            messages_sent=traffic.messages_sent,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            rounds=traffic.rounds,
            seconds=seconds,
            nnz_in=begun.vector.nnz,
            density_in=_density(begun.vector),
            nnz_out=finished.nnz_out,
            density_out=finished.density_out,
        )
        return finished.result

    # -- refusing --------------------------------------------------------------------------------

    def _enter(self) -> None:
        """One thread at a time: with two, ranks would not agree on the order of calls."""
        if self._closed:
            raise TransportError(CLOSED)
        if self.is_aggregator:
            raise InputError(f"rank {self.rank} only aggregates: it calls serve(), and no collectives")
        if not self._calling.acquire(blocking=False):
            error = self._refusal(
                InputError(
                    "two threads called this communicator at once, so their order is undefined; take turns, "
                    "use the non-blocking calls, or give each thread its own communicator with split()"
                )
            )
            self._refused.append(error)  # the other thread tells the ranks when it is through
            raise error

    def _leave(self) -> None:
        while self._refused:
            refused = self._refused.popleft()
            if self._progress is None:
                self._refuse(refused)
            else:
                self._progress.submit(functools.partial(self._refuse, refused))
        self._calling.release()
        if self._refused and self._calling.acquire(blocking=False):  # one came just before the release
            self._leave()

    def _refuse(self, error: SparsewireError, number: int | None = None) -> None:
        with suppress(TransportError):  # if it is broken, all know
            self._driver.refuse(error, number)

    def _refusal(self, error: Exception) -> SparsewireError:
        """The error that all ranks raise because this one cannot take part."""
        kind = type(error) if isinstance(error, SparsewireError) else InputError
        return kind(f"rank {self.rank}: {error}" if self.size > 1 else str(error))

    def _limit(self, timeout: float | None) -> float:
        limit = self.timeout if timeout is None else timeout
        if not isinstance(limit, int | float) or not limit > 0:
            raise InputError(f"timeout is {limit!r}; it must be a positive number of seconds")
        return float(limit)


class _Flight:
    """A collective on its way through the progress thread, where all of this happens."""

    def __init__(self, comm: Communicator, plan: _Plan, limit: float, request: Request) -> None:
        self._comm, self._plan, self._limit, self._request = comm, plan, limit, request
        self._number: int | None = None

    def reserve(self) -> None:
        with suppress(TransportError):  # it is broken, as ``begin`` will find
            self._number = self._comm._driver.reserve()

    def begin(self) -> None:
        try:
            begun = self._plan.begin()
        except Exception as error:
            refusal = self._comm._refusal(error)
            self._comm._refuse(refusal, self._number)
            self._request.set_exception(refusal)
        else:
            self.start(begun)

    def start(self, begun: _Begun) -> None:
        started = time.perf_counter()

        def end(collective: Started[Any]) -> None:
            try:
                outcome = collective.outcome()
                result = self._comm._finish(self._plan, begun, *outcome, started)
            except BaseException as error:
                self._comm._chooser.forget()
                self._request.set_exception(error)
            else:
                self._request.last = self._comm.last
                self._request.set_result(result)

        try:
            self._comm._driver.start(begun.script, begun.call, self._limit, end, self._number)
        except SparsewireError as error:
            self._request.set_exception(error)


class _Begun(NamedTuple):
    """One rank's part of a collective, ready to run."""

    script: Steps[Any]
    call: Call
    vector: SparseVector  # what it gives


class _Finished(NamedTuple):
    """What the caller gets, and what came out."""

    result: Any
    nnz_out: int = 0
    density_out: float = 0.0
    algorithm: str = ""


class _Plan(NamedTuple):
    """A call: how it begins, and what is made of its outcome."""

    begin: Callable[[], _Begun]
    finish: Callable[[Any], _Finished]
    key: Key | None = None  # calls of one key begin after one another has ended

    @classmethod
    def simple(
        cls, script: Steps[Any], call: Call, vector: SparseVector, finish: Callable[[Any], _Finished]
    ) -> _Plan:
        begun = _Begun(script, call, vector)
        return cls(lambda: begun, finish)


def _reduction(op: str, vector: SparseVector) -> Reduction:
    _check_choice("op", op, OPS)
    if op != "avg":
        return REDUCTIONS[op]
    if vector.dtype.kind == "i":
        raise InputError(f"the mean of {vector.dtype.name} values is no integer; use a float dtype")
    return SUM


def _own_block(algorithm: str, x: Any, vector: SparseVector) -> int | None:
    """By which blocks OmniReduce takes a dense vector, if nobody says: by its rows, if their length fits."""
    if algorithm != "omnireduce" or not vector.is_dense:
        return None
    row = x.shape[-1] if len(getattr(x, "shape", ())) > 1 else 0
    return int(row) if SHORTEST_ROW <= row <= LONGEST_ROW else BLOCK


def _density(vector: SparseVector) -> float:
    return vector.nnz / vector.span if vector.span else 0.0


def _check_choice(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InputError(f"unknown {what} {given!r}; known are {', '.join(known)}")


def _check_promise(nnz: int | None) -> None:
    if nnz is not None and (not isinstance(nnz, int | np.integer) or nnz < 0):
        raise InputError(f"nnz is {nnz!r}; it must be the largest number of entries of any rank")
