"""OmniReduce: sums in every layout and delivery order, what travels for them, and how long that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sparsewire.algorithms import Context
from sparsewire.algorithms.omnireduce import OmniReduce, aggregate, best_block, cost, omnireduce
from sparsewire.algorithms.omnireduce.blocks import Layout
from sparsewire.algorithms.omnireduce.message import Terms
from sparsewire.coding.rounding import EXACT
from sparsewire.cost import BLOCK, CostFigures, Shape
from sparsewire.drivers import local, simulator
from sparsewire.errors import InputError
from sparsewire.reduction import REDUCTIONS, SUM
from sparsewire.steps import Send
from sparsewire.testing import same_bits
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype
from strategies import EPSILON, FLOATS

# Arrays do not become simpler, so looking for the simplest failing case leads nowhere.
unshrunk = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
many = settings(unshrunk, max_examples=max(90, settings.default.max_examples))
more = settings(unshrunk, max_examples=2 * settings.default.max_examples)  # where dtypes are drawn
each_form = pytest.mark.parametrize("form", ["pairs", "blocks"])
SEEDS = st.integers(0, 2**32)


# -- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One collective: what the ranks have, and who adds it up."""

    arrays: tuple[Any, ...]  # of each worker
    stored: tuple[bool, ...]  # densely, or as entries
    options: OmniReduce
    servers: tuple[int, ...] | None = None  # all workers
    op: str = "sum"
    seeds: tuple[int, int] = (0, 1)

    @property
    def size(self):
        return len(self.arrays)

    @property
    def places(self):
        return range(self.size) if self.servers is None else self.servers

    def vectors(self):
        return [vector(array, dense) for array, dense in zip(self.arrays, self.stored, strict=True)]

    def run(self, seed=0, drive=local.run, vectors=None, outs=None):
        """Workers' results, and everybody's traffic."""
        op, options = REDUCTIONS[self.op], self.options
        vectors = self.vectors() if vectors is None else vectors
        outs = [None] * self.size if outs is None else outs
        scripts = [
            omnireduce(rank, self.size, mine, Context(op, EXACT, self.servers, out, options))
            for rank, (mine, out) in enumerate(zip(vectors, outs, strict=True))
        ]
        like = self.arrays[0]
        scripts += [
            aggregate(server, self.size, self.servers, op, like.dtype, len(like))
            for server in sorted(self.places)
            if server >= self.size
        ]
        results, traffic = drive(scripts, seed)
        return results[: self.size], traffic


def vector(array, dense):
    """On memory that raises when it is written to."""
    if dense:
        values = array.copy()
        values.flags.writeable = False
        return SparseVector.from_dense(values)
    indices = np.flatnonzero(array != 0)
    return SparseVector(len(array), indices, array[indices])


def as_array(vector):
    """A result as a plain array, without help from the library."""
    if vector.is_dense:
        return vector.values
    indices = vector.indices.astype(np.int64)
    assert (np.diff(indices) > 0).all()
    array = np.zeros(vector.length, vector.dtype)
    array[indices] = vector.values
    return array


def reduced(arrays, op="sum"):
    """What the sum must be: dense, from left to right, half types in float32 and rounded once."""
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    total = arrays[0].astype(wide)
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            total = combine(total, array.astype(wide))
        return total.astype(dtype)


def assert_equal(got, expected):
    wide = np.float64 if got.dtype.kind != "i" else got.dtype  # numpy knows no NaN of bfloat16
    got, expected = got.astype(wide), expected.astype(wide)
    wrong = np.flatnonzero((got != expected) & ~(np.isnan(got) & np.isnan(expected)))
    assert len(wrong) == 0, f"at {wrong}: {got[wrong]} instead of {expected[wrong]}"


def sums(case, seed):
    """Every worker's sum; all have the same bits, in the form that was given."""
    results, _ = case.run(seed)
    for result, dense, array in zip(results, case.stored, case.arrays, strict=True):
        assert (result.length, result.start, result.stop) == (len(array), 0, len(array))
        assert result.dtype == array.dtype
        assert case.options.block is None or result.is_dense == dense
    arrays = [as_array(result) for result in results]
    assert len({array.tobytes() for array in arrays}) == 1, "ranks differ"
    return arrays[0]


SHAPES = ("scattered", "blocks", "equal", "identical", "disjoint", "one rank", "some ranks", "hot", "pitch")


def supports(shape, rng, size, length, density, block):
    """Where each worker has something."""
    if shape in ("blocks", "some ranks"):
        chosen = rng.random((size, -(-length // block))) < density
        if shape == "some ranks":
            chosen[rng.random(size) < 0.5] = False
        return np.repeat(chosen, block, axis=1)[:, :length]
    support = rng.random((size, length)) < density
    if shape in ("equal", "identical"):
        support[:] = support[0]
    elif shape == "disjoint":
        support &= np.arange(length) % size == np.arange(size)[:, None]
    elif shape == "one rank":
        support[np.arange(size) != rng.integers(size)] = False
    elif shape == "hot":
        support[:, length // 8 :] = False
    elif shape == "pitch":
        support &= np.arange(length) // block % 4 == 0
    return support


@st.composite
def cases(draw, size, form, dtype=None, numbers=None, op=None, arrival=None):
    """Any collective of so many workers; ``numbers(rng, shape)`` draws values, by default small integers."""
    rng = np.random.default_rng(draw(SEEDS))
    length = draw(st.sampled_from([0, 1, 2, 7, 63, 64, 65, 300, 1000]) | st.integers(0, 2500))
    block = draw(st.sampled_from([1, 3, 7, 64, 256, 5000]))
    density = draw(st.sampled_from([0.0, 0.002, 0.02, 0.1, 0.5, 1.0]))
    shape = draw(st.sampled_from(SHAPES))
    support = supports(shape, rng, size, length, density, block)
    values = (small_integers if numbers is None else numbers)(rng, support.shape)
    if shape == "equal":
        values[:] = values[0]
    dtype = value_dtype(draw(st.sampled_from(VALUE_DTYPES)) if dtype is None else dtype)
    arrays = np.where(support, values, 0).astype(dtype)
    servers = draw(layouts(size))
    slots = draw(st.integers(1, 9))
    # of blocks or entries: never so few that thousands of messages are needed
    least = -(-(length if form == "pairs" else -(-length // block)) // (3 * slots))
    width = draw(st.sampled_from([1, 2, 3, 5, 16, 64, 10**4]))
    each = 4 + dtype.itemsize if form == "pairs" else block * dtype.itemsize
    options = OmniReduce(
        block=None if form == "pairs" else block,
        slots=slots,
        message_bytes=max(width, least) * each + draw(st.integers(0, each - 1)),
        arrival=draw(st.booleans()) if arrival is None else arrival,
    )
    stored = draw(st.sampled_from(["dense", "entries", "mixed"]))
    return Case(
        tuple(arrays),
        tuple(stored == "dense" or (stored == "mixed" and rng.random() < 0.5) for _ in range(size)),
        options,
        servers,
        draw(st.sampled_from([*REDUCTIONS])) if op is None else op,
        (draw(SEEDS), draw(SEEDS)),
    )


@st.composite
def layouts(draw, size):
    """Who aggregates: all workers, some of them, or one to four ranks beside them."""
    aggregators = draw(st.integers(1, 4))
    layout = draw(st.sampled_from(["all", "some", "dedicated"]))
    if layout == "all":
        return None
    if layout == "dedicated":
        return tuple(range(size, size + aggregators))
    return tuple(draw(st.permutations(range(size)))[:aggregators])


def small_integers(rng, shape):
    return rng.integers(1, 5, shape) * rng.choice([-1, 1], shape)


def rounding(rng, shape):
    return rng.normal(size=shape) * 2.0 ** rng.integers(-6, 7, shape)


def special(rng, shape):
    return rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0], shape)


# -- sums ----------------------------------------------------------------------------------------


@each_form
@pytest.mark.parametrize("sizes", [(1, 3), (4, 6), (7, 9)])
@many
@given(data=st.data())
def test_sum_of_exact_data_is_exact_in_every_layout(sizes, form, data):
    case = data.draw(cases(data.draw(st.integers(*sizes)), form))
    assert_equal(sums(case, case.seeds[0]), reduced(case.arrays, case.op))


@each_form
@more
@given(data=st.data(), size=st.integers(2, 9), dtype=st.sampled_from(FLOATS))
def test_sum_of_floats_has_the_bits_of_adding_up_in_rank_order(dtype, form, size, data):
    case = data.draw(cases(size, form, dtype, rounding, op="sum", arrival=False))
    total = sums(case, case.seeds[0])
    assert_equal(total, reduced(case.arrays))
    assert total.tobytes() == sums(case, case.seeds[1]).tobytes()


@each_form
@more
@given(data=st.data(), size=st.integers(2, 9), dtype=st.sampled_from(FLOATS))
def test_nan_infinity_and_negative_zero_travel_like_any_value(dtype, form, size, data):
    case = data.draw(cases(size, form, dtype, special))
    total = sums(case, case.seeds[0])
    assert_equal(total, reduced(case.arrays, case.op))
    if case.op != "sum":
        assert not np.signbit(total[total == 0]).any()
    if not case.options.arrival:
        assert total.tobytes() == sums(case, case.seeds[1]).tobytes()


@each_form
@more
@given(data=st.data(), size=st.integers(2, 9), dtype=st.sampled_from(FLOATS))
def test_sum_in_order_of_arrival_has_the_error_of_its_additions_at_most(dtype, form, size, data):
    case = data.draw(cases(size, form, dtype, rounding, op="sum", arrival=True))
    wide = [array.astype(np.float64) for array in case.arrays]
    error = np.abs(sums(case, case.seeds[0]).astype(np.float64) - sum(wide))
    assert (error <= size * EPSILON[dtype] * sum(map(np.abs, wide))).all()


@unshrunk
@given(data=st.data(), size=st.integers(1, 9), dtype=st.sampled_from(VALUE_DTYPES))
def test_sum_may_be_written_to_the_vectors_own_array(size, dtype, data):
    numbers = small_integers if dtype.startswith("int") else special
    case = replace(data.draw(cases(size, "blocks", dtype, numbers, arrival=False)), stored=(True,) * size)
    expected = sums(case, case.seeds[0])
    outs = [array.copy() for array in case.arrays]
    results, _ = case.run(case.seeds[1], vectors=map(SparseVector.from_dense, outs), outs=outs)
    for result, out in zip(results, outs, strict=True):
        assert np.shares_memory(result.values, out) or not len(out)
        assert out.tobytes() == outs[0].tobytes()
    assert_equal(outs[0], expected)


def test_negative_zeros_do_not_stay_in_the_array_of_the_rank_that_had_them():
    arrays = tuple(np.array([zero] * 4 + [1.0] * 4, np.float32) for zero in (-0.0, 0.0))
    outs = [array.copy() for array in arrays]
    case = Case(arrays, (True, True), OmniReduce(4))
    case.run(vectors=map(SparseVector.from_dense, outs), outs=outs)
    assert outs[0].tobytes() == outs[1].tobytes()


@each_form
def test_the_sign_of_zero_is_the_same_in_every_delivery_order(form):
    chosen = np.random.default_rng(0).random((4, 26, 1)) < 0.35
    arrays = np.where(chosen, [-0.0, 1.0], [0.0, 0.0]).astype(np.float32).reshape(4, -1)
    options = OmniReduce(2 if form == "blocks" else None, slots=4, message_bytes=24)
    case = Case(tuple(arrays), (True,) * 4, options, servers=(4,))
    assert len({sums(case, seed).tobytes() for seed in range(10)}) == 1


def test_entries_that_cancel_are_stored_alike_in_every_delivery_order():
    rng = np.random.default_rng(0)
    array, other = (rng.random((2, 200)) < [[0.4], [0.15]]).astype(np.float32)
    case = Case((array, -array, other), (False,) * 3, OmniReduce(slots=3, message_bytes=32))
    first, *others = [case.run(seed)[0][0] for seed in range(20)]
    assert all(same_bits(first, other) for other in others)


@pytest.mark.parametrize(
    "wrong",
    [{"block": 0}, {"slots": 0}, {"message_bytes": -1}, {"slots": None}, {"block": 2**31}, {"slots": 1.5}],
)
def test_options_that_nobody_could_work_with_are_refused(wrong):
    [name] = wrong
    with pytest.raises(InputError, match=name):
        OmniReduce(**wrong)


# -- what travels --------------------------------------------------------------------------------

HEADERS = 2 * 112 + 24  # of a message: two frames, and the six numbers it begins with
CONTRIBUTION, RESULT = 1, 2


class Sent(NamedTuple):
    """A message of the block form, as it was sent."""

    source: int
    target: int
    kind: int
    columns: list[int]
    blocks: list[int]
    data: Any


def overheard(case):
    """All messages of a run, and everybody's traffic."""
    sent = []

    def listening(rank, script):
        received = None
        while True:
            try:
                steps = script.send(received)
            except StopIteration as end:
                return end.value
            sent.extend(
                _sent(rank, step.peer, *step.payload, case.options.block)
                for step in steps
                if isinstance(step, Send)
            )
            received = yield steps

    def drive(scripts, seed):
        return local.run([listening(rank, script) for rank, script in enumerate(scripts)], seed)

    _, traffic = case.run(drive=drive)
    return sent, traffic


def _sent(source, target, head, body, block):
    columns, blocks, _ = head.values[6:].reshape(3, -1).tolist()
    return Sent(source, target, int(head.values[0]), columns, blocks, body.values.reshape(-1, block))


def nonzero_blocks(array, block):
    return {index // block for index in np.flatnonzero(array).tolist()}


def block_case(size, density, servers=None, blocks=500, block=6, slots=3, width=7, seed=0):
    """Whole blocks of float32 that are not zero; the last one is shorter."""
    length = blocks * block - 2
    rng = np.random.default_rng(seed)
    support = supports("blocks", rng, size, length, density, block)
    arrays = np.where(support, small_integers(rng, support.shape), 0).astype(np.float32)
    return Case(tuple(arrays), (True,) * size, OmniReduce(block, slots, width * block * 4), servers)


each_layout = pytest.mark.parametrize("servers", [None, (1,), (4, 5, 6)], ids=["all", "one", "dedicated"])


@each_layout
@pytest.mark.parametrize("density", [0, 0.01, 0.2, 1])
def test_every_block_that_is_not_zero_travels_once_up_and_once_down(density, servers):
    case = block_case(4, density, servers)
    sent, _ = overheard(case)
    mine = [nonzero_blocks(array, 6) for array in case.arrays]
    union = set().union(*mine)
    up, down = ([m for m in sent if m.kind == kind] for kind in (CONTRIBUTION, RESULT))
    owner = {block: m.target for m in up for block in m.blocks}
    owner |= {block: m.source for m in down for block in m.blocks}
    for rank in range(4):
        gone = [block for m in up if m.source == rank for block in m.blocks]
        come = [block for m in down if m.target == rank for block in m.blocks]
        assert sorted(gone) == sorted(block for block in mine[rank] if owner[block] != rank)
        assert sorted(come) == sorted(block for block in union if owner[block] != rank)
    assert all(owner[block] == m.target for m in up for block in m.blocks)
    assert all(m.data.any(axis=1).all() for m in sent)


@each_layout
@pytest.mark.parametrize("density", [0, 0.01, 0.2, 1])
def test_bytes_are_those_of_blocks_and_headers(density, servers):
    case = block_case(4, density, servers)
    sent, traffic = overheard(case)
    for rank, counted in enumerate(traffic):
        blocks = [len(m.blocks) for m in sent if m.source == rank]
        assert counted.messages_sent == len(blocks)
        # numbers are padded to whole words of eight bytes
        padding = 4 * sum(count % 2 for count in blocks)
        assert counted.bytes_sent == HEADERS * len(blocks) + (12 + 6 * 4) * sum(blocks) + padding


def pairs_of_ranks(sent, kind):
    """How many messages of a kind each rank sends to each other."""
    return Counter((m.source, m.target) for m in sent if m.kind == kind)


@each_layout
@pytest.mark.parametrize("density", [0, 0.01, 0.2, 1])
def test_messages_are_at_most_those_of_a_full_vector(density, servers):
    case = block_case(4, density, servers)
    sent, _ = overheard(case)
    share = -(-500 // len(case.places))  # blocks of an aggregator
    full = 3 * -(-share // (3 * 7))  # slots, and turns until every column is through
    for kind in (CONTRIBUTION, RESULT):
        counts = pairs_of_ranks(sent, kind).values()
        expected = {0: 1}.get(density)
        assert max(counts) <= full
        assert expected is None or set(counts) == {expected}
        assert all(len(m.blocks) <= 3 * 7 for m in sent if m.kind == CONTRIBUTION)


REGIONS = {
    "first eighth": lambda number, blocks: number < blocks // 8,
    **{f"every {n}th": lambda number, _, n=n: number % n == 0 for n in (2, 3, 4, 8, 16, 48)},
}


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("aggregators", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("columns", [4, 16])
def test_no_aggregator_and_no_column_has_more_of_a_region_than_chance_would_give_it(
    columns, aggregators, region
):
    blocks = 2**18
    number = np.arange(blocks)
    layout = Layout(blocks, aggregators, Terms(block=1, slots=2, width=columns // 2))
    aggregator, column = layout.place(number[REGIONS[region](number, blocks)])
    of_columns = np.bincount(columns * aggregator + column, minlength=columns * aggregators)
    of_slots = of_columns.reshape(aggregators, 2, -1).swapaxes(0, 1)  # which are regions themselves
    for load in (np.bincount(aggregator, minlength=aggregators), *of_slots):
        assert load.max() <= load.mean() + 5 * np.sqrt(load.mean())


@pytest.mark.parametrize("pitch", [1, 2, 256, 1024])
@pytest.mark.parametrize("aggregators", [2, 3, 4])
def test_no_aggregator_has_more_than_its_share_of_a_region_of_entries(aggregators, pitch):
    length = 2**19
    servers = tuple(range(1, 1 + aggregators))
    indices = np.arange(0, length if pitch > 2 else length // 8, pitch)
    mine = SparseVector(length, indices, np.ones(len(indices), np.float64))
    scripts = [omnireduce(0, 1, mine, Context(servers=servers))]
    scripts += [aggregate(server, 1, servers, SUM, mine.dtype, length) for server in servers]
    _, traffic = local.run(scripts)
    received = [each.bytes_received for each in traffic[1:]]
    assert max(received) <= 1.3 * sum(received) / aggregators


# -- how long it takes, in the simulator -----------------------------------------------------------

GIGABIT = CostFigures(latency=2e-6, bandwidth=125e6)


def simulated(case, network=GIGABIT):
    seconds = []

    def drive(scripts, seed):
        simulation = simulator.run(scripts, network)
        seconds.append(simulation.seconds)
        return simulation.results, simulation.traffic

    case.run(drive=drive)
    return seconds[0]


def uniform(size, density, length, unit, options, aggregators):
    """This share of all units of so many positions is not zero, anywhere; and the density of the union."""
    rng = np.random.default_rng(size)
    units = length // unit
    chosen = np.zeros((size, units), bool)
    for mine in chosen:
        mine[rng.choice(units, round(density * units), replace=False)] = True
    arrays = np.repeat(chosen, unit, axis=1).astype(np.float32)
    servers = tuple(range(size, size + aggregators)) or None
    case = Case(tuple(arrays), (unit > 1,) * size, options, servers)
    return case, chosen.any(axis=0).mean()


each_density = pytest.mark.parametrize("density", [0.01, 0.1, 0.4, 1])
each_number_of_aggregators = pytest.mark.parametrize("aggregators", [0, 2, 4])
COMPUTING = {
    "computing is free": GIGABIT,
    "computing counts": replace(GIGABIT, seconds_per_entry=1e-9, seconds_per_value=2e-10),
}


@pytest.mark.parametrize("network", COMPUTING.values(), ids=COMPUTING)
@each_density
@each_number_of_aggregators
def test_cost_of_blocks_is_near(aggregators, density, network):
    length = 2**22 if density < 0.1 else 2**20  # enough blocks that chance deals them out alike
    blocks = round(density * length / BLOCK)
    shape = Shape(4, length, blocks * BLOCK, blocks=blocks, aggregators=aggregators)
    options = OmniReduce(best_block(network, shape))  # where nothing is zero, entries are as good
    case, _ = uniform(4, density, length, BLOCK, options, aggregators)
    assert simulated(case, network) == pytest.approx(cost(network, shape).seconds, rel=0.25)


@pytest.mark.parametrize("network", COMPUTING.values(), ids=COMPUTING)
@each_density
@each_number_of_aggregators
def test_cost_of_entries_is_near(aggregators, density, network):
    length = 2**17
    case, _ = uniform(4, density, length, 1, OmniReduce(), aggregators)
    shape = Shape(4, length, round(density * length), aggregators=aggregators)
    assert simulated(case, network) == pytest.approx(cost(network, shape).seconds, rel=0.25)


@each_density
@each_number_of_aggregators
def test_time_is_that_of_the_bytes_on_the_busiest_link(aggregators, density):
    size, length = 4, {0.01: 2**22, 0.1: 2**20}.get(density, 2**18)
    options = OmniReduce(BLOCK, message_bytes=8 * BLOCK * 4)
    case, union = uniform(size, density, length, BLOCK, options, aggregators)
    if aggregators:
        share = max(density, union, size / aggregators * density, size / aggregators * union)
    else:
        share = (size - 1) / size * (density + union)
    bound = share * 4 * length / GIGABIT.bandwidth
    assert bound < simulated(case) < 1.25 * bound


@each_form
@each_number_of_aggregators
def test_many_messages_in_flight_hide_the_latency(aggregators, form):
    far = CostFigures(latency=1e-3, bandwidth=125e6)
    unit = BLOCK if form == "blocks" else 1
    options = OmniReduce(BLOCK if form == "blocks" else None, message_bytes=2**13)
    case, _ = uniform(4, 0.3, 2**17, unit, options, aggregators)
    one, eight = (simulated(replace(case, options=replace(options, slots=slots)), far) for slots in (1, 8))
    assert one > 2.5 * eight
