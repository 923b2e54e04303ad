"""What each collective does at one rank: what is sent, by which script, and what is made of the outcome.

Each function makes a ``Plan`` of a call, and raises ``InputError`` if the call is not a valid one.  Nothing
here knows threads, sockets or the order of calls; that is the lane's business.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np

from sparsewire.algorithms import (
    ALGORITHMS,
    DEFAULT_TOPK,
    TOPK_ALGORITHMS,
    Context,
    OmniReduce,
    Regions,
    TopkSum,
    aggregation,
    named,
    tree,
)
from sparsewire.algorithms.bruck import gather
from sparsewire.algorithms.bundles import Lists
from sparsewire.algorithms.split_allgather import split_reduce
from sparsewire.choosing.choose import Choice, Chooser, Key, choose_topk, fullness
from sparsewire.coding.call import Call
from sparsewire.coding.rounding import EXACT, Feedback, PrecisionRounding
from sparsewire.coding.values import Precision, precision_of
from sparsewire.communicator.convert import Restore, from_any, into
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers.protocols import Traffic
from sparsewire.errors import InputError
from sparsewire.expected import Expected
from sparsewire.reduction import REDUCTIONS, SUM, Reduction
from sparsewire.steps import Steps
from sparsewire.vector import SparseVector, value_dtype

__all__ = [
    "AllreduceOptions",
    "Group",
    "Last",
    "Plan",
    "TopkOptions",
    "aggregate",
    "allgather",
    "allreduce",
    "allreduce_topk",
    "barrier",
    "broadcast",
    "reduce",
    "reduce_scatter",
]

OPS = (*REDUCTIONS, "avg")
# Of a vector to be gathered, only its rank knows the length.  Most are a few numbers or a short text.
GATHERED_BYTES = 4096


class AllreduceOptions(TypedDict, total=False):
    """The options of ``Communicator.allreduce``, which says what they mean."""

    algorithm: str | OmniReduce
    op: str
    name: str | None
    nnz: int | None
    precision: str | Precision | None
    feedback: Feedback | None
    out: Any
    in_rank_order: bool
    timeout: float | None


class TopkOptions(TypedDict, total=False):
    """The options of ``Communicator.allreduce_topk``."""

    algorithm: str
    regions: Regions | None
    timeout: float | None


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


class Group:
    """What a call has to know about the ranks that make it, and about this one."""

    def __init__(self, rank: int, size: int, aggregators: int) -> None:
        self.rank = rank
        self.size = size  # without the ranks that only aggregate
        self.servers = range(size, size + aggregators) if aggregators else None  # they only aggregate
        self.chooser = Chooser(size, CostFigures(), aggregators)
        self.rounding_calls = 0  # how many calls have rounded so far: random numbers depend on it

    def tidy(self, place: int) -> None:
        """Drop what no call from this place on needs; see ``Chooser``."""
        self.chooser.tidy(place)


class Outcome(NamedTuple):
    """What the caller gets, and how many entries it has."""

    result: Any
    nnz: int = 0
    density: float = 0.0


class Plan(Protocol):
    """One rank's part of a collective."""

    @property
    def key(self) -> Key | None:
        """Calls of one key begin after one another has ended; None: this one does not have to wait."""

    def begin(self, place: int) -> tuple[Steps[Any], Call]:
        """The script, and the call as all ranks have to make it; ``place`` is its number among the calls."""

    def finish(self, result: Any, traffic: Traffic, seconds: float) -> tuple[Any, Last]:
        """What the caller gets for the script's result, and what the collective did."""

    def fail(self) -> None:
        """Forget what was learnt since ``begin``, because the collective has failed."""


# -- allreduce -----------------------------------------------------------------------------------


def allreduce(group: Group, x: Any, options: AllreduceOptions) -> Plan:
    """See ``Communicator.allreduce``."""
    vector, restore = from_any(x)
    algorithm, own_options = named(options.get("algorithm", "auto"))
    op, nnz, precision = options.get("op", "sum"), options.get("nnz"), options.get("precision")
    if algorithm != "auto":
        _check_choice("algorithm", algorithm, ["auto", *ALGORITHMS])
        if own_options is None and (kind := ALGORITHMS[algorithm].options) is not None:
            own_options = kind.for_input(vector, _row_length(x))
    reduction = _reduction(op, vector)
    if nnz is not None and (not isinstance(nnz, int | np.integer) or nnz < 0):
        raise InputError(f"nnz is {nnz!r}; it must be the largest number of entries of any rank")
    rounding = None
    if precision is not None:
        precision = precision_of(precision, vector.dtype, op)
        if precision is not None:
            rounding = _rounding(group, precision, algorithm, vector, options.get("feedback"))
    memory = None
    if (out := options.get("out")) is not None:
        memory, restore = into(out, vector)
    in_rank_order = bool(options.get("in_rank_order"))
    key = Key(options.get("name"), vector.length, vector.dtype.itemsize, precision, in_rank_order)
    figures = group.chooser.figures
    context = Context(reduction, rounding or EXACT, group.servers, memory, figures=figures)
    choice = None if algorithm == "auto" else Choice(algorithm, own_options, _promised_shape(group, key, nnz))
    return _Allreduce(group, group.chooser, vector, restore, op, key, nnz, context, rounding, choice)


def _promised_shape(group: Group, key: Key, nnz: int | None) -> Shape | None:
    """What all ranks know of a call whose algorithm is given."""
    if nnz is None:
        return None
    price, entries = group.chooser.figures.index_price, min(int(nnz), key.length)
    return Shape(group.size, key.length, entries, key.value_bytes, precision=key.precision, index_price=price)


@dataclass(slots=True)
class _Allreduce:
    """An allreduce.  What it does is decided when it begins: with "auto", it depends on the calls before."""

    group: Group
    chooser: Chooser
    vector: SparseVector
    restore: Restore
    op: str
    alike: Key
    promise: int | None  # the caller's: no rank has more entries
    context: Context
    rounding: PrecisionRounding | None
    named: Choice | None  # None: "auto" chooses
    algorithm: str = "auto"
    nnz_in: int = 0
    place: int = 0
    call: Call = field(init=False)

    @property
    def key(self) -> Key | None:
        return self.alike if self.named is None and self.alike.name is not None else None

    def begin(self, place: int) -> tuple[Steps[SparseVector], Call]:
        self.place = place
        choice = self.named or self.chooser.known(self.alike, place, self.promise)
        detail = min(self.promise or 0, 2**32 - 1)  # decides how pieces are gathered, so ranks must agree
        if choice is None:
            script = self._agree_and_run()
        else:
            if choice.options is not None:
                detail = choice.options.detail
            keeps_input_form = ALGORITHMS[choice.algorithm].keeps_input_form
            script = self._run(choice, self.vector if keeps_input_form else self.vector.smaller())
        precision = "exact" if self.alike.precision is None else self.alike.precision.name
        self.call = _allreduce_call(
            self.algorithm, self.op, self.vector.dtype, self.vector.length, detail, precision
        )
        return (script if self.rounding is None else _settling(script, self.rounding)), self.call

    def _run(self, choice: Choice, given: SparseVector) -> Steps[SparseVector]:
        self.algorithm, self.nnz_in = choice.algorithm, given.nnz
        context = self.context._replace(options=choice.options, shape=choice.shape)
        return ALGORITHMS[choice.algorithm].run(self.group.rank, self.group.size, given, context)

    def _agree_and_run(self) -> Steps[SparseVector]:
        """The script of a call that no rank can choose for alone."""
        vector, full = self.vector, fullness(self.vector, self.group.size)
        choice = yield from self.chooser.agree(self.alike, self.group.rank, full)
        if not ALGORITHMS[choice.algorithm].keeps_input_form:
            vector = vector.as_dense() if full.nnz == vector.length else vector.as_sparse()
        script = self._run(choice, vector)
        self.nnz_in = full.nnz
        return (yield from script)

    def finish(self, result: SparseVector, traffic: Traffic, seconds: float) -> tuple[Any, Last]:
        if self.named is None:
            self.chooser.saw(self.alike, result, self.place)
        given = self.restore(_mean(self.op, self.group, result))
        outcome = Outcome(given, result.nnz, _density(result))
        length = self.vector.length
        return given, _last(self.call, self.algorithm, traffic, seconds, self.nnz_in, length, outcome)

    def fail(self) -> None:
        self.chooser.failed(self.alike)


@functools.lru_cache(maxsize=256)
def _allreduce_call(
    algorithm: str, op: str, dtype: np.dtype[Any], length: int, detail: int, precision: str
) -> Call:
    return Call("allreduce", algorithm, op, dtype.name, length, detail, precision)


def _settling(script: Steps[SparseVector], rounding: PrecisionRounding) -> Steps[SparseVector]:
    """The script; if it fails, what the rounding took out of its feedback goes back."""
    with rounding:
        return (yield from script)


def _row_length(x: Any) -> int:
    """How many values a row of the caller's array has, and 0 if it has no rows."""
    shape: Any = getattr(x, "shape", ())
    return int(shape[-1]) if len(shape) > 1 else 0


def _rounding(
    group: Group, precision: Precision, algorithm: str, vector: SparseVector, feedback: Feedback | None
) -> PrecisionRounding:
    if algorithm != "auto" and not ALGORITHMS[algorithm].supports_precision:
        able = ", ".join(name for name, row in ALGORITHMS.items() if row.supports_precision)
        raise InputError(
            f"{algorithm} adds up in many places, and would round in each; precision {precision.name} "
            f"needs one of {able}, or auto"
        )
    if feedback is not None:
        feedback.make_room(vector.length, vector.dtype)
    group.rounding_calls += 1
    return PrecisionRounding(precision, group.rank, group.rounding_calls, feedback, vector.packed)


def aggregate(group: Group, call: Call) -> Steps[None]:
    """The script of a rank that only aggregates, for a call of the others."""
    script = aggregation(call.algorithm) if call.operation == "allreduce" else None
    if script is None or call.op not in OPS or call.dtype == "none" or call.precision != "exact":
        raise InputError(f"rank {group.rank} only aggregates, and cannot take part in {call}")
    assert group.servers is not None
    reduction = SUM if call.op == "avg" else REDUCTIONS[call.op]
    yield from script(group.rank, group.size, group.servers, reduction, value_dtype(call.dtype), call.length)


# -- the other collectives -----------------------------------------------------------------------


@dataclass(slots=True)
class _Simple:
    """A collective that is the same whatever was called before."""

    call: Call
    script: Steps[Any]
    given: SparseVector
    outcome_of: Callable[[Any], Outcome]
    algorithm: str = ""
    key: None = None

    def begin(self, place: int) -> tuple[Steps[Any], Call]:
        return self.script, self.call

    def finish(self, result: Any, traffic: Traffic, seconds: float) -> tuple[Any, Last]:
        outcome, given = self.outcome_of(result), self.given
        last = _last(self.call, self.algorithm, traffic, seconds, given.nnz, given.span, outcome)
        return outcome.result, last

    def fail(self) -> None:
        """Nothing was learnt."""


def allreduce_topk(group: Group, x: Any, k: int, options: TopkOptions) -> Plan:
    """See ``Communicator.allreduce_topk``."""
    vector, _ = from_any(x)
    algorithm, regions = options.get("algorithm", DEFAULT_TOPK), options.get("regions")
    _check_choice("algorithm", algorithm, ["auto", *TOPK_ALGORITHMS])
    if not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k is {k!r}; it must be the number of entries of the result, at least 1")
    if regions is not None and (len(regions.cuts), regions.cuts[-1]) != (group.size + 1, vector.length):
        raise InputError(
            f"the regions are {len(regions.cuts) - 1} of a vector of {regions.cuts[-1]:,}, and these are "
            f"{group.size} ranks and a vector of {vector.length:,}; give None to begin anew"
        )
    figures = group.chooser.figures
    if algorithm == "auto":
        most, price = min(int(k), vector.length), figures.index_price
        shape = Shape(group.size, vector.length, most, vector.dtype.itemsize, index_price=price)
        algorithm = choose_topk(figures, shape)
    reused = zlib.crc32(str(regions).encode()) if regions else 0
    kind = f"{algorithm} k={k}"
    call = Call("allreduce_topk", kind, "sum", vector.dtype.name, vector.length, detail=reused)
    run, context = TOPK_ALGORITHMS[algorithm].run, Context(figures=figures)
    script = run(group.rank, group.size, vector, int(k), regions, context)

    def outcome_of(result: TopkSum) -> Outcome:
        given = result._replace(total=result.total.own(), left=result.left.own())
        return Outcome(given, given.total.nnz, _density(given.total))

    return _Simple(call, script, vector, outcome_of, algorithm)


def allgather(group: Group, x: Any) -> Plan:
    """See ``Communicator.allgather``."""
    vector, restore = from_any(x)
    given = vector.smaller()

    def outcome_of(everybody: list[SparseVector]) -> Outcome:
        return Outcome([restore(vector) for vector in everybody], sum(v.nnz for v in everybody))

    wholes = Lists([Expected(dtype=vector.dtype)] * group.size)  # of any length
    figures = group.chooser.figures
    script = gather(group.rank, group.size, given, wholes, figures, lambda parts: parts * GATHERED_BYTES)
    return _Simple(Call("allgather", dtype=vector.dtype.name), script, given, outcome_of)


def reduce_scatter(group: Group, x: Any, op: str) -> Plan:
    """See ``Communicator.reduce_scatter``."""
    vector, restore = from_any(x)
    given, context = vector.smaller(), Context(_reduction(op, vector))

    def outcome_of(mine: SparseVector) -> Outcome:
        return Outcome(restore(_mean(op, group, mine).detached()), mine.nnz, _density(mine))

    call = Call("reduce_scatter", op=op, dtype=vector.dtype.name, length=vector.length)
    return _Simple(call, split_reduce(group.rank, group.size, given, context), given, outcome_of)


def broadcast(group: Group, x: Any, root: int) -> Plan:
    """See ``Communicator.broadcast``."""
    _check_root(group, root)
    if x is None and group.rank == root:
        raise InputError("the root of a broadcast has to give something; it gave None")
    vector, restore = (SparseVector.empty(0), SparseVector.own) if x is None else from_any(x)
    given = vector.smaller()

    def outcome_of(sent: SparseVector) -> Outcome:
        return Outcome(restore(sent), sent.nnz, _density(sent))

    script = tree.broadcast(group.rank, group.size, given, root)
    return _Simple(Call("broadcast", detail=root), script, given, outcome_of)


def reduce(group: Group, x: Any, op: str, root: int) -> Plan:
    """See ``Communicator.reduce``."""
    _check_root(group, root)
    vector, restore = from_any(x)
    given, reduction = vector.smaller(), _reduction(op, vector)

    def outcome_of(total: SparseVector | None) -> Outcome:
        if total is None:
            return Outcome(None)
        return Outcome(restore(_mean(op, group, total)), total.nnz, _density(total))

    call = Call("reduce", op=op, dtype=vector.dtype.name, length=vector.length, detail=root)
    return _Simple(call, tree.reduce(group.rank, group.size, given, root, reduction), given, outcome_of)


def barrier(group: Group) -> Plan:
    """See ``Communicator.barrier``."""
    script, nothing = tree.barrier(group.rank, group.size), SparseVector.empty(0)
    return _Simple(Call("barrier"), script, nothing, lambda _: Outcome(None))


# -- what several of them need -------------------------------------------------------------------


def _reduction(op: str, vector: SparseVector) -> Reduction:
    _check_choice("op", op, OPS)
    if op != "avg":
        return REDUCTIONS[op]
    if vector.dtype.kind == "i":
        raise InputError(f"the mean of {vector.dtype.name} values is no integer; use a float dtype")
    return SUM


def _mean(op: str, group: Group, total: SparseVector) -> SparseVector:
    return total.divided_by(group.size) if op == "avg" else total


def _density(vector: SparseVector) -> float:
    return vector.nnz / vector.span if vector.span else 0.0


def _check_choice(what: str, given: Any, known: Collection[str]) -> None:
    if not isinstance(given, str) or given not in known:
        raise InputError(f"unknown {what} {given!r}; known are {', '.join(known)}")


def _check_root(group: Group, root: int) -> None:
    if not 0 <= root < group.size:
        raise InputError(f"root is {root}; the ranks are 0..{group.size - 1}")


def _last(
    call: Call, algorithm: str, traffic: Traffic, seconds: float, nnz: int, length: int, outcome: Outcome
) -> Last:
    return Last(
        call.operation,
        algorithm,
        call.precision,
        traffic.messages_sent,
        traffic.bytes_sent,
        traffic.bytes_received,
        traffic.rounds,
        seconds,
        nnz,
        nnz / length if length else 0.0,
        outcome.nnz,
        outcome.density,
    )
