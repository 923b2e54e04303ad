"""Communicator: what users hold.  Its calls are collective: all ranks make the same, in the same order."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from sparsewire import kernels
from sparsewire.algorithms import TopkSum
from sparsewire.choosing import explain
from sparsewire.choosing.calibration import ASSUMED, Calibration, Fingerprint, host_number, load
from sparsewire.choosing.choose import Chooser
from sparsewire.coding.values import Precision, precision_of
from sparsewire.communicator import collectives
from sparsewire.communicator.collectives import AllreduceOptions, Group, Last, Plan, TopkOptions
from sparsewire.communicator.lane import Lane
from sparsewire.communicator.request import Request
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers import note
from sparsewire.drivers.protocols import Driver, ServingDriver
from sparsewire.errors import InputError, TransportError
from sparsewire.vector import SparseVector, value_dtype

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Communicator", "Last"]


FORMING_S = 5.0  # what a new group is given to make its first calls, even if the time of ``shrink`` is over


class Communicator:
    """A group of ranks; make one with ``sparsewire.init()``.

    Calls with an ``i`` before their name return a ``Request`` at once; what is given to them must not be
    written to before it has ended.  One thread at a time may call; any number of calls can be in flight.
    Every call takes a ``timeout`` in seconds, instead of the communicator's own.

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
        self.aggregators = aggregators  # ranks that only aggregate; with none, "omnireduce" adds up at all
        self.survivors = tuple(range(driver.size))  # after a change: the old ranks, by new rank
        self.fingerprint: Fingerprint | None = None  # under which figures are kept; rank 0 alone has it
        self._driver = driver
        self._group = Group(driver.rank, driver.size - aggregators, aggregators)
        self._lane = Lane(driver, self._group.size, timeout, self._group.tidy)
        self._use(Calibration(ASSUMED["local", False]))

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        """How many ranks make calls; those that only aggregate are not counted, and come after them."""
        return self._group.size

    @property
    def timeout(self) -> float:
        """Seconds after which a call fails, unless it gives another ``timeout``."""
        return self._lane.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._lane.timeout = seconds

    @property
    def last(self) -> Last | None:
        """What the last collective that has ended did at this rank."""
        return self._lane.last

    @property
    def is_aggregator(self) -> bool:
        """Does this rank only aggregate?  Then ``serve`` is all that it calls."""
        return self.rank >= self.size

    def serve(self) -> None:
        """Aggregate for the workers' calls of "omnireduce"; returns when all workers have left.

        A call that is refused or that differs is the workers' to raise, and the next one is served; what
        breaks the communicator is raised here too.
        """
        self._lane.check_open()
        if not self.is_aggregator:
            those = ", ".join(map(str, self._group.servers or ())) or "none"
            raise InputError(f"rank {self.rank} is a worker; ranks that aggregate and call serve(): {those}")
        cast(ServingDriver, self._driver).serve(functools.partial(collectives.aggregate, self._group))

    # -- collectives -----------------------------------------------------------------------------

    def allreduce(self, x: Any, **options: Unpack[AllreduceOptions]) -> Any:
        """Everybody's sum, mean (``op="avg"``), maximum or minimum, the same bits on every rank.

        ``x`` is a numpy array, a torch tensor (dense or sparse COO), a scipy.sparse matrix, a
        SparseVector or a tuple ``(length, indices, values)``; the result is of the same kind.  All ranks
        give the same options, apart from ``feedback``, ``out`` and ``timeout``:

        ``algorithm="auto"``: the one with the shortest predicted time; the names are those of
        ``sparsewire.ALGORITHMS``.  "omnireduce" takes a dense ``x`` by blocks: its rows if it has any, or 256
        values.  An ``OmniReduce`` in place of a name says what else it can do.

        ``op="sum"``: or "avg", "max", "min".  For the last two, positions that are not stored count as zero,
        which is what they are.

        ``name=None``: calls with the same name are taken to be alike.  With "auto", later ones go by what was
        seen in earlier ones, and only the first asks all ranks.

        ``nnz=None``: a promise that no rank has more entries; with it, "auto" does not have to ask, and any
        algorithm knows whether direct messages or a tree gather pieces faster.  All ranks give the same.

        ``precision=None``: how values travel, if in fewer bits: "float16", "bfloat16", or "qsgd2", "qsgd4",
        "qsgd8" (``QSGD``), which is right on average.  Every rank's values are rounded once, and in some
        algorithms the sums once more; sums are made in the dtype of ``x``.

        ``feedback=None``: a ``Feedback`` keeps what rounding left out, for the next call.

        ``out=None``: an array or a tensor like a dense ``x`` to which the result is written; it may be ``x``
        itself.  If the call fails, what is in it is undefined.

        ``in_rank_order=False``: if set, "auto" chooses among the algorithms that add up in rank order, so the
        bits of a sum do not depend on the choice.

        ``timeout=None``: seconds after which the call fails; None is the communicator's own.
        """
        _check_options("allreduce", options, AllreduceOptions)
        return self._lane.run(options.get("timeout"), collectives.allreduce, self._group, x, options)

    def iallreduce(self, x: Any, **options: Unpack[AllreduceOptions]) -> Request:
        """``allreduce`` in the background; calls of one ``name`` follow one another, others overlap."""
        _check_options("iallreduce", options, AllreduceOptions)
        return self._lane.start(options.get("timeout"), collectives.allreduce, self._group, x, options)

    def allreduce_topk(self, x: Any, k: int, **options: Unpack[TopkOptions]) -> TopkSum:
        """The k largest entries of the sum, ``total``, the same bits on every rank; and what is ``left``.

        Only a rank's own k largest take part.  All ranks' ``left`` together are what ``total`` is without:
        add them to what is summed next, and nothing is lost.  The options are:

        ``algorithm="ok_topk"``: one of ``sparsewire.TOPK_ALGORITHMS``, or "auto": the one of lowest predicted
        time for this k, which is the same on every rank.

        ``regions=None``: what the last call returned, which spares a round; all ranks give the same.

        ``timeout=None``: seconds after which the call fails; None is the communicator's own.

        >>> import numpy as np, sparsewire as sw
        >>> total, left, _ = sw.init().allreduce_topk(np.array([3.0, -4.0, 0.5]), 1)
        >>> total.to_dense(), left.to_dense()
        (array([ 0., -4.,  0.]), array([3. , 0. , 0.5]))
        """
        _check_options("allreduce_topk", options, TopkOptions)
        make = collectives.allreduce_topk
        result: TopkSum = self._lane.run(options.get("timeout"), make, self._group, x, k, options)
        return result

    def iallreduce_topk(self, x: Any, k: int, **options: Unpack[TopkOptions]) -> Request:
        """``allreduce_topk`` in the background."""
        _check_options("iallreduce_topk", options, TopkOptions)
        return self._lane.start(
            options.get("timeout"), collectives.allreduce_topk, self._group, x, k, options
        )

    def allgather(self, x: Any, *, timeout: float | None = None) -> list[Any]:
        """Everybody's ``x``, in rank order; lengths may differ, the dtype may not.

        >>> import numpy as np, sparsewire as sw
        >>> sw.init().allgather(np.array([1, 2]))
        [array([1, 2])]
        """
        everybody: list[Any] = self._lane.run(timeout, collectives.allgather, self._group, x)
        return everybody

    def iallgather(self, x: Any, *, timeout: float | None = None) -> Request:
        """``allgather`` in the background."""
        return self._lane.start(timeout, collectives.allgather, self._group, x)

    def reduce_scatter(self, x: Any, *, op: str = "sum", timeout: float | None = None) -> Any:
        """This rank's range of what ``allreduce`` gives, as a vector of its own.

        The ranges are in rank order and differ by at most one position.
        """
        return self._lane.run(timeout, collectives.reduce_scatter, self._group, x, op)

    def ireduce_scatter(self, x: Any, *, op: str = "sum", timeout: float | None = None) -> Request:
        """``reduce_scatter`` in the background."""
        return self._lane.start(timeout, collectives.reduce_scatter, self._group, x, op)

    def broadcast(self, x: Any = None, *, root: int = 0, timeout: float | None = None) -> Any:
        """The root's ``x``.  Other ranks give one of the same kind, or None for a SparseVector."""
        return self._lane.run(timeout, collectives.broadcast, self._group, x, root)

    def ibroadcast(self, x: Any = None, *, root: int = 0, timeout: float | None = None) -> Request:
        """``broadcast`` in the background."""
        return self._lane.start(timeout, collectives.broadcast, self._group, x, root)

    def reduce(self, x: Any, *, op: str = "sum", root: int = 0, timeout: float | None = None) -> Any:
        """What ``allreduce`` gives at the root, None elsewhere."""
        return self._lane.run(timeout, collectives.reduce, self._group, x, op, root)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Return when every rank has called it."""
        self._lane.run(timeout, collectives.barrier, self._group)

    def refuse(self, error: Exception) -> NoReturn:
        """Instead of the next collective: raise the error on every rank, as this one cannot take part."""

        def cannot() -> Plan:
            raise error

        self._lane.run(None, cannot)
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

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """A communicator of the ranks that are left; all of them call this after a ``TransportError``.

        They keep their order, and ``survivors`` of the result has their old ranks.  This communicator is
        closed, and what is in flight fails.  A rank that does not answer within ``timeout`` seconds is left
        out, if those who answer are more than half of the ranks that are not dead.  A rank that was left out
        raises PeerLostError.  ``docs/elastic.md`` says what is promised.

        >>> import sparsewire as sw
        >>> sw.init().shrink().survivors
        (0,)
        """
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        driver, group = self._lane.leave(timeout, self._driver.shrink)
        return Communicator.formed(driver, self.size + self.aggregators, self.timeout, deadline, group)

    def grow(self, *, at_least: int = 0, timeout: float | None = None) -> Communicator:
        """A communicator of these ranks and of those who wait in ``sparsewire.join()``; all ranks call this.

        These ranks keep their numbers, and newcomers follow.  This communicator is then closed.  If nobody
        waits, it is returned as it is.  Rank 0 waits until ``at_least`` so many have come, but at most half
        of ``timeout`` seconds.  A newcomer that dies meanwhile is left out, as ``shrink`` does it.
        """
        if self.aggregators:
            raise InputError(f"a group with {self.aggregators} aggregators cannot grow")
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        waiting = self._lane.look(timeout, lambda limit: self._driver.newcomers(at_least, limit / 2))
        said = note.to_vector([self._driver.invite().decode(), waiting])
        pages = self.allgather(said, timeout=timeout)
        everybody = [note.from_vector(rank, page) for rank, page in enumerate(pages)]
        invitations, newcomers = [page[0].encode() for page in everybody], everybody[0][1]
        if not newcomers:
            return self
        driver = self._lane.leave(timeout, lambda _: self._driver.grow(invitations, newcomers))
        return Communicator.formed(driver, self.size, self.timeout, deadline)

    @property
    def rendezvous(self) -> tuple[str, int]:
        """The host and port for ``sparsewire.join(address=...)``; it moves if the host of rank 0 is lost."""
        return self._driver.rendezvous

    @classmethod
    def formed(
        cls, driver: Driver, before: int, timeout: float, deadline: float, ranks: Sequence[int] | None = None
    ) -> Communicator:
        """The communicator of a new group; if one of its ranks dies meanwhile, it is formed of the others.

        There were ``before`` ranks, and ``ranks`` are the old ones by place; without them, nobody has left.
        """
        ranks = range(driver.size) if ranks is None else ranks
        while True:
            remaining = deadline - time.monotonic()
            try:  # half of the time, because a silent rank must be left out in the other half
                comm = cls.of(driver, max(remaining / 2, FORMING_S))
            except TransportError:
                if deadline < time.monotonic():
                    driver.close()
                    raise
                driver, group = driver.shrink(deadline - time.monotonic())
                ranks = [ranks[place] for place in group]
            else:
                comm.timeout = timeout
                comm.survivors = tuple(rank for rank in ranks if rank < before)
                return comm

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
        self._group.chooser = Chooser(self.size, calibration.network, self.aggregators)
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
            aggregators=self.aggregators,
        )
        print(explain.render(self._calibration, shape))

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group; ranks that still wait for this one will notice."""
        self._lane.close()

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


def _check_options(method: str, options: Mapping[str, Any], known: Any) -> None:
    """Raise a TypeError, as Python does for a keyword argument that a function does not have."""
    if not options.keys() <= known.__optional_keys__:
        unknown = next(name for name in options if name not in known.__optional_keys__)
        names = ", ".join(known.__annotations__)
        raise TypeError(
            f"Communicator.{method}() got an unexpected keyword argument {unknown!r}; known are {names}"
        )
