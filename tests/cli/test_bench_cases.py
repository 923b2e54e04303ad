"""What the benchmark feeds to every contender, and how its numbers are derived: no processes here."""

from __future__ import annotations

import numpy as np
import pytest

from sparsewire.bench import overlap
from sparsewire.bench.allreduce.rows import best, make_rows
from sparsewire.bench.harness.bounds import Bounds
from sparsewire.bench.harness.clock import Moved, drop_slow, iteration_counts, measure, takes_part
from sparsewire.bench.harness.contenders import SingleProcess
from sparsewire.bench.harness.problem import (
    DISTRIBUTIONS,
    Case,
    count_wrong,
    exact_sum,
    make_input,
    parse_size,
)
from sparsewire.bench.overlap import times_longer_alone
from sparsewire.errors import InputError

DENSITIES = [0.001, 0.05, 0.2]  # 0.2 is drawn in another way than sparser ones


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16M", 16 << 20),
        ("64k", 64 << 10),
        ("64K", 64 << 10),
        ("1G", 1 << 30),
        ("1000", 1000),
        ("1.5M", 3 << 19),
    ],
)
def test_size_suffixes_are_powers_of_1024(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "0", "16Q", "1.5", "16 M B", "1e6", "0.0000001k"])
def test_size_that_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="is not understood"):
        parse_size(text)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("density", DENSITIES)
def test_input_is_a_valid_vector_and_reproducible(distribution, density):
    case = Case(4, 5000, density, distribution=distribution, seed=3)
    for rank in range(4):
        indices, values = make_input(case, rank)
        assert len(indices) == len(values) == case.nnz == round(5000 * density)
        assert indices[0] >= 0
        assert indices[-1] < 5000
        assert np.all(np.diff(indices) > 0)
        assert values.dtype == np.float32
        assert np.all((values >= 1) & (values <= 4) & (values == np.round(values)))
        again = make_input(case, rank)
        assert np.array_equal(again[0], indices)
        assert np.array_equal(again[1], values)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_ranks_and_seeds_differ(distribution):
    case = Case(2, 5000, 0.05, distribution=distribution)
    other_seed = Case(2, 5000, 0.05, distribution=distribution, seed=1)
    assert not np.array_equal(make_input(case, 0)[1], make_input(case, 1)[1])
    assert not np.array_equal(make_input(case, 0)[0], make_input(other_seed, 0)[0])


def test_distributions_are_what_their_names_say():
    supports = {
        name: [make_input(Case(4, 10_000, 0.05, distribution=name), rank)[0] for rank in range(4)]
        for name in DISTRIBUTIONS
    }
    unions = {name: len(np.unique(np.concatenate(support))) for name, support in supports.items()}
    assert unions["identical"] == 500
    assert unions["disjoint"] == 4 * 500
    assert 500 < unions["zipf"] < unions["uniform"] < 4 * 500
    for support in supports["rows"]:  # 500 entries: all rows are whole but one or two
        lengths = np.unique(support // 64, return_counts=True)[1]
        assert np.count_nonzero(lengths == 64) >= len(lengths) - 2 >= 6
    for support in supports["disjoint"]:  # spread over the whole range, not a block each
        assert support[0] < 1000
        assert support[-1] > 9000
    assert all(np.median(support) < 2500 for support in supports["zipf"])
    assert all(4000 < np.median(support) < 6000 for support in supports["uniform"])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_oracle_is_the_integer_sum_in_every_dtype(dtype, distribution):
    case = Case(8, 1000, 0.1, dtype, distribution)
    total = np.zeros(1000, np.int64)
    for rank in range(8):
        indices, values = make_input(case, rank)
        np.add.at(total, indices, values.astype(np.int64))
    assert exact_sum(case).dtype.name == dtype
    assert np.array_equal(exact_sum(case).astype(np.int64), total)


@pytest.mark.parametrize("nnz", [1, 7])
def test_extreme_shapes_have_inputs(nnz):
    assert len(make_input(Case(1, 7, nnz / 7), 0)[0]) == nnz
    assert len(make_input(Case(3, 7, nnz / 7, distribution="zipf"), 2)[0]) == nnz
    assert len(make_input(Case(3, 7, nnz / 7, distribution="rows"), 2)[0]) == nnz


@pytest.mark.parametrize("length", [64, 65, 127, 128, 1000])
def test_rows_reach_every_count_also_where_the_last_row_is_short(length):
    for nnz in (1, 63, 64, length - 1, length):
        for rank in range(5):
            indices, _ = make_input(Case(5, length, nnz / length, distribution="rows"), rank)
            assert len(np.unique(indices)) == nnz
            assert indices[-1] < length


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "at least one rank"),
        ({"length": 0}, "at least 1"),
        ({"density": 0.0}, "above 0"),
        ({"density": 1.5}, "at most 1"),
        ({"density": float("nan")}, "density"),
        ({"dtype": "complex64"}, "float32, float64"),
        ({"distribution": "gaussian"}, "uniform, zipf, rows, identical, disjoint"),
        ({"distribution": "disjoint", "density": 0.3}, "at most 1/4"),
        ({"seed": -1}, "seed"),
        ({"dtype": "bfloat16", "ranks": 100}, "not exact in bfloat16"),
    ],
)
def test_impossible_case_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Case(**{"ranks": 4, "length": 1000, "density": 0.1, **arguments})


def test_wrong_entries_are_counted():
    expected = np.array([1, 2, 3, 0], np.float32)
    assert count_wrong(expected.copy(), expected) == 0
    assert count_wrong(np.array([1, 2, 4, np.nan], np.float32), expected) == 2
    assert count_wrong(expected[:3], expected) == 4
    assert count_wrong(expected.astype(np.float64), expected) == 4


def test_entries_beyond_the_bound_are_counted():
    expected, bound = np.array([1, 0, 3, 0, 8], np.float32), np.array([0.5, 0.25, 0.0])
    assert count_wrong(np.array([1.5, 0, 2.75, 0, 8], np.float32), expected, bound) == 0
    assert count_wrong(np.array([0.5, 0, 3.25, 0, 8], np.float32), expected, bound) == 0
    assert count_wrong(np.array([1.75, 0, 2.5, 0, 9], np.float32), expected, bound) == 3
    assert count_wrong(np.array([1, 1e-9, 3, 0, np.nan], np.float32), expected, bound) == 2
    assert count_wrong(np.array([1, 0, 3, np.inf, np.inf], np.float32), expected, bound) == 2
    assert count_wrong(expected.astype(np.float64), expected, bound) == 5


ROUNDED = {"float16": 2**-11, "bfloat16": 2**-8, "qsgd2": 1, "qsgd4": 1 / 7, "qsgd8": 1 / 127}


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("distribution", ["uniform", "disjoint"])
def test_bound_is_one_rounding_of_every_contribution_and_one_of_the_sum(precision, distribution):
    case = Case(3, 200, 0.1, distribution=distribution, seed=5)
    share = ROUNDED[precision]
    total, lost = np.zeros(200), np.zeros(200)
    for rank in range(3):
        for index, value in zip(*make_input(case, rank), strict=True):
            largest = max(make_input(case, rank)[1])
            total[index] += value
            lost[index] += share * (largest if precision.startswith("qsgd") else value)
    after = total + lost
    lost += share * (after.max() if precision.startswith("qsgd") else after)
    bound = Bounds(case, exact_sum(case)).of(precision)
    ratio = bound / lost[total > 0]
    assert np.all((ratio >= 1) & (ratio < 1.01))


@pytest.mark.parametrize("precision", ["exact", "coo"])
def test_what_is_not_rounded_has_no_bound(precision):
    case = Case(3, 200, 0.1)
    assert Bounds(case, exact_sum(case)).of(precision) is None


def test_iterations_share_the_budget_and_slow_contenders_get_the_minimum():
    assert iteration_counts([0.1, 10.0, 1e-6], budget_s=6.0) == [20, 7, 200]


def test_what_was_dropped_has_no_turns_and_no_share():
    assert iteration_counts([0.1, None, 0.1], budget_s=4.0) == [20, 0, 20]


def test_what_is_far_from_the_fastest_is_dropped_and_auto_never():
    seconds = [("a", 1.0), ("b", 3.9), ("c", 4.1), ("auto", 9.0)]
    assert drop_slow(seconds, 4.0) == [1.0, 3.9, None, 9.0]
    assert drop_slow(seconds, None) == [1.0, 3.9, 4.1, 9.0]
    assert drop_slow([("a", 1e-5), ("a", 2e-3)], 4.0) == [1e-5, 2e-3]  # the machine's noise, perhaps


@pytest.mark.parametrize(("count", "total"), [(5, 5), (5, 17), (1, 9), (9, 10)])
def test_turns_are_spread_evenly(count, total):
    turns = [i for i in range(total) if takes_part(i, count, total)]
    assert len(turns) == count
    gaps = np.diff(turns)
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


class Fake:
    """A contender that writes down its turns and is wrong when told to."""

    def __init__(self, name: str, turns: list[str], result: np.ndarray, precision: str = "exact") -> None:
        self.name, self.turns, self.result, self.precision = name, turns, result, precision

    def prepare(self):
        self.turns.append(f"prepare {self.name}")

    def run(self):
        self.turns.append(f"run {self.name}")

    def moved(self):
        return Moved(bytes_sent=10, bytes_received=20, messages=1)

    def results(self):
        yield self.result


class FakeRanks:
    def __init__(self, turns: list[str]) -> None:
        self.turns = turns

    def barrier(self):
        self.turns.append("barrier")

    def agree(self, numbers):
        return [3 for _ in numbers]


def test_contenders_take_turns_behind_barriers_and_are_checked():
    turns: list[str] = []
    right, wrong = np.arange(4.0), np.array([0.0, 1.0, 9.0, 9.0])
    told: list[tuple[int, int]] = []
    records = measure(
        [Fake("a", turns, right), Fake("b", turns, wrong)],
        FakeRanks(turns),
        right,
        budget_s=1.0,
        on_progress=lambda done, total: told.append((done, total)),
    )
    turn = {name: [f"prepare {name}", "barrier", f"run {name}"] for name in "ab"}
    assert len(turns) == 5 * 6  # two rounds to warm up, then as many as rank 0 said
    for first in range(0, len(turns), 6):
        assert turns[first : first + 6] in (turn["a"] + turn["b"], turn["b"] + turn["a"])
    assert [len(record.seconds) for record in records] == [3, 3]
    assert [len(record.warm_up_seconds) for record in records] == [2, 2]
    assert [record.wrong for record in records] == [0, 2]
    assert told == [(0, 3), (1, 3), (2, 3)]


def test_the_order_of_turns_changes_and_is_the_same_on_every_rank():
    def order() -> list[str]:
        turns: list[str] = []
        contenders = [Fake(name, turns, np.ones(1)) for name in "abc"]
        measure(contenders, SingleProcess(), np.ones(1), budget_s=1.0, iterations=20)
        return [turn[4:] for turn in turns if turn.startswith("run")][6:]

    rounds = [tuple(order()[first : first + 3]) for first in range(0, 60, 3)]
    assert all(set(one) == set("abc") for one in rounds)
    assert len(set(rounds)) == 6  # every order of three
    assert order() == order()


def test_interface_bytes_are_read_behind_a_second_barrier():
    turns: list[str] = []
    readings = iter([(0, 0), (7, 8)] * 5)
    [record] = measure(
        [Fake("a", turns, np.ones(1))],
        FakeRanks(turns),
        np.ones(1),
        budget_s=1.0,
        interface_bytes=lambda: next(readings),
    )
    assert turns[:4] == ["prepare a", "barrier", "run a", "barrier"]
    assert (record.interface_sent, record.interface_received) == (7, 8)


def test_rounded_results_are_held_to_their_bound_and_fingerprinted():
    right, near = np.arange(4.0), np.array([0.0, 1.0, 2.5, 3.0])
    contenders = [
        Fake("a", [], near),
        Fake("a", [], near, "float16"),
        Fake("a", [], right, "float16"),
        Fake("a", [], near, "qsgd8"),
    ]
    bounds = {"exact": None, "float16": np.array([0.5, 0.5, 0.5]), "qsgd8": np.array([1.0, 0.25, 1.0])}
    records = measure(contenders, SingleProcess(), right, budget_s=1.0, iterations=1, bound=bounds.get)
    assert [(record.precision, record.wrong) for record in records] == [
        ("exact", 1),
        ("float16", 0),
        ("float16", 0),
        ("qsgd8", 1),
    ]
    digests = [record.digests for record in records]
    assert digests[0] == []
    assert digests[1] == digests[3] != digests[2]
    assert [len(found) for found in digests[1:]] == [1, 1, 1]


def record(
    name, seconds, sent=None, received=None, interface=(None, None), wrong=0, precision="exact", digests=()
):
    moved = {
        "bytes_sent": sent,
        "bytes_received": received,
        "messages": 3 if sent else None,
        "algorithm": name,
    }
    return {
        "name": name,
        "precision": precision,
        "digests": digests,
        "seconds": seconds,
        "moved": moved,
        "interface_sent": interface[0],
        "interface_received": interface[1],
        "wrong": wrong,
    }


def test_rows_are_derived_as_documented():
    rank_0 = [
        record("dense_ring", [4.0, 4.0, 5.0], 1000, 1000, (1100, 1100)),
        record("split_allgather", [1.0, 0.1, 1.0], 50, 60, (55, 65)),
        record("gloo-dense", [6.0, 6.0, 6.0], interface=(900, 950)),
    ]
    rank_1 = [
        record("dense_ring", [3.0, 4.0, 3.0], 1000, 1000, (1100, 1100)),
        record("split_allgather", [0.5, 1.0, 2.0], 80, 40, (85, 45), wrong=2),
        record("gloo-dense", [6.0, 6.0, 5.0], interface=(700, 1000)),
    ]
    rows = make_rows(Case(2, 1000, 0.1), [rank_0, rank_1], nnz_out=150, driver="tcp", network="80bit")
    assert [row.algorithm for row in rows] == ["split_allgather", "dense_ring", "gloo-dense"]
    split, ring, gloo = rows
    assert split.seconds == [1.0, 1.0, 2.0]  # the slower rank of each iteration
    assert (split.seconds_min, split.seconds_median) == (1.0, 1.0)
    assert (split.bytes_sent_max, split.bytes_received_max, split.interface_bytes_max) == (80, 60, 85)
    assert split.wire_limit_seconds == 80 * 8 / 80
    assert split.times_wire_limit == 1.0 / 8.0
    assert (split.speedup_vs_dense, split.speedup_vs_gloo_dense) == (4.0, 6.0)
    assert split.speedup_vs_gloo_sparse is None
    assert split.wrong == 2
    assert (split.density_in, split.density_out, split.nnz_in, split.nnz_out) == (0.1, 0.15, 100, 150)
    assert ring.speedup_vs_dense == 1.0
    assert (gloo.bytes_sent_max, gloo.bytes_received_max, gloo.messages_max) == (900, 1000, None)
    assert gloo.wire_limit_seconds == 100.0
    assert best(rows) is ring  # the faster one is wrong, and gloo is not ours


def test_mpi_peers_are_baselines_and_never_the_best():
    records = [
        record("allgather_sum", [2.0], 50, 60),
        record("mpi-dense", [8.0]),
        record("mpi-same-bytes", [1.0]),
        record("barrier", [0.5], 8, 8),
    ]
    rows = make_rows(Case(1, 1000, 0.1), [records], nnz_out=100, driver="mpi")
    ours = next(row for row in rows if row.algorithm == "allgather_sum")
    assert (ours.speedup_vs_mpi_dense, ours.speedup_vs_mpi_same_bytes) == (4.0, 0.5)
    assert ours.speedup_vs_gloo_dense is None
    assert best(rows) is ours


def test_precisions_are_rows_of_their_own_and_compared_with_plain_indices():
    records = [
        record("allgather_sum", [2.0], 50, 60),
        record("allgather_sum", [3.0], 90, 90, precision="coo"),
        record("allgather_sum", [1.0], 30, 30, precision="float16", digests=[7]),
        record("dense_ring", [9.0], 99, 99),
        record("dense_ring", [8.0], 99, 99, precision="coo"),
        record("gloo-dense", [6.0]),
    ]
    rows = make_rows(Case(1, 1000, 0.1), [records], nnz_out=100, driver="tcp")
    found = {(row.algorithm, row.precision): row for row in rows}
    assert len(found) == 6
    vs_coo = {key: row.speedup_vs_coo for key, row in found.items()}
    assert vs_coo["allgather_sum", "exact"] == 1.5
    assert vs_coo["allgather_sum", "float16"] == 3.0
    assert vs_coo["dense_ring", "exact"] == 8 / 9
    assert vs_coo["gloo-dense", "exact"] is None
    assert found["allgather_sum", "float16"].speedup_vs_dense == 8.0
    assert found["allgather_sum", "float16"].speedup_vs_gloo_dense == 6.0
    assert best(rows) is found["allgather_sum", "exact"]  # the faster one is not exact


def test_ranks_with_other_bits_are_wrong_even_within_the_bound():
    def of_rank(digest):
        return [record("allgather_sum", [2.0], 50, 60, precision="qsgd4", digests=digest, wrong=1)]

    case = Case(3, 1000, 0.1)
    [same] = make_rows(case, [of_rank([5]), of_rank([5]), of_rank([5])], nnz_out=100, driver="tcp")
    [other] = make_rows(case, [of_rank([5]), of_rank([6]), of_rank([6])], nnz_out=100, driver="tcp")
    [local] = make_rows(case, [of_rank([5, 5, 4])], nnz_out=100, driver="local")
    assert (same.wrong, other.wrong, local.wrong) == (3, 3 + 2, 1 + 1)


def test_overlap_is_judged_against_the_longer_of_the_two():
    rank_0 = [record("communication", [2.0, 2.0, 3.0]), record("computing", [4.0] * 3)]
    rank_1 = [record("communication", [1.0, 2.5, 3.0]), record("computing", [3.0] * 3)]
    rank_0.append(record("together", [5.0, 4.0, 5.0]))
    rank_1.append(record("together", [5.0, 5.0, 4.0], wrong=1))
    rows = overlap.make_rows(Case(2, 1000, 0.1), [rank_0, rank_1], "tcp", "1gbit")
    assert [row.seconds_median for row in rows] == [2.5, 4.0, 5.0]
    assert [row.wrong for row in rows] == [0, 0, 1]
    assert times_longer_alone(rows) == 1.25


def test_without_a_rate_there_is_no_wire_limit_and_without_dense_no_speedup():
    [row] = make_rows(Case(1, 10, 0.5), [[record("auto", [1.0], 1, 1)]], nnz_out=5, driver="tcp")
    assert row.wire_limit_seconds is row.speedup_vs_dense is row.times_wire_limit is None
