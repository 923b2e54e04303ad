"""No payload that does not belong to the call reaches a sum.

One rank sends, in place of one of its messages, something that decodes and is valid by itself.  Whoever gets
it raises WireError, which names the sender.  This is tried with every message of every script.
"""

from functools import partial

import numpy as np
import pytest

from sparsewire.algorithms import ALGORITHMS, PLAIN, TOPK_ALGORITHMS, Context, OmniReduce
from sparsewire.algorithms.largest import largest
from sparsewire.algorithms.patterns import allgather
from sparsewire.algorithms.split_allgather import split_reduce
from sparsewire.algorithms.tree import barrier, broadcast, reduce
from sparsewire.cost import CostFigures
from sparsewire.drivers import local
from sparsewire.errors import WireError
from sparsewire.expected import Expected
from sparsewire.reduction import MAX, SUM, concat
from sparsewire.steps import Send
from sparsewire.vector import SparseVector

LENGTH, K = 300, 10
GATHERING = ("allgather_sum", "split_allgather", "balanced")
# Messages are so dear that four ranks gather everything along a tree.
TREE = Context(figures=CostFigures(overhead=1.0))
FLOAT32 = np.dtype("float32")


def own(rank, nnz=40):
    chance = np.random.default_rng(rank)
    indices = np.sort(chance.choice(LENGTH, nnz, replace=False))
    return SparseVector(LENGTH, indices, chance.normal(size=nnz).astype("float32"))


def barrier_of(rank, size, vec):
    return barrier(rank, size)


def largest_of(rank, size, vec):
    return largest(rank, size, [vec.nnz, 3], LENGTH)


def uneven(rank, size, vec, k, context=PLAIN):
    """Entries in one corner, so that an owner keeps too many and they are dealt out."""
    corner = SparseVector(LENGTH, np.arange(2 * k), np.arange(1, 2 * k + 1, dtype="float32") * (rank + 1))
    return TOPK_ALGORITHMS["ok_topk"].run(rank, size, corner, k, context=context)


# name -> script(rank, size, vector)
SCRIPTS = {
    **{name: row.run for name, row in ALGORITHMS.items()},
    "allgather_sum in segments": partial(ALGORITHMS["allgather_sum"].run, segment_bytes=64),
    "omnireduce of blocks": partial(ALGORITHMS["omnireduce"].run, context=Context(options=OmniReduce(16))),
    **{name: partial(row.run, k=K) for name, row in TOPK_ALGORITHMS.items()},
    "ok_topk, dealt out": partial(uneven, k=K),
    **{f"{name} along a tree": partial(ALGORITHMS[name].run, context=TREE) for name in GATHERING},
    "ok_topk along a tree": partial(TOPK_ALGORITHMS["ok_topk"].run, k=K, context=TREE),
    "ok_topk along a tree, dealt out": partial(uneven, k=K, context=TREE),
    "reduce_scatter": split_reduce,
    "reduce": partial(reduce, root=0),
    "barrier": barrier_of,
    "largest": largest_of,
}
# Here only the sender knows the length.
OF_ANY_LENGTH = {
    "allgather": lambda rank, size, vec: allgather(rank, size, vec, [Expected(dtype=FLOAT32)] * size),
    "broadcast": partial(broadcast, root=0),
}


def empty(length, start, stop, dtype):
    indices = np.empty(0, np.uint32 if length <= 2**32 else np.uint64)
    return SparseVector.piece(length, start, stop, indices, np.empty(0, dtype))


def full(length, start, stop, dtype):
    return SparseVector.piece(length, start, stop, None, np.ones(stop - start, dtype))


def longer(p):
    return empty(p.length + 2**20, 0, p.length + 2**20, p.dtype)


def huge(p):
    return empty(2**62, 0, 2**62, p.dtype)


def longer_and_full(p):
    return full(p.length + 1000, p.start, p.stop + 1000, p.dtype)


def elsewhere(p):
    return empty(p.length + 1, p.start + 1, p.stop + 1, p.dtype)


def of_another_dtype(p):
    return p.with_values(p.values.astype("int32" if p.dtype != "int32" else "float64"))


def a_list(p):
    return [p]


def too_many(p):
    return [p] * 7


OF_LENGTH = [longer, huge, longer_and_full]
FORGERIES = [*OF_LENGTH, elsewhere, of_another_dtype, a_list, too_many]


def forged(payload, forgery):
    """Of a list, the last piece is the foreign one."""
    if not isinstance(payload, list):
        return forgery(payload)
    if forgery in (a_list, too_many):
        return payload[0] if forgery is a_list else payload + payload
    return [*payload[:-1], forgery(payload[-1])]


def tampering(script, position, forge, sent):
    """The script, whose message number ``position`` is another one; all messages are noted in ``sent``."""
    received = None
    while True:
        try:
            steps = script.send(received)
        except StopIteration as end:
            return end.value
        changed = []
        for step in steps:
            if isinstance(step, Send):
                if len(sent) == position:
                    step = Send(step.peer, forge(step.payload))
                sent.append(step.payload)
            changed.append(step)
        received = yield changed


def run(script, size, sender, position, forge, seed=0):
    """How many messages the sender sent."""
    sent = []
    scripts = [script(rank, size, own(rank)) for rank in range(size)]
    scripts[sender] = tampering(scripts[sender], position, forge, sent)
    local.run(scripts, seed)
    return len(sent)


def assert_refused_everywhere(script, size, forgeries):
    for sender in range(size):
        for position in range(run(script, size, sender, -1, None)):
            for forgery in forgeries:
                with pytest.raises(WireError, match=f"^rank {sender} "):  # noqa: PT012
                    run(script, size, sender, position, lambda p, forgery=forgery: forged(p, forgery))
                    pytest.fail(f"message {position} of rank {sender}: {forgery.__name__} was accepted")


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_message_of_every_script_is_compared_with_the_call(name, size):
    forgeries = FORGERIES
    if name == "omnireduce of blocks":  # of the values of blocks only their number counts
        forgeries = [longer, longer_and_full, of_another_dtype, a_list, too_many]
    assert_refused_everywhere(SCRIPTS[name], size, forgeries)


@pytest.mark.parametrize("size", [2, 3])
def test_an_allgather_checks_all_but_the_length(size):
    def part(p):
        return empty(p.length, 1, p.length, p.dtype)

    assert_refused_everywhere(OF_ANY_LENGTH["allgather"], size, [part, of_another_dtype, a_list, too_many])


@pytest.mark.parametrize("size", [2, 3])
def test_a_broadcast_checks_that_it_is_one_whole_vector(size):
    def part(p):
        return empty(p.length, 1, p.length, p.dtype)

    assert_refused_everywhere(OF_ANY_LENGTH["broadcast"], size, [part, a_list, too_many])


# -- numbers that ranks tell each other ----------------------------------------------------------


def numbers(change):
    """A forgery that changes the numbers of a dense vector."""

    def forge(p):
        values = p.values.copy()
        change(values)
        return SparseVector.from_dense(values)

    return forge


def put(place, number):
    return numbers(lambda values: values.__setitem__(place, number))


FEWER = lambda p: SparseVector.from_dense(p.values[:-1])  # noqa: E731
NONE = lambda p: SparseVector.from_dense(p.values[:0])  # noqa: E731
BACKWARDS = numbers(lambda values: values[1:].sort() or values.__setitem__(slice(1, None), values[:0:-1]))
AS_ENTRIES = lambda p: p.as_sparse()  # noqa: E731


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("name", "position", "forge"),
    [
        *(("hybrid", 0, forge) for forge in (put(0, np.nan), put(0, -1), put(0, LENGTH + 1), put(0, 0.5))),
        *(("hybrid", 0, forge) for forge in (put(0, np.inf), FEWER, AS_ENTRIES)),
        *(("balanced", 0, forge) for forge in (put(0, -1), put(3, LENGTH + 1), BACKWARDS, FEWER, NONE)),
        *(("ok_topk", 0, forge) for forge in (put(0, -1), put(3, LENGTH + 1), BACKWARDS, FEWER, NONE)),
    ],
)
def test_numbers_that_cannot_be_are_refused(name, position, forge, size):
    with pytest.raises(WireError, match=r"^rank 1 "):
        run(SCRIPTS[name], size, 1, position, forge)


@pytest.mark.parametrize(
    "forge",
    [put(0, -1), put(1, K + 1), put(2, K + 1), put(3, 5000), put(-1, 1), put(-2, -1), FEWER, NONE],
)
def test_what_an_owner_cannot_tell_is_refused(forge):
    """With two ranks, a rank sends its report, its entries, what it tells as an owner, and what it keeps."""
    with pytest.raises(WireError, match=r"^rank 1 "):
        run(SCRIPTS["ok_topk"], 2, 1, 2, forge)


def test_more_entries_than_a_rank_may_send_are_refused():
    def crowd(p):
        return SparseVector(LENGTH, np.arange(LENGTH), np.ones(LENGTH, "float32")).range(p.start, p.stop)

    for name, position in (("gtopk", 0), ("ok_topk", 1), ("ok_topk", 3)):
        with pytest.raises(WireError, match=r"^rank 1 sent .* entries"):
            run(SCRIPTS[name], 2, 1, position, crowd)


# -- a script that does not say what it expects --------------------------------------------------


@pytest.mark.parametrize("op", [SUM, MAX])
@pytest.mark.parametrize("forgery", [longer, longer_and_full, elsewhere, of_another_dtype])
def test_no_sum_is_made_of_pieces_that_do_not_fit(op, forgery):
    for piece in (own(0), own(0).as_dense(), own(0, nnz=LENGTH)):
        for add in (op.merge, op.dense):
            with pytest.raises(WireError, match="cannot be added up"):
                add([piece, forgery(piece)])


def test_no_pieces_are_joined_that_overlap():
    """Indices would not increase, and what writes by index relies on that."""
    left, right = own(0).split_evenly(2)
    for pieces in ([right, left], [left, left], [left.as_dense(), own(1).range(200, LENGTH)]):
        with pytest.raises(WireError, match="cannot be joined"):
            concat(pieces)
