"""OmniReduce's messages: whatever is wrong with one is noticed before anything of it is used."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsewire.algorithms import Context
from sparsewire.algorithms.omnireduce import OmniReduce, aggregate, blocks, omnireduce, pairs
from sparsewire.algorithms.omnireduce.block_sources import DenseBlocks, SparseBlocks
from sparsewire.algorithms.omnireduce.message import CONTRIBUTION, RESULT, Message, Terms
from sparsewire.errors import CallMismatchError, WireError
from sparsewire.reduction import SUM
from sparsewire.steps import RecvAny
from sparsewire.testing import dense
from sparsewire.vector import VALUE_DTYPES, SparseVector
from strategies import sparse_vectors

WORKERS, SERVERS = (0, 1), (2, 3)
BLOCK, BLOCKS, LENGTH = 4, 25, 98  # the last block is shorter
KIND, NUMBER, SIZE, SLOTS, WIDTH, ARRIVAL, FIRST = range(7)  # of a message's numbers
UNTOUCHED = 7.0

many = settings(max_examples=max(350, settings.default.max_examples))


class Exchange:
    """Two workers and two aggregators in the middle of a sum, and their messages in the order sent."""

    def __init__(self, form):
        self.outs = [np.full(LENGTH, UNTOUCHED, np.float32) for _ in WORKERS]
        self.roles = getattr(self, f"_{form}")()
        self.queue = deque((worker, send) for worker in WORKERS for send in self.roles[worker].begin())

    def _pairs(self):
        terms, share = Terms(0, slots=2, width=5), pairs.Stripes(LENGTH, len(SERVERS)).share
        vectors = [SparseVector(LENGTH, range(LENGTH), np.full(LENGTH, 2.0**w, np.float32)) for w in WORKERS]
        workers = [pairs.Worker(vector, terms, SERVERS) for vector in vectors]
        rest = terms, len(WORKERS), SUM, np.dtype(np.float32)
        return [*workers, *(pairs.Aggregator(place, share, *rest) for place in range(len(SERVERS)))]

    def _blocks(self):
        vectors = [SparseVector.from_dense(np.full(LENGTH, 2.0**w, np.float32)) for w in WORKERS]
        return self._of_blocks(map(DenseBlocks, vectors, (BLOCK, BLOCK), self.outs))

    def _sparse_blocks(self):
        vectors = [SparseVector(LENGTH, range(LENGTH), np.full(LENGTH, 2.0**w, np.float32)) for w in WORKERS]
        return self._of_blocks(map(SparseBlocks, vectors, (BLOCK, BLOCK)))

    def _of_blocks(self, sources):
        layout = blocks.Layout(LENGTH, len(SERVERS), Terms(BLOCK, slots=2, width=2))
        workers = [blocks.Worker(source, layout, SERVERS) for source in sources]
        rest = layout, len(WORKERS), SUM, np.dtype(np.float32)
        return [*workers, *(blocks.Aggregator(place, *rest) for place in range(len(SERVERS)))]

    def advance(self):
        source, send = self.queue.popleft()
        self.queue.extend((send.peer, reply) for reply in self.hand_over(source, send.peer, send.payload))

    def hand_over(self, source, target, payload):
        return self.roles[target].on_message(source, Message.read(source, payload))

    def upcoming(self, target, messages=0):
        """The source and the payload of the next message to a rank, once it has read so many."""
        while True:
            source, send = self.queue[0]
            if send.peer == target and not messages:
                return source, send.payload
            messages -= send.peer == target
            self.advance()

    def assert_refused(self, source, target, payload, error=WireError):
        before = [out.tobytes() for out in self.outs]
        with pytest.raises(error, match=rf"^rank {source} "):
            self.hand_over(source, target, payload)
        assert [out.tobytes() for out in self.outs] == before


def refusal(act, *args):
    """Why a message was refused; None: it was understood."""
    try:
        act(*args)
    except (WireError, CallMismatchError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("form", ["blocks", "sparse_blocks", "pairs"])
def test_the_exchange_ends_with_the_sum_if_nothing_is_wrong(form):
    exchange = Exchange(form)
    while exchange.queue:
        exchange.advance()
    assert not any(role.awaited for role in exchange.roles)
    for worker in WORKERS:
        assert dense(exchange.roles[worker].result()).tolist() == [3.0] * LENGTH


# -- one thing is wrong --------------------------------------------------------------------------


def put(field, value):
    """The message with another number in a field; functions get the number that was there."""

    def damage(numbers, body):
        numbers[field] = value(numbers[field]) if callable(value) else value
        return numbers, body

    return damage


def parts(numbers):
    """Columns, current and next of a block message, which can be written to."""
    return numbers[FIRST:].reshape(3, -1)


def put_block(part, value):
    """As ``put``, of the first block: 0 is its column, 1 current and 2 next."""

    def damage(numbers, body):
        three = parts(numbers)
        three[part, 0] = value(*three[:, 0].tolist())
        return numbers, body

    return damage


def with_body(change):
    return lambda numbers, body: (numbers, change(body))


def dense_body(values):
    return SparseVector.from_dense(values)


def order(chosen):
    """Only these blocks of a message, in this order."""

    def damage(numbers, body):
        rows = body.values.reshape(-1, BLOCK)[chosen]
        return np.concatenate([numbers[:FIRST], parts(numbers)[:, chosen].ravel()]), dense_body(rows.ravel())

    return damage


ANY = {
    "kind 0": put(KIND, 0),
    "unknown kind": put(KIND, 3),
    "kind of the other direction": put(KIND, lambda kind: 3 - kind),
    "negative kind": put(KIND, -1),
    "negative number": put(NUMBER, -1),
    "no slots": put(SLOTS, 0),
    "too many slots": put(SLOTS, 2**31),
    "no width": put(WIDTH, 0),
    "too wide": put(WIDTH, 2**40),
    "blocks too large": put(SIZE, 2**62),
    "negative blocks": put(SIZE, -4),
    "no order of sums": put(ARRIVAL, 2),
    "values of another type": with_body(lambda body: body.with_values(body.values.astype(np.float64))),
    "too few numbers": lambda numbers, body: (numbers[: FIRST - 1], body),
    "no numbers": lambda numbers, body: (numbers[:0], body),
}

OTHER_TERMS = {
    "slots": put(SLOTS, lambda slots: slots + 1),
    "width": put(WIDTH, lambda width: width + 1),
    "size of blocks": put(SIZE, lambda size: size + 1),
    "order of sums": put(ARRIVAL, 1),
}

OF_BLOCKS = {
    "column of another block": put_block(0, lambda column, *_: column + 1),
    "column that is not": put_block(0, lambda *_: 2**62),
    "negative column": put_block(0, lambda *_: -1),
    "block of another column": put_block(1, lambda _, current, next: current - 1 if current else 1),
    "block that is not": put_block(1, lambda *_: BLOCKS),
    "block far away": put_block(1, lambda *_: 2**62),
    "negative block": put_block(1, lambda *_: -1),
    "next that is the same": put_block(2, lambda _, current, next: current),
    "next that is before": put_block(2, lambda _, current, next: current - 1),
    "next that is not": put_block(2, lambda *_: BLOCKS + 1),
    "next far away": put_block(2, lambda *_: 2**63 - 1),
    "a number missing": lambda numbers, body: (numbers[:-1], body),
    "a block without numbers": lambda numbers, body: (numbers[:-3], body),
    "numbers without a block": with_body(lambda body: dense_body(body.values[:-BLOCK])),
    "a value missing": with_body(lambda body: dense_body(body.values[:-1])),
    "a value too many": with_body(lambda body: dense_body(np.append(body.values, body.values[:1]))),
    "no values": with_body(lambda body: dense_body(body.values[:0])),
    "entries instead of values": with_body(
        lambda body: SparseVector(body.nnz + 9, np.arange(body.nnz), body.values)
    ),
    "columns in disorder": order([1, 0]),
    "a block twice": order([0, 0, 1]),
}

OF_PAIRS = {
    "longer vector": with_body(lambda body: moved(body, length=1)),
    "gap before it": with_body(lambda body: moved(body, start=1)),
    "no range": with_body(lambda body: body.range(body.start, body.start)),
}


def moved(body, length=0, start=0):
    """The same piece of another vector, or one that begins elsewhere."""
    piece = body.range(body.start + max(0, start), body.stop)
    begin = body.start + start
    return SparseVector.piece(body.length + length, begin, body.stop, piece.indices, piece.values)


def damaged(payload, damage):
    head, body = payload
    numbers, body = damage(head.values.astype(np.int64), body)
    return [SparseVector.from_dense(numbers), body]


each_place = pytest.mark.parametrize("target", [0, 2], ids=["worker", "aggregator"])
each_time = pytest.mark.parametrize("messages", [0, 3], ids=["at first", "later"])


@each_time
@each_place
@pytest.mark.parametrize("form", ["blocks", "pairs"])
@pytest.mark.parametrize("damage", ANY.values(), ids=ANY)
def test_what_is_wrong_in_any_message_is_refused(damage, form, target, messages):
    exchange = Exchange(form)
    source, payload = exchange.upcoming(target, messages)
    exchange.assert_refused(source, target, damaged(payload, damage))


@each_place
@pytest.mark.parametrize("form", ["blocks", "pairs"])
@pytest.mark.parametrize("damage", OTHER_TERMS.values(), ids=OTHER_TERMS)
def test_terms_of_another_call_are_refused(damage, form, target):
    exchange = Exchange(form)
    source, payload = exchange.upcoming(target)
    exchange.assert_refused(source, target, damaged(payload, damage), CallMismatchError)


@each_time
@each_place
@pytest.mark.parametrize("damage", OF_BLOCKS.values(), ids=OF_BLOCKS)
def test_what_is_wrong_with_blocks_is_refused(damage, target, messages):
    exchange = Exchange("blocks")
    source, payload = exchange.upcoming(target, messages)
    exchange.assert_refused(source, target, damaged(payload, damage))


@each_time
@each_place
@pytest.mark.parametrize("damage", OF_PAIRS.values(), ids=OF_PAIRS)
def test_what_is_wrong_with_entries_is_refused(damage, target, messages):
    exchange = Exchange("pairs")
    source, payload = exchange.upcoming(target, messages)
    exchange.assert_refused(source, target, damaged(payload, damage))


@each_place
def test_entries_that_overlap_those_before_are_refused(target):
    exchange = Exchange("pairs")
    source, payload = exchange.upcoming(target, messages=3)
    exchange.assert_refused(source, target, damaged(payload, with_body(lambda body: moved(body, start=-1))))


NOT_A_MESSAGE = {
    "one piece": lambda head, body: head,
    "a list of one": lambda head, body: [head],
    "three pieces": lambda head, body: [head, body, body],
    "numbers that are floats": lambda head, body: [head.with_values(head.values.astype(np.float64)), body],
    "numbers that are entries": lambda head, body: [head.as_sparse(), body],
    "numbers last": lambda head, body: [body, head],
}


@each_place
@pytest.mark.parametrize("form", ["blocks", "pairs"])
@pytest.mark.parametrize("change", NOT_A_MESSAGE.values(), ids=NOT_A_MESSAGE)
def test_what_is_no_message_is_refused(change, form, target):
    exchange = Exchange(form)
    source, payload = exchange.upcoming(target)
    exchange.assert_refused(source, target, change(*payload))


# -- a good message at the wrong time, or from the wrong rank --------------------------------------


@each_time
@each_place
@pytest.mark.parametrize("form", ["blocks", "sparse_blocks", "pairs"])
def test_a_message_that_comes_twice_is_refused(form, target, messages):
    exchange = Exchange(form)
    source, payload = exchange.upcoming(target, messages)
    exchange.hand_over(source, target, payload)
    exchange.assert_refused(source, target, payload)


@pytest.mark.parametrize("form", ["blocks", "pairs"])
@pytest.mark.parametrize("stranger", [-1, 2, 3, 4, 100])
def test_blocks_and_entries_of_a_rank_that_is_no_worker_are_refused(stranger, form):
    exchange = Exchange(form)
    _, payload = exchange.upcoming(target=2)
    exchange.assert_refused(stranger, 2, payload)


@pytest.mark.parametrize("form", ["blocks", "pairs"])
@pytest.mark.parametrize("stranger", [-1, 0, 1, 4, 100])
def test_sums_of_a_rank_that_does_not_aggregate_are_refused(stranger, form):
    exchange = Exchange(form)
    _, payload = exchange.upcoming(target=0)
    exchange.assert_refused(stranger, 0, payload)


def test_blocks_of_another_aggregator_are_refused():
    exchange = Exchange("blocks")
    source, payload = exchange.upcoming(target=3)
    exchange.assert_refused(source, 2, payload)


@each_place
@pytest.mark.parametrize("form", ["blocks", "pairs"])
def test_a_message_after_the_end_is_refused(form, target):
    exchange = Exchange(form)
    last = exchange.upcoming(target)
    while exchange.queue:
        source, send = exchange.queue[0]
        last = (source, send.payload) if send.peer == target else last
        exchange.advance()
    exchange.assert_refused(last[0], target, last[1])


def skipped(payload):
    """The message with the block that follows its first one, instead of that."""
    following = int(parts(payload[0].values)[2, 0])
    assert following < BLOCKS
    return damaged(damaged(payload, put_block(1, lambda *_: following)), put_block(2, lambda *_: BLOCKS))


def test_a_sum_before_its_turn_is_refused_when_the_one_before_it_comes_at_the_latest():
    exchange = Exchange("blocks")
    source, payload = exchange.upcoming(target=0)
    reasons = [refusal(exchange.hand_over, source, 0, each) for each in (skipped(payload), payload)]
    assert any(reasons)


@each_time
def test_a_promise_to_send_a_block_of_another_column_is_refused(messages):
    exchange = Exchange("blocks")
    source, payload = exchange.upcoming(target=2, messages=messages)
    payload = damaged(payload, put_block(2, lambda _, current, next: current + 1))
    exchange.assert_refused(source, 2, payload)


def test_a_worker_that_leaves_out_a_block_that_is_due_is_refused():
    exchange = Exchange("blocks")
    source, payload = exchange.upcoming(target=2, messages=4)
    exchange.assert_refused(source, 2, damaged(payload, order([0])))


@pytest.mark.parametrize("told", [0, 1, 3])
def test_a_wrong_number_of_slots_is_refused(told):
    exchange = Exchange("blocks")
    source, payload = exchange.upcoming(target=2, messages=1)  # about the second slot
    exchange.assert_refused(source, 2, damaged(payload, put(NUMBER, told)))


def test_an_end_while_own_blocks_are_under_way_is_refused():
    exchange = Exchange("blocks")
    source, payload = exchange.upcoming(target=0)
    exchange.assert_refused(source, 0, damaged(payload, put(NUMBER, 0)))


def test_a_sum_that_reaches_beyond_what_the_worker_has_told_is_refused():
    exchange = Exchange("pairs")
    source, payload = exchange.upcoming(target=0)
    length = payload[1].length
    everything = SparseVector.piece(length, 0, length, None, np.ones(length, np.float32))
    exchange.assert_refused(source, 0, [payload[0], everything])


def entries_from(start, count):
    """A worker's contribution in the pairs form, from an index on."""
    share = pairs.Stripes(LENGTH, len(SERVERS)).share
    indices = np.arange(start, start + count, dtype=np.uint32)
    body = SparseVector.piece(share, start, start + count, indices, np.ones(count, np.float32))
    return Message(CONTRIBUTION, 0, Terms(0, slots=2, width=5), pairs.NOTHING, body).payload()


def test_more_entries_than_fit_a_message_are_refused():
    Exchange("pairs").assert_refused(0, 2, entries_from(0, 6))


def test_more_messages_than_may_be_in_flight_are_refused():
    exchange = Exchange("pairs")
    for start in (0, 5):
        assert exchange.hand_over(0, 2, entries_from(start, 5)) == []
    exchange.assert_refused(0, 2, entries_from(10, 5))


# -- scripts -------------------------------------------------------------------------------------


def started(script):
    """The script, at its first receive."""
    steps = next(script)
    while not any(isinstance(step, RecvAny) for step in steps):
        steps = script.send([])
    return script


def first_message(kind=CONTRIBUTION, number=1, terms=(BLOCK, 2, 2, 0), numbers=()):
    head = np.array([kind, number, *terms, *numbers], np.int64)
    return [SparseVector.from_dense(head), SparseVector.from_dense(np.empty(0, np.float32))]


def serving():
    return started(aggregate(2, len(WORKERS), SERVERS, SUM, np.dtype(np.float32), LENGTH))


def test_an_aggregator_learns_the_terms_from_the_first_message():
    [waiting] = serving().send([(1, first_message())])
    assert set(waiting.peers) == {0, 1}


# 13 blocks each: 7 slots of two, or 1 of 13, are the most
TOO_MUCH = {
    "width": (BLOCK, 1, 14, 0),
    "slots": (BLOCK, 8, 2, 0),
    "one wide slot too many": (BLOCK, 2, 13, 0),
}


@pytest.mark.parametrize("terms", TOO_MUCH.values(), ids=TOO_MUCH)
def test_an_aggregator_makes_no_room_for_more_than_the_vector_fills(terms):
    with pytest.raises(WireError, match=r"^rank 1 "):
        serving().send([(1, first_message(terms=terms))])


@pytest.mark.parametrize("payload", [first_message(kind=RESULT), first_message()[0], first_message()[:1]])
def test_an_aggregator_refuses_a_first_message_that_is_none(payload):
    with pytest.raises(WireError, match=r"^rank 1 "):
        serving().send([(1, payload)])


def test_a_worker_that_does_not_aggregate_refuses_blocks():
    mine = SparseVector.from_dense(np.ones(LENGTH, np.float32))
    script = started(omnireduce(0, 2, mine, Context(options=OmniReduce(BLOCK), servers=SERVERS)))
    with pytest.raises(WireError, match=r"^rank 2 "):
        script.send([(2, first_message())])


# -- anything is wrong -----------------------------------------------------------------------------

ANY_INTEGER = st.integers(-2, 30) | st.sampled_from([2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)])


@st.composite
def damages(draw, payload):
    """The message with some numbers changed, added or left out, and perhaps another body."""
    head, body = payload
    numbers = head.values.astype(np.int64)
    for _ in range(draw(st.integers(0, 3))):
        numbers[draw(st.integers(0, len(numbers) - 1))] = draw(ANY_INTEGER)
    kept, added = draw(st.integers(0, 12)) or None, draw(st.lists(ANY_INTEGER, max_size=3))
    numbers = np.concatenate([numbers[:kept], np.array(added, np.int64)])
    if draw(st.booleans()):
        begin, end = sorted(draw(st.tuples(*[st.integers(0, body.span)] * 2)))
        body = body.range(body.start + begin, body.start + end)
    return [SparseVector.from_dense(numbers), body]


@st.composite
def anything(draw):
    """Pieces that may have come over the wire."""
    dtypes = st.sampled_from(["int32", "int64", *VALUE_DTYPES])
    lengths = draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))
    pieces = [draw(sparse_vectors(length, draw(dtypes))) for length in lengths]
    return pieces if draw(st.booleans()) else pieces[0]


@pytest.mark.parametrize("form", ["blocks", "pairs"])
@many
@given(data=st.data(), target=st.sampled_from([0, 2]), messages=st.integers(0, 5))
def test_any_message_is_understood_or_refused(form, target, messages, data):
    exchange = Exchange(form)
    source, payload = exchange.upcoming(target, messages)
    before = [out.tobytes() for out in exchange.outs]
    payload = data.draw(damages(payload) | anything())
    why = refusal(exchange.hand_over, source, target, payload)
    if why is not None:
        assert why.startswith(f"rank {source} ")
        assert [out.tobytes() for out in exchange.outs] == before


@many
@given(numbers=st.lists(st.integers(-1, 20), max_size=12), values=st.integers(0, 12))
def test_any_first_message_is_understood_or_refused(numbers, values):
    head, body = np.array(numbers, np.int64), np.ones(values, np.float32)
    payload = [SparseVector.from_dense(head), SparseVector.from_dense(body)]
    why = refusal(serving().send, [(1, payload)])
    assert why is None or why.startswith("rank 1 ")
