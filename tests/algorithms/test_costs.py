"""Cost functions against what the simulator counted, and the simulator against sums done by hand.

The networks have powers of two for parameters, so that times are exact and compared with ==.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest

from sparsewire import work
from sparsewire.algorithms import ALGORITHMS, Context, allgather_sum, dense_ring, hybrid
from sparsewire.coding import frame as wire
from sparsewire.cost import HEADER_BYTES, CostFigures, Shape
from sparsewire.drivers import simulator
from sparsewire.reduction import SUM, concat
from sparsewire.steps import Recv, Send
from sparsewire.testing import ORACLES, dense, run_local
from sparsewire.vector import SparseVector, value_dtype
from strategies import EDGE_SHAPES, SIZES, in_one_test

SLOW = CostFigures(latency=2.0**-6, bandwidth=2.0**27, overhead=2.0**-16)
NETWORKS = {
    "computing is free": SLOW,
    "computing counts": replace(SLOW, seconds_per_entry=2.0**-20, seconds_per_value=2.0**-24),
}
each_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
POWERS_OF_TWO = (1, 2, 4, 8, 16)
DTYPES = {2: "float16", 4: "float32", 8: "int64"}


def evenly(size, overlap, value_bytes, index_bits=32):
    """Inputs with the same number of entries in each range, for which the model is exact, and their shape."""
    nnz = 32 * size
    stride = 64 if index_bits == 32 else 2**34
    length = nnz * stride
    ones = np.ones(nnz, value_dtype(DTYPES[value_bytes]))
    steps = np.arange(nnz, dtype=np.uint64) * np.uint64(stride)
    shifts = [0 if overlap == "identical" else rank for rank in range(size)]
    vectors = [SparseVector(length, steps + np.uint64(shift), ones) for shift in shifts]
    return vectors, Shape(size, length, nnz, value_bytes, overlap)


def simulate(name, inputs, network=SLOW, shape=None):
    """The simulation of ranks that know the figures of the network, and the shape of the problem if any."""
    run = functools.partial(ALGORITHMS[name].run, context=Context(figures=network, shape=shape))
    return simulator.run([run(rank, len(inputs), vector) for rank, vector in enumerate(inputs)], network)


def busiest(traffic, field):
    return max(getattr(rank, field) for rank in traffic)


# Estimates where its ranges should end, and is off by an entry or two.
ESTIMATES = "balanced"
EXACT = [name for name in ALGORITHMS if name != ESTIMATES]


def is_folded_and_overlaps(name, size):
    """Ranks that take no neighbour in are a round ahead; if they are most, the others catch up with them."""
    core = 1 << (size.bit_length() - 1)
    return name in ("recursive_doubling", "hybrid") and 0 < size - core <= core // 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EXACT)
@in_one_test(overlap=["identical", "disjoint"], value_bytes=DTYPES, network=NETWORKS)
def test_cost_predicts_messages_bytes_and_time_of_the_busiest_rank(name, size, overlap, value_bytes, network):
    inputs, shape = evenly(size, overlap, value_bytes)
    simulation, cost = (
        simulate(name, inputs, NETWORKS[network], shape),
        ALGORITHMS[name].cost(NETWORKS[network], shape),
    )
    assert cost.messages == busiest(simulation.traffic, "messages_sent")
    assert cost.bytes_sent == busiest(simulation.traffic, "bytes_sent")
    assert size == 1 or cost.rounds == busiest(simulation.traffic, "rounds")
    if is_folded_and_overlaps(name, size):  # the model does not see who waits for a neighbour's frame
        assert cost.seconds == pytest.approx(simulation.seconds, rel=0.06)
    else:
        assert cost.seconds == pytest.approx(simulation.seconds, rel=1e-12, abs=0)


# Messages are dear, so that pieces are gathered along a tree.
DEAR = replace(SLOW, latency=2.0**-12, overhead=2.0**-6, seconds_per_entry=2.0**-20)


@pytest.mark.parametrize("size", [4, 5, 8, 16])
@pytest.mark.parametrize(("name", "further"), [("allgather_sum", 0), ("split_allgather", 1), ("balanced", 1)])
@in_one_test(overlap=["identical", "disjoint"], value_bytes=DTYPES)
def test_cost_knows_the_tree_along_which_pieces_are_gathered(name, further, size, overlap, value_bytes):
    inputs, shape = evenly(size, overlap, value_bytes)
    simulation, cost = simulate(name, inputs, DEAR, shape), ALGORITHMS[name].cost(DEAR, shape)
    gathered = 2 if name == "balanced" else 1
    assert cost.messages == further * (size - 1) + gathered * (size - 1).bit_length()
    assert cost.messages == busiest(simulation.traffic, "messages_sent")
    tolerance = 0.05 if name == ESTIMATES else 1e-12
    assert cost.bytes_sent == pytest.approx(busiest(simulation.traffic, "bytes_sent"), rel=tolerance)
    assert cost.seconds == pytest.approx(simulation.seconds, rel=tolerance)


@each_network
@pytest.mark.parametrize("size", SIZES[1:])
@in_one_test(overlap=["identical", "disjoint"], value_bytes=DTYPES)
def test_cost_of_estimated_ranges_is_near(size, overlap, value_bytes, network):
    inputs, shape = evenly(size, overlap, value_bytes)
    simulation = simulate(ESTIMATES, inputs, network, shape)
    cost = ALGORITHMS[ESTIMATES].cost(network, shape)
    assert cost.messages == busiest(simulation.traffic, "messages_sent")
    assert cost.bytes_sent == pytest.approx(busiest(simulation.traffic, "bytes_sent"), rel=0.05)
    assert cost.seconds == pytest.approx(simulation.seconds, rel=0.05)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("overlap", ["identical", "disjoint"])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if not ALGORITHMS[name].dense])
def test_cost_knows_that_long_vectors_have_wide_indices(name, overlap, size):
    inputs, shape = evenly(size, overlap, 4, index_bits=64)
    assert inputs[0].indices.dtype == np.uint64
    simulation, cost = simulate(name, inputs), ALGORITHMS[name].cost(SLOW, shape)
    # OmniReduce deals out stripes, and few entries that lie far apart do not fall evenly.
    tolerance = {ESTIMATES: 0.05, "omnireduce": 0.15}.get(name, 0)
    assert cost.bytes_sent == pytest.approx(busiest(simulation.traffic, "bytes_sent"), rel=tolerance)


BUSY = CostFigures(2.0**-20, 2.0**20, 2.0**-18)
PIPELINES = {
    "slow": SLOW,
    "busy": BUSY,
    "half computing": replace(BUSY, seconds_per_entry=2.0**-18, seconds_per_value=2.0**-20),
    "mostly computing": replace(BUSY, seconds_per_entry=2.0**-12, seconds_per_value=2.0**-14),
    "computing and latency": replace(SLOW, seconds_per_entry=2.0**-16, seconds_per_value=2.0**-16),
}
SEGMENTED = {"dense_ring": dense_ring, "allgather_sum": allgather_sum}


@pytest.mark.parametrize("network", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("segment_bytes", [256, 1024, 2**20])
@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("name", SEGMENTED)
def test_cost_is_exact_for_any_number_of_segments(name, size, segment_bytes, network):
    inputs, shape = evenly(size, "identical", 4)
    context = Context(figures=network, shape=shape)
    run = functools.partial(ALGORITHMS[name].run, context=context, segment_bytes=segment_bytes)
    simulation = simulator.run([run(rank, size, vector) for rank, vector in enumerate(inputs)], network)
    cost = SEGMENTED[name].cost(network, shape, segment_bytes)
    assert cost.messages == busiest(simulation.traffic, "messages_sent")
    assert cost.bytes_sent == busiest(simulation.traffic, "bytes_sent")
    assert cost.seconds == pytest.approx(simulation.seconds, rel=1e-12, abs=0)
    assert np.array_equal(dense(simulation.results[0]), ORACLES[name](inputs))


@pytest.mark.parametrize("name", SEGMENTED)
def test_what_cannot_hide_behind_the_transfer_of_other_segments_is_paid_for(name):
    _, shape = evenly(4, "identical", 4)

    def seconds(overlap, segment_bytes):
        network = replace(PIPELINES["half computing"], overlap=overlap)
        return SEGMENTED[name].cost(network, shape, segment_bytes).seconds

    assert seconds(0.0, 256) > seconds(0.5, 256) > seconds(1.0, 256)
    assert seconds(0.5, 256) == pytest.approx((seconds(0.0, 256) + seconds(1.0, 256)) / 2)
    assert seconds(0.0, 2**20) == seconds(1.0, 2**20)  # one segment: there are no others


@each_network
@pytest.mark.parametrize("every", [1, 3, 4])
@pytest.mark.parametrize("size", POWERS_OF_TWO)
@pytest.mark.parametrize("name", sorted({*ALGORITHMS} - {"omnireduce"}))  # there, entries stay entries
def test_cost_of_identical_supports_that_turn_dense_and_back_is_exact(name, size, every, network):
    # size times a third or a fourth would need more room than the vector, their union does not
    length = 48 * size
    vector = SparseVector(length, range(0, length, every), np.ones(length // every, np.float32)).smaller()
    shape = Shape(size, length, length // every, 4, "identical")
    simulation = simulate(name, [vector] * size, network, shape)
    cost = ALGORITHMS[name].cost(network, shape)
    tolerance = 0.05 if name == ESTIMATES else 1e-12
    if size > 1:
        assert cost.bytes_sent == pytest.approx(busiest(simulation.traffic, "bytes_sent"), rel=tolerance)
        assert cost.seconds == pytest.approx(simulation.seconds, rel=tolerance)


def test_hybrid_takes_any_number_of_sparse_rounds():
    rounds = [hybrid.sparse_rounds(Shape(16, 1000, nnz)) for nnz in (0, 10, 60, 100, 150, 300, 1000)]
    assert rounds == sorted(rounds, reverse=True)
    assert {rounds[0], rounds[-1]} == {4, 0}
    assert len(set(rounds)) >= 3


def test_hybrid_moves_fewer_bytes_than_both_its_parents_in_between():
    shape = Shape(64, 2**20, 2**16)
    assert 0 < hybrid.sparse_rounds(shape) < 6
    hybrid_bytes, *parents = (
        ALGORITHMS[name].cost(SLOW, shape).bytes_sent
        for name in ("hybrid", "recursive_doubling", "dense_halving_doubling")
    )
    assert hybrid_bytes < min(parents)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_cost_of_one_rank_is_nothing_if_computing_is_free(name):
    cost = ALGORITHMS[name].cost(SLOW, Shape(1, 1000, 10))
    assert cost == (0, 0, 0, 0)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_cost_is_near_for_random_supports(name, size):
    rng = np.random.default_rng(size)
    length, nnz = 2**16, 2**10
    inputs = [
        SparseVector(length, np.sort(rng.choice(length, nnz, replace=False)), np.ones(nnz, np.float32))
        for _ in range(size)
    ]
    cost = ALGORITHMS[name].cost(SLOW, Shape(size, length, nnz))
    counted = busiest(simulate(name, inputs).traffic, "bytes_sent")
    assert cost.messages == busiest(simulate(name, inputs).traffic, "messages_sent")
    assert cost.bytes_sent == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("name", ALGORITHMS)
@in_one_test(size=[1, 2, 3, 5, 8], shape=EDGE_SHAPES)
def test_simulator_carries_the_data(name, size, shape):
    inputs = EDGE_SHAPES[shape](size, "float64")
    for result in simulate(name, inputs).results:
        assert np.array_equal(dense(result), ORACLES[name](inputs))


def test_model_and_wire_agree_on_the_header():
    assert HEADER_BYTES == wire.HEADER_BYTES == wire.size(SparseVector.empty(0))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 1001])
@pytest.mark.parametrize("nnz", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_model_and_wire_agree_on_the_size_of_frames(dtype, nnz, length):
    nnz = min(nnz, length)
    vector = SparseVector(length, range(nnz), np.ones(nnz, dtype))
    shape = Shape(1, length, nnz, np.dtype(dtype).itemsize)
    assert shape.dense_frame_bytes(length) == wire.size(vector.as_dense())
    assert shape.frame_bytes(nnz, length) == min(wire.size(vector), wire.size(vector.as_dense()))


# -- golden times --------------------------------------------------------------------------------

# One byte takes a second; 100 s of latency; 3 s of a NIC for each message.
BYTEWISE = CostFigures(latency=100.0, bandwidth=1.0, overhead=3.0)
EMPTY = SparseVector.empty(0)  # a frame of 112 bytes: a NIC is busy with it for 3 + 112 = 115 s
EIGHT = SparseVector.from_dense(np.zeros(1))  # 120 bytes: 123 s


def seconds(*scripts):
    return simulator.run(scripts, BYTEWISE).finished_at


def send(*steps):
    yield [Send(peer, payload) for peer, payload in steps]


def receive(*peers):
    for peer in peers:
        yield [Recv(peer)]


def test_one_message_takes_latency_and_its_bytes():
    # the sender is busy until 115; the receiver from 100 to 215
    assert seconds(send((1, EMPTY)), receive(0)) == [115, 215]


def test_two_messages_leave_one_after_the_other():
    # sent 0..115 and 115..238; first bytes at 100 and 215; received 100..215 and 215..338
    assert seconds(send((1, EMPTY), (1, EIGHT)), receive(0, 0)) == [238, 338]


def test_one_nic_is_shared_by_messages_to_different_ranks():
    # to rank 1: 0..115, arrives 100..215; to rank 2: 115..238, arrives 215..338
    assert seconds(send((1, EMPTY), (2, EIGHT)), receive(0), receive(0)) == [238, 215, 338]


def test_messages_to_one_rank_queue_at_its_nic():
    # both first bytes are there at 100; received 100..215 and 215..338
    assert seconds(receive(1, 2), send((0, EMPTY)), send((0, EIGHT))) == [338, 115, 123]


def test_both_directions_of_a_nic_are_independent():
    def swap(rank):
        yield [Send(1 - rank, EMPTY), Recv(1 - rank)]

    assert seconds(swap(0), swap(1)) == [215, 215]


def test_rounds_add_up():
    def ping():
        yield [Send(1, EMPTY)]
        yield [Recv(1)]

    def pong():
        yield [Recv(0)]
        yield [Send(0, EIGHT)]

    # there at 215; back: sent 215..338, first byte at 315, received 315..438
    assert seconds(ping(), pong()) == [438, 338]


def test_a_script_goes_on_while_it_sends():
    def relay():  # the second send waits for the NIC, the script waits for nothing but its receive
        yield [Send(1, EIGHT)]
        yield [Send(1, EMPTY)]

    # sent 0..123 and 123..238; received 100..223 and 223..338
    assert seconds(relay(), receive(0, 0)) == [238, 338]


# -- golden times of computing ---------------------------------------------------------------------

# As BYTEWISE; an entry takes 10 s and a value 1 s.
COMPUTING = replace(BYTEWISE, seconds_per_entry=10.0, seconds_per_value=1.0)


def computed(*scripts):
    return simulator.run(scripts, COMPUTING).finished_at


def compute(entries=0, values=0, then=()):
    work.count(entries, values)
    yield from then


def test_work_delays_what_is_sent_after_it():
    # computes 0..25, sends 25..140, the first byte arrives at 125
    assert computed(compute(2, 5, then=send((1, EMPTY))), receive(0)) == [140, 240]


def test_work_of_others_delays_nobody():
    assert computed(compute(1000), send((2, EMPTY)), receive(1)) == [10000, 115, 215]


def test_a_message_that_comes_while_a_rank_computes_is_handled_afterwards():
    def busy():
        work.count(values=500)
        yield [Recv(0)]
        work.count(values=20)
        yield [Send(0, EMPTY)]

    def ask():
        yield [Send(1, EMPTY), Recv(1)]

    # the question is there at 215, handled 500..520; the answer is sent 520..635 and received 620..735
    assert computed(ask(), busy()) == [735, 635]


def test_a_rank_computes_while_its_nic_sends():
    def script():
        yield [Send(1, EIGHT)]
        work.count(values=50)
        yield [Send(1, EMPTY)]  # ready at 50, the NIC is free at 123
        work.count(values=300)

    # sent 0..123 and 123..238; computes until 350
    assert computed(script(), receive(0, 0)) == [350, 338]


def test_two_results_of_one_wait_leave_when_each_is_ready():
    def answer():
        yield [Recv(0)]
        yield [Recv(0)]  # has come with the first: both are handled from 338 on
        for _ in range(2):
            work.count(values=150)
            yield [Send(0, EMPTY)]

    def ask():
        yield [Send(1, EMPTY), Send(1, EIGHT)]
        yield [Recv(1)]
        yield [Recv(1)]

    # computed by 488 and 638; sent 488..603 and 638..753; received 588..703 and 738..853
    assert computed(ask(), answer()) == [853, 753]


def test_vectors_say_how_much_is_computed():
    sparse, full = SparseVector(100, [1, 50, 99], np.ones(3)), SparseVector.from_dense(np.ones(100))
    expected = {
        "merge of entries": (lambda: SUM.merge([sparse, sparse]), (6, 0)),
        # written, added, looked at for zeros
        "merge with a dense one": (lambda: SUM.merge([sparse, full]), (3, 300)),
        "dense sum": (lambda: SUM.dense([full, full]), (0, 200)),
        "to dense": (sparse.to_dense, (3, 100)),
        "dense to dense": (full.to_dense, (0, 0)),
        "to sparse": (full.as_sparse, (0, 100)),
        "concatenation of entries": (lambda: concat(sparse.split_evenly(3)), (0, 3)),
        "concatenation of values": (lambda: concat(full.split_evenly(3)), (0, 100)),
        "views": (lambda: (sparse.split_evenly(7), full.split_evenly(7)), (0, 0)),
    }
    for what, (call, (entries, values)) in expected.items():
        with work.measured() as meter:
            call()
        assert meter.work == (entries, values), what


# -- skew ------------------------------------------------------------------------------------------


def skewed(size, times):
    """Inputs whose first even range has ``times`` the share of each of the others, and their shape."""
    share, span = 64, 2**14
    counts = [times * share] + [share] * (size - 1)
    indices = np.concatenate([r * span + 8 * np.arange(count) for r, count in enumerate(counts)])
    vector = SparseVector(size * span, indices, np.ones(len(indices), np.float32))
    skew = counts[0] * size / len(indices)
    return [vector] * size, Shape(size, size * span, len(indices), 4, "identical", skew=skew)


@pytest.mark.parametrize("times", [1, 4, 16])
@pytest.mark.parametrize("size", [2, 4, 7, 16])
@pytest.mark.parametrize("name", ["split_allgather", "sparse_ring"])
def test_cost_knows_that_everybody_waits_for_the_fullest_range(name, size, times):
    inputs, shape = skewed(size, times)
    for network in NETWORKS.values():
        network = replace(network, latency=2.0**-20)
        assert ALGORITHMS[name].cost(network, shape).seconds == pytest.approx(
            simulate(name, inputs, network, shape).seconds, rel=0.1
        )


@pytest.mark.parametrize("size", [4, 7, 16])
def test_balanced_is_not_slowed_by_skew(size):
    network = replace(NETWORKS["computing counts"], latency=2.0**-20)
    (even, shape), (uneven, skewed_shape) = skewed(size, 1), skewed(size, 16)
    times_more = skewed_shape.nnz / shape.nnz
    assert (
        simulate("balanced", uneven, network).seconds
        < 1.3 * times_more * simulate("balanced", even, network).seconds
    )
    cost = ALGORITHMS["balanced"].cost
    assert cost(network, skewed_shape) == cost(network, replace(skewed_shape, skew=1.0))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_simulated_times_and_traffic_repeat_exactly(name):
    inputs = EDGE_SHAPES["skewed_to_one_range"](7, "float32")
    first, second = simulate(name, inputs), simulate(name, inputs)
    assert (first.finished_at, first.traffic) == (second.finished_at, second.traffic)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_local_and_simulator_count_the_same_traffic(name):
    inputs = EDGE_SHAPES["turns_dense"](6, "float32")
    assert simulate(name, inputs).traffic == run_local(ALGORITHMS[name].run, inputs)[1]


# -- what the papers claim -----------------------------------------------------------------------


def time_of(name, size, nnz, length, network):
    rng = np.random.default_rng(0)
    inputs = [
        SparseVector(length, np.sort(rng.choice(length, nnz, replace=False)), np.ones(nnz, np.float32))
        for _ in range(size)
    ]
    shape = Shape(size, length, nnz)
    return simulate(name, inputs, network, shape).seconds, ALGORITHMS[name].cost(network, shape).seconds


@pytest.mark.parametrize("which", [0, 1], ids=["simulated", "predicted"])
class TestRankings:
    per_message = CostFigures(latency=1e-3, bandwidth=125e6, overhead=1e-3)
    gigabit = CostFigures(latency=50e-6, bandwidth=125e6)
    fat = CostFigures(latency=1e-7, bandwidth=125e6)

    def test_recursive_doubling_wins_on_tiny_data_where_messages_are_dear(self, which):
        times = {name: time_of(name, 16, 4, 2**12, self.per_message)[which] for name in ALGORITHMS}
        sparse = {name: t for name, t in times.items() if not ALGORITHMS[name].dense}
        assert min(sparse, key=sparse.get) == "recursive_doubling"

    def test_split_allgather_beats_recursive_doubling_on_large_data_and_many_ranks(self, which):
        split, doubling = (
            time_of(name, 16, 2**13, 2**16, self.gigabit)[which]
            for name in ("split_allgather", "recursive_doubling")
        )
        assert 1.5 * split < doubling

    def test_split_allgather_wins_where_supports_overlap(self, which):
        inputs, shape = evenly(16, "identical", 4)
        times = {
            name: (simulate(name, inputs, self.fat, shape).seconds, algorithm.cost(self.fat, shape).seconds)[
                which
            ]
            for name, algorithm in ALGORITHMS.items()
        }
        assert min(times, key=times.get) == "split_allgather"

    def test_sparse_beats_dense_at_low_density(self, which):
        times = {name: time_of(name, 8, 2**10, 2**20, self.gigabit)[which] for name in ALGORITHMS}
        dense_times = [t for name, t in times.items() if ALGORITHMS[name].dense]
        assert max(t for name, t in times.items() if not ALGORITHMS[name].dense) < min(dense_times)

    def test_allgather_sum_grows_linearly_with_the_ranks(self, which):
        network = CostFigures(latency=0.0, bandwidth=125e6)
        times = [time_of("allgather_sum", size, 2**10, 2**18, network)[which] for size in (2, 3, 5, 9, 17)]
        assert times == pytest.approx([times[0] * n for n in (1, 2, 4, 8, 16)])

    def test_dense_ring_hardly_grows_with_the_ranks(self, which):
        network = CostFigures(latency=0.0, bandwidth=125e6)
        two, sixteen = (time_of("dense_ring", size, 1, 2**18, network)[which] for size in (2, 16))
        assert sixteen < 2 * two
