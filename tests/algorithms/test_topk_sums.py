"""Sums of the largest entries: nothing is lost, what is chosen, and how many words travel."""

import math
from collections import deque
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsewire.algorithms import TOPK_ALGORITHMS, Context, Regions
from sparsewire.algorithms.ok_topk import TAU, region_cuts
from sparsewire.algorithms.quotas import Ladder, Owner, quotas
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers import simulator
from sparsewire.drivers.execution import Execution
from sparsewire.steps import Recv, Send
from sparsewire.testing import dense, run_local, same_bits
from sparsewire.vector import VALUE_DTYPES, SparseVector, value_dtype
from strategies import EDGE_SHAPES, FLOATS, LONG_SHAPES, SIZES, in_one_test, rank_vectors, read_only
from strategies import entries as same_value

NEAR = 1.25  # owners stop at magnitudes that differ by less
# Indices travel as they are, so that an entry of float32 is two words.
PLAIN = CostFigures(seconds_per_index=math.inf)
HEADER_BYTES = 112
DIRECT = Context()
# Messages are so dear that everything is gathered along a tree.
TREE = Context(figures=CostFigures(overhead=1.0))


def run(name, inputs, k, regions=None, seed=0):
    """Every rank's result, after checking what holds for any input."""
    inputs = [read_only(vector) for vector in inputs]
    script = partial(TOPK_ALGORITHMS[name].run, k=k, regions=regions)
    results, _ = run_local(script, inputs, seed)
    first = results[0]
    assert all(same_bits(first.total, result.total) for result in results), "ranks differ"
    assert all(first.regions == result.regions for result in results)
    assert first.total.nnz <= k
    assert not first.total.is_dense
    assert (first.total.start, first.total.stop) == (0, inputs[0].length)
    return results


def assert_conserved(inputs, results):
    """Exactly: for numbers whose sums are exact."""
    given = sum(dense(vector) for vector in inputs)
    assert np.array_equal(
        dense(results[0].total) + sum(dense(result.left) for result in results), given, equal_nan=True
    )


def largest(array, k):
    """The k largest magnitudes, the first of equals."""
    order = np.lexsort((np.arange(len(array)), -np.abs(array)))[:k]
    kept = np.zeros_like(array)
    kept[order] = array[order]
    return kept


def random_inputs(size, length, seed=0, scale=None):
    chance = np.random.default_rng(seed)
    scale = np.ones(length) if scale is None else scale
    return [
        SparseVector.from_dense((scale * chance.standard_normal(length)).astype(np.float32)).as_sparse()
        for _ in range(size)
    ]


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("name", TOPK_ALGORITHMS)
@in_one_test(dtype=["float32", "int64"], shape=EDGE_SHAPES)
def test_nothing_is_lost_whatever_the_shape(name, size, dtype, shape):
    inputs = EDGE_SHAPES[shape](size, dtype)
    for k in (1, 3, 100):
        assert_conserved(inputs, run(name, inputs, k))


@pytest.mark.parametrize("shape", LONG_SHAPES)
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("name", TOPK_ALGORITHMS)
def test_indices_of_any_size_are_integers(name, size, shape):
    inputs = LONG_SHAPES[shape](size, "float64")
    results = run(name, inputs, k=5)
    place = {}
    for vector in [results[0].total, *(result.left for result in results)]:
        for index, value in zip(vector.indices.tolist(), vector.values.tolist(), strict=True):
            place[index] = place.get(index, 0) + value
    expected = {}
    for vector in inputs:
        for index, value in zip(vector.indices.tolist(), vector.values.tolist(), strict=True):
            expected[index] = expected.get(index, 0) + value
    assert place == expected


@pytest.mark.parametrize("name", TOPK_ALGORITHMS)
@settings(max_examples=2 * settings.default.max_examples)
@given(data=st.data(), dtype=st.sampled_from(VALUE_DTYPES))
def test_nothing_is_lost_in_any_delivery_order(name, dtype, data):
    inputs = data.draw(rank_vectors(dtype, elements=st.integers(-8, 8)))
    k = data.draw(st.integers(1, inputs[0].length + 1))
    first = run(name, inputs, k, seed=data.draw(st.integers(0, 2**32)))
    assert_conserved(inputs, first)
    assert_conserved(inputs, run(name, inputs, k, first[0].regions))
    again = run(name, inputs, k, seed=1)
    assert all(same_bits(a.total, b.total) for a, b in zip(first, again, strict=True))
    assert all(same_bits(a.left, b.left) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TOPK_ALGORITHMS)
def test_what_is_not_finite_is_taken_like_any_large_value(name, dtype):
    inputs = [same_value(20, [rank, 9], 2.0, dtype) for rank in range(3)]
    nan_at = 16 if name == "spardl" else 6  # each of its two blocks has one entry
    inputs[1] = SparseVector(20, [1, 5, nan_at], np.array([1, np.inf, np.nan]).astype(value_dtype(dtype)))
    total = run(name, inputs, k=2)[0].total
    assert total.indices.tolist() == [5, nan_at]
    assert np.isinf(float(total.values[0]))
    assert np.isnan(float(total.values[1]))


# -- ok_topk -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "k"), [(1, 10), (2, 60), (3, 100), (4, 100), (7, 333), (16, 333), (16, 999)]
)
def test_ok_topk_takes_the_largest_of_the_sum_of_everybodys_largest(size, k):
    inputs = random_inputs(size, 5000)
    results = run("ok_topk", inputs, k)
    sums = sum(largest(dense(vector), k) for vector in inputs)
    total = results[0].total
    assert total.nnz == k
    kth = np.sort(np.abs(sums))[-k]
    got = dense(total)
    taken = got != 0
    # Ranks may have left a few entries behind, of the smallest.
    alike = np.isclose(got[taken], sums[taken], rtol=1e-6)
    assert alike.mean() > 0.95
    assert np.abs(got[taken]).min() >= kth / NEAR
    assert taken[np.abs(sums) > kth * NEAR].all()


@pytest.mark.parametrize("size", [4, 7])
@in_one_test(shape=EDGE_SHAPES)
def test_ok_topk_gives_the_same_bits_along_the_tree_and_by_direct_messages(size, shape):
    inputs = EDGE_SHAPES[shape](size, "float32")
    script = partial(TOPK_ALGORITHMS["ok_topk"].run, k=5)
    (direct, sent), (tree, sent_along_tree) = (
        run_local(partial(script, context=context), inputs) for context in (DIRECT, TREE)
    )
    assert all(same_bits(a.total, b.total) for a, b in zip(direct, tree, strict=True))
    assert all(same_bits(a.left, b.left) for a, b in zip(direct, tree, strict=True))
    assert direct[0].regions == tree[0].regions
    assert sent_along_tree[0].messages_sent < sent[0].messages_sent


def messages_sent(scripts):
    """How many messages each of so many ranks sends."""
    running = [Execution(script) for script in scripts]
    queue, sent = deque(), [0] * len(running)

    def advance(rank):
        while sends := running[rank].advance():
            sent[rank] += len(sends)
            queue.extend((rank, send) for send in sends)

    for rank in range(len(running)):
        advance(rank)
    while queue:
        source, send = queue.popleft()
        running[send.peer].deliver(source, send.payload)
        advance(send.peer)
    assert all(one.done for one in running)
    return sent


@pytest.mark.parametrize("size", [4, 7, 64, 256])
def test_ok_topk_tells_and_gathers_in_log_p_messages(size):
    inputs = [vector.largest(2 * size) for vector in random_inputs(min(size, 8), 16 * size)]
    even = Regions(tuple(range(0, 16 * size + 1, 16)))
    run = partial(TOPK_ALGORITHMS["ok_topk"].run, k=2 * size, regions=even, context=TREE)
    sent = messages_sent([run(rank, size, inputs[rank % len(inputs)]) for rank in range(size)])
    assert set(sent) == {size - 1 + 2 * (size - 1).bit_length()}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_an_entry_is_cleared_only_where_it_was_sent_and_is_in_the_result(size):
    inputs = random_inputs(size, 2000)
    results = run("ok_topk", inputs, k=50)
    in_result = set(results[0].total.indices.tolist())
    for vector, result in zip(inputs, results, strict=True):
        own, left = dense(vector), dense(result.left)
        cleared = np.flatnonzero((own != 0) & (left == 0))
        assert set(cleared.tolist()) <= in_result
        assert len(cleared) <= 50
        kept = left != 0
        assert np.array_equal(left[kept], own[kept])


def test_ok_topk_of_equal_values_takes_exactly_k():
    inputs = [same_value(1000, range(1000), 1.0, "float32") for _ in range(4)]
    results = run("ok_topk", inputs, k=100)
    assert results[0].total.nnz == 100
    assert set(results[0].total.values.tolist()) == {4.0}


def owners(histograms, sent=0):
    return [Owner(0, sent, 0, Ladder.of(np.array(histogram), len(histograms))) for histogram in histograms]


def test_an_owner_that_has_sent_all_it_had_keeps_no_more_than_it_can_pass_on():
    assert quotas(owners([[0, 90], [0, 0]], sent=50), 50) == [25, 0]


@pytest.mark.parametrize(
    ("histograms", "k", "expected"),
    [
        ([[0, 0], [0, 0]], 3, [0, 0]),
        ([[1, 1], [0, 2]], 9, [2, 2]),
        ([[5, 0], [5, 0]], 3, [2, 1]),
        ([[5, 2], [0, 1]], 3, [2, 1]),
        ([[7, 0], [0, 7]], 7, [0, 7]),
        ([[7, 0], [0, 7]], 8, [1, 7]),
        ([[1, 0], [1, 0], [8, 0]], 5, [1, 0, 4]),
    ],
)
def test_quotas(histograms, k, expected):
    assert quotas(owners(histograms), k) == expected


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=4, max_size=4), min_size=1, max_size=6),
    st.integers(1, 200),
)
def test_quotas_are_k_in_all_and_nobody_keeps_what_it_has_not(histograms, k):
    kept = quotas(owners(histograms), k)
    have = [sum(histogram) for histogram in histograms]
    assert sum(kept) == min(k, sum(have))
    assert all(0 <= mine <= available for mine, available in zip(kept, have, strict=True))


def loads(inputs, cuts):
    return np.histogram(np.concatenate([vector.indices for vector in inputs]), cuts)[0]


@pytest.mark.parametrize("size", [2, 3, 8, 64])
@pytest.mark.parametrize("power", [1, 3])
def test_regions_have_about_as_many_entries(size, power):
    chance = np.random.default_rng(0)
    length = 2**20
    inputs = [
        same_value(length, np.unique((length * chance.random(5000) ** power).astype(int)), 1.0, "float32")
        for _ in range(size)
    ]
    cuts = run("ok_topk", inputs, 5000)[0].regions.cuts
    assert (cuts[0], cuts[-1], len(cuts)) == (0, length, size + 1)
    counted = loads(inputs, cuts)
    assert counted.max() <= 1.25 * counted.mean()


def test_regions_of_nothing_are_even():
    nothing = np.zeros(66, np.int64)
    assert region_cuts([nothing] * 4, 100) == (0, 25, 50, 75, 100)
    assert region_cuts([nothing] * 3, 0) == (0, 0, 0, 0)


def test_regions_beyond_32_bits_are_exact_integers():
    inputs = [SparseVector(2**40, [2**39 + rank], np.ones(1)) for rank in range(2)]
    assert run("ok_topk", inputs, 2)[0].regions.cuts[-1] == 2**40


def test_regions_are_reused_until_they_are_old():
    inputs = random_inputs(4, 1000)
    first = run("ok_topk", inputs, 50)[0].regions
    assert first.age == 1
    second = run("ok_topk", random_inputs(4, 1000, seed=1), 50, first)[0].regions
    assert second == Regions(first.cuts, 2)
    others = random_inputs(4, 1000, scale=np.linspace(1, 9, 1000))
    assert run("ok_topk", others, 50, Regions(first.cuts, TAU))[0].regions.cuts != first.cuts


def test_regions_that_no_longer_fit_are_renewed_in_the_next_call():
    length, k = 4000, 100
    begin = np.where(np.arange(length) < 400, 9.0, 1.0)
    regions = run("ok_topk", random_inputs(4, length, scale=begin), k)[0].regions
    moved = random_inputs(4, length, scale=begin[::-1])
    results = run("ok_topk", moved, k, regions)
    assert results[0].regions.age == TAU
    assert_conserved_nearly(moved, results)
    renewed = run("ok_topk", moved, k, results[0].regions)[0].regions
    assert renewed.age == 1
    top = [vector.largest(k) for vector in moved]
    assert loads(top, renewed.cuts).max() <= 1.3 * k


def assert_conserved_nearly(inputs, results):
    given = sum(dense(vector) for vector in inputs)
    got = dense(results[0].total) + sum(dense(result.left) for result in results)
    assert np.allclose(got, given, rtol=0, atol=1e-4)


# -- words ---------------------------------------------------------------------------------------


def steps_of(kind, size, length, chance, count):
    """Dense gradients of every rank for some steps."""
    ramp = np.linspace(0, 1, length)
    for step in range(count):
        scale = {
            "i.i.d.": np.ones(length),
            "skewed": np.exp(6 * ramp),
            "jumping": np.exp((6 if step % 3 else -6) * ramp) * 10.0 ** (step % 2),
        }.get(kind)
        rows = chance.standard_normal((size, length))
        if kind == "everybody elsewhere":
            where = (np.arange(length) * size // length + step) % size
            yield [np.where(where == (rank + 1) % size, row, 0.01 * row) for rank, row in enumerate(rows)]
        elif kind == "one owner has all":
            common = 100 * (ramp > 1 - 1 / size) * (1 + step % 2)
            yield [row + common * row[::-1] for row in rows]
        else:
            yield [scale * row for row in rows]


def words_per_step(size, kind, length=8000, k=400, count=7, context=DIRECT):
    """The words that each rank received, and sent, in each step, with feedback, from a cold start."""
    chance = np.random.default_rng(size)
    residuals = [np.zeros(length, np.float32) for _ in range(size)]
    regions = None
    for gradients in steps_of(kind, size, length, chance, count):
        scripts = []
        for rank, gradient in enumerate(gradients):
            vector = SparseVector.from_dense(residuals[rank] + gradient.astype(np.float32))
            scripts.append(TOPK_ALGORITHMS["ok_topk"].run(rank, size, vector, k, regions, context))
        simulation = simulator.run(scripts, PLAIN)
        regions = simulation.results[0].regions
        residuals = [result.left.to_dense() for result in simulation.results]
        assert simulation.results[0].total.nnz == k
        yield (
            [(t.bytes_received - HEADER_BYTES * t.messages_received) / 4 for t in simulation.traffic],
            [(t.bytes_sent - HEADER_BYTES * t.messages_sent) / 4 for t in simulation.traffic],
        )


def promised(size, k):
    """6k(P-1)/P words; reports, classes of magnitude and padding depend on the number of ranks only."""
    return 6 * k * (size - 1) / size + 4 * math.isqrt(k) + 700 * (size - 1)


KINDS = ["i.i.d.", "skewed", "jumping", "everybody elsewhere", "one owner has all"]
FEW_STEPS = [
    *[(size, kind, 7) for size in (2, 3, 4, 5, 8) for kind in KINDS],
    *[(16, kind, 4) for kind in KINDS],
    (64, "jumping", 2),
]


@pytest.mark.parametrize(("size", "kind", "count"), FEW_STEPS)
def test_nobody_moves_more_than_the_promised_words_in_any_step(size, kind, count):
    for received, sent in words_per_step(size, kind, count=count):
        assert max(received) <= promised(size, 400)
        assert max(sent) <= promised(size, 400)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 7])
def test_nobody_moves_more_than_the_promised_words_along_the_tree(size, kind):
    for received, sent in words_per_step(size, kind, count=3, context=TREE):
        assert max(received) <= promised(size, 400)
        assert max(sent) <= promised(size, 400)


@pytest.mark.parametrize("kind", ["i.i.d.", "skewed"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_rank_receives_less_than_4k_words_on_average(size, kind):
    k = 20_000
    steps = [received for received, _ in words_per_step(size, kind, length=500_000, k=k, count=3)]
    assert np.mean(steps) < 4 * k
    assert np.max(steps) <= promised(size, k)


def test_an_owner_that_has_all_deals_it_out():
    size, k, length = 8, 800, 8000
    inputs = [
        SparseVector.from_dense(np.where(np.arange(length) < 900, 9.0, 1e-3).astype(np.float32))
        for _ in range(size)
    ]
    even = Regions(tuple(range(0, length + 1, length // size)))
    scripts = [TOPK_ALGORITHMS["ok_topk"].run(rank, size, v, k, even) for rank, v in enumerate(inputs)]
    simulation = simulator.run(scripts, PLAIN)
    words = [(t.bytes_sent - HEADER_BYTES * t.messages_sent) / 4 for t in simulation.traffic]
    assert simulation.traffic[0].rounds == 4
    assert max(words) <= 6 * k * (size - 1) / size + size * 100


# -- gtopk ---------------------------------------------------------------------------------------


def tree(arrays, k):
    """The result of gTop-k and what each rank dropped, in dense numpy."""
    arrays = list(arrays)
    dropped = [np.zeros_like(array) for array in arrays]

    def keep(rank):
        kept = largest(arrays[rank], k)
        dropped[rank] += arrays[rank] - kept
        arrays[rank] = kept

    for rank in range(len(arrays)):
        keep(rank)
    distance = 1
    while distance < len(arrays):
        for rank in range(0, len(arrays) - distance, 2 * distance):
            arrays[rank] = arrays[rank] + arrays[rank + distance]
            keep(rank)
        distance *= 2
    return arrays[0], dropped


@pytest.mark.parametrize("size", SIZES)
def test_gtopk_is_what_the_tree_says(size):
    chance = np.random.default_rng(size)
    arrays = [chance.permutation(np.arange(-100.0, 100.0)) for _ in range(size)]
    results = run("gtopk", [SparseVector.from_dense(array) for array in arrays], k=20)
    total, dropped = tree(arrays, 20)
    assert np.array_equal(dense(results[0].total), total)
    assert all(np.array_equal(dense(r.left), left) for r, left in zip(results, dropped, strict=True))


# -- spardl --------------------------------------------------------------------------------------


def blockwise(arrays, k):
    """The result of SparDL and what each rank dropped, in dense numpy."""
    size, length = len(arrays), len(arrays[0])
    count = min(size, k)
    cuts = [length * block // count for block in range(count + 1)]
    total, dropped = np.zeros(length), [np.zeros(length) for _ in arrays]

    def keep(rank, block, array):
        kept = largest(array, k * (block + 1) // count - k * block // count)
        dropped[rank][cuts[block] : cuts[block + 1]] += array - kept
        return kept

    for block in range(count):
        sums = {
            rank: keep(rank, block, array[cuts[block] : cuts[block + 1]]) for rank, array in enumerate(arrays)
        }
        # What is at distance d from the owner, d >= the power of two, moves towards it by that power.
        for power in reversed([2**bit for bit in range((size - 1).bit_length())]):
            for distance in range(power, min(2 * power, size)):
                source, target = (block - distance) % size, (block - distance + power) % size
                sums[target] = keep(target, block, sums[target] + sums.pop(source))
        total[cuts[block] : cuts[block + 1]] = sums[block]
    return total, dropped


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 7, 20])
def test_spardl_is_what_the_blocks_say(size, k):
    chance = np.random.default_rng(size)
    arrays = [chance.permutation(np.arange(-100.0, 100.0)) for _ in range(size)]
    results = run("spardl", [SparseVector.from_dense(array) for array in arrays], k)
    total, dropped = blockwise(arrays, k)
    assert np.array_equal(dense(results[0].total), total)
    assert all(np.array_equal(dense(r.left), left) for r, left in zip(results, dropped, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 33])
@pytest.mark.parametrize("kind", KINDS)
def test_spardl_moves_4k_words_at_most(size, kind):
    k, [gradients] = 400, steps_of(kind, size, 8000, np.random.default_rng(size), 1)
    vectors = [SparseVector.from_dense(gradient.astype(np.float32)) for gradient in gradients]
    run = TOPK_ALGORITHMS["spardl"].run
    simulation = simulator.run([run(rank, size, vector, k) for rank, vector in enumerate(vectors)], PLAIN)
    rounds = (size - 1).bit_length()
    for traffic in simulation.traffic:
        assert traffic.messages_sent == traffic.messages_received == 2 * rounds
        # In each message: two headers at most, and the padding of two arrays each.  A share is rounded up.
        most = 4 * (4 * k * (size - 1) / size + 4 * size) + 2 * rounds * 2 * (HEADER_BYTES + 8)
        assert max(traffic.bytes_sent, traffic.bytes_received) <= most


@pytest.mark.parametrize("size", [64, 100, 128])
def test_spardl_sends_log_p_messages(size):
    inputs = [same_value(4 * size, range(rank % 4, 4 * size, 64), 1.0, "float32") for rank in range(size)]
    run = TOPK_ALGORITHMS["spardl"].run
    sent = messages_sent([run(rank, size, vector, 2 * size) for rank, vector in enumerate(inputs)])
    assert set(sent) == {2 * (size - 1).bit_length()}


def messages_of_one(script):
    """How many messages a rank sends if all that it receives are empty pieces."""
    received, sent = None, 0
    while True:
        try:
            steps = script.send(received)
        except StopIteration:
            return sent
        sent += sum(isinstance(step, Send) for step in steps)
        awaited = [step.expected.pieces for step in steps if isinstance(step, Recv)]
        received = [[SparseVector.empty(e.length).range(e.start, e.stop) for e in one] for one in awaited]


@pytest.mark.parametrize("rank", [0, 1, 500, -1])
@pytest.mark.parametrize("size", [511, 512, 1000, 1024])
def test_a_rank_of_a_thousand_sends_twenty_messages(size, rank):
    vector = random_inputs(1, 2**14)[0]
    script = TOPK_ALGORITHMS["spardl"].run(rank % size, size, vector, k=2**12)
    assert messages_of_one(script) == 2 * (size - 1).bit_length()


@pytest.mark.parametrize("size", [*range(2, 1025, 73), 256, 512, 1024])
@pytest.mark.parametrize("name", ["gtopk", "spardl"])
def test_messages_are_predicted_to_grow_like_log_p(name, size):
    cost = TOPK_ALGORITHMS[name].cost(CostFigures(), Shape(size, 2**24, 2**24 // 100))
    assert cost.messages <= 2 * (size - 1).bit_length()


# -- costs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "overhead"), [*((size, 2e-5) for size in (1, 2, 3, 4, 8, 16)), (4, 1e-3), (7, 1e-3)]
)
@pytest.mark.parametrize("name", TOPK_ALGORITHMS)
def test_cost_is_near_what_the_simulator_counts(name, size, overhead):
    k, length = 1000 * size, 2**18
    inputs = [vector.largest(k) for vector in random_inputs(size, length)]
    regions = run(name, inputs, k)[0].regions
    network = CostFigures(seconds_per_index=0, overhead=overhead)
    algorithm = TOPK_ALGORITHMS[name]
    context = Context(figures=network)
    scripts = [algorithm.run(rank, size, vector, k, regions, context) for rank, vector in enumerate(inputs)]
    simulation = simulator.run(scripts, network)
    cost = algorithm.cost(network, Shape(size, length, k))
    assert cost.messages == max(traffic.messages_sent for traffic in simulation.traffic)
    assert cost.bytes_sent == pytest.approx(max(t.bytes_sent for t in simulation.traffic), rel=0.1)
    assert cost.seconds == pytest.approx(simulation.seconds, rel=0.15)
