"""Benchmarks whose non-zeros come in blocks: distributions, traces, OmniReduce's rows, its model."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sparsewire.algorithms.omnireduce import OmniReduce
from sparsewire.bench import allreduce
from sparsewire.bench.allreduce.rows import make_rows
from sparsewire.bench.allreduce.touched import Touched
from sparsewire.bench.harness.contenders import choose_algorithms, configurations
from sparsewire.bench.harness.peers import choose_peers
from sparsewire.bench.harness.problem import Case, exact_sum, make_input, touched_blocks, trace_case
from sparsewire.bench.harness.trace_file import read_trace, write_trace
from sparsewire.bench.harness.variants import as_called, as_given, script_options
from sparsewire.bench.simulate import scale_of
from sparsewire.bench.trace import record_trace
from sparsewire.commands import app
from sparsewire.errors import InputError

# Twelve words: x is the most frequent, y and z come twice each, y first, and w once.
TEXT = "x x y  x z z  x y x  w x x"
TOUCHED = [[[0, 1], [0, 2]], [[0, 1], [0, 3]]]  # batches of three words, two ranks, two steps
DISTRIBUTIONS = ["blocks:16", "blocks:16,identical", "blocks:16,disjoint", "rows:16,zipf"]


@pytest.fixture
def trace(tmp_path):
    """A trace of that text, with rows of two positions."""
    text, path = tmp_path / "text", tmp_path / "small.npz"
    text.write_text(TEXT)
    write_trace(record_trace(path, ranks=2, row=2, batch=3, steps=2, data=text))
    return path


def supports(case):
    return [make_input(case, rank)[0] for rank in range(case.ranks)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("density", [0.01, 0.05, 0.25])
def test_non_zeros_are_whole_blocks_as_many_as_the_density_says(distribution, density):
    case = Case(4, 160 * 16, density, distribution=distribution, seed=3)
    for rank, support in enumerate(supports(case)):
        blocks, counts = np.unique(support // 16, return_counts=True)
        assert np.all(counts == 16)
        assert len(blocks) == max(1, round(160 * density))
        assert np.all(np.diff(support) > 0)
        assert np.array_equal(blocks, touched_blocks(case, rank))
        assert case.nnz == len(support)
        indices, values = make_input(case, rank)
        assert np.array_equal(indices, support)
        assert set(values) <= {1, 2, 3, 4}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_oracle_is_the_sum_of_the_inputs(distribution):
    case = Case(3, 640, 0.2, "int32", distribution, seed=1)
    total = np.zeros(640, np.int32)
    for rank in range(3):
        np.add.at(total, *make_input(case, rank))
    assert np.array_equal(exact_sum(case), total)


def test_blocks_are_everybody_s_the_same_or_nobody_else_s():
    def unions(overlap):
        found = supports(Case(4, 1600, 0.1, distribution=f"blocks:16{overlap}", seed=2))
        return [len(np.unique(np.concatenate(found))), len(set(map(bytes, found)))]

    assert unions(",identical") == [160, 1]
    assert unions(",disjoint") == [4 * 160, 4]
    union, different = unions("")
    assert different == 4
    assert 160 < union < 4 * 160


def test_any_block_is_equally_likely():
    counts = np.zeros(5)
    for seed in range(400):
        counts[touched_blocks(Case(1, 20, 0.4, distribution="blocks:4", seed=seed), 0)] += 1
    assert counts.sum() == 800
    assert np.all(np.abs(counts - 160) < 50)  # five standard deviations


def test_last_block_may_be_short_and_the_fullest_rank_counts():
    full = Case(2, 10, 1.0, distribution="blocks:4")
    assert [support.tolist() for support in supports(full)] == [list(range(10))] * 2
    assert full.nnz == 10
    sizes = {len(support) for seed in range(20) for support in supports(short(seed))}
    assert sizes == {2, 4}
    for seed in range(20):
        assert short(seed).nnz == max(map(len, supports(short(seed))))


def short(seed):
    """One of three blocks, the last of which has two positions."""
    return Case(2, 10, 1 / 3, distribution="blocks:4", seed=seed)


def test_zipf_rows_come_up_in_the_order_of_a_text():
    """The first two different words of a text of three, drawn by weights of 1 / i^1.1."""
    weights = np.arange(1, 4) ** -1.1
    weights /= weights.sum()
    pairs = {
        (i, j): weights[i] * weights[j] / (1 - weights[i]) + weights[j] * weights[i] / (1 - weights[j])
        for i, j in [(0, 1), (0, 2), (1, 2)]
    }
    seen = dict.fromkeys(pairs, 0)
    for seed in range(1500):
        seen[tuple(touched_blocks(Case(1, 6, 2 / 3, distribution="rows:2,zipf", seed=seed), 0).tolist())] += 1
    for pair, share in pairs.items():
        assert abs(seen[pair] - 1500 * share) < 5 * (1500 * share * (1 - share)) ** 0.5


def test_hot_rows_are_at_the_start_and_everybody_s():
    case = Case(4, 1 << 16, 0.05, distribution="rows:16,zipf")
    touched = [touched_blocks(case, rank) for rank in range(4)]
    assert all(np.median(rows) < 0.25 * case.blocks for rows in touched)
    assert set.intersection(*(set(rows[:4].tolist()) for rows in touched))
    assert len({bytes(rows) for rows in touched}) == 4


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ("blocks:0", "at least one position"),
        ("blocks:", "blocks:256, blocks:256,identical"),
        ("blocks:many", "'blocks:many' is not understood"),
        ("blocks:4,often", "blocks:256,disjoint"),
        ("rows:64", "rows:64,zipf"),
        ("rows:0,zipf", "at least one position"),
        ("rows:64,uniform", "not understood"),
        ("rows:7,zipf", "the size is 1000, which is no number of whole rows of 7; 1001 is"),
        ("trace:", "trace:FILE"),
        ("trace:missing.npz", "there is no trace missing.npz; `sparsewire bench trace FILE` records one"),
        ("stripes:3", "not understood"),
        ("blocks", "unknown distribution 'blocks'; known are uniform, .*, blocks:256"),
        ("blocks:100,disjoint", "3 of 10 blocks do not fit 4 times .* at most 1/4"),
    ],
)
def test_impossible_distribution_is_refused(distribution, message):
    with pytest.raises(InputError, match=message):
        Case(4, 1000, 0.3, distribution=distribution)


def test_trace_is_recorded_and_replayed(trace):
    found = read_trace(trace)
    assert [[rows.tolist() for rows in step] for step in found.steps] == TOUCHED
    assert (found.vocabulary, found.row, found.ranks, found.length) == (4, 2, 2, 8)
    case = trace_case(2, "float32", f"trace:{trace}", seed=1)
    assert (case.length, case.density, case.nnz) == (8, 0.5, 4)
    assert [support.tolist() for support in supports(case)] == [[0, 1, 2, 3], [0, 1, 6, 7]]
    assert np.count_nonzero(exact_sum(case)) == 6
    assert case.distribution_name == "trace:small.npz"  # the row says nothing about the host


def test_command_records_a_text_and_says_what_it_touches(tmp_path):
    text, path = tmp_path / "text", tmp_path / "t.npz"
    text.write_text(TEXT)
    words = ["-n", "2", "--row", "2", "--batch", "3", "--steps", "2", "--data", str(text)]
    done = CliRunner().invoke(app, ["bench", "trace", str(path), *words])
    assert done.exit_code == 0, done.output
    assert "t.npz: 4 rows of 2, 2 ranks" in done.output
    assert done.output.splitlines()[-1].split() == ["1", "2", "3", "50.00%", "1.5"]
    assert [[rows.tolist() for rows in step] for step in read_trace(path).steps] == TOUCHED


def test_committed_trace_is_small_and_has_hot_rows():
    path = Path(__file__).parents[2] / "benchmarks" / "trace.npz"
    assert path.stat().st_size < 300_000
    for step in range(8):
        case = trace_case(8, "float32", f"trace:{path}", seed=step)
        touched = Touched.of(case)
        assert max(touched.of_ranks) < touched.union < sum(touched.of_ranks)
        hottest = [set(touched_blocks(case, rank)[:8].tolist()) for rank in range(8)]
        assert set.intersection(*hottest)


@pytest.mark.parametrize(
    ("ranks", "seed", "message"),
    [
        (3, 0, "small.npz has 2 ranks, not 3"),
        (2, 2, "small.npz has 2 steps, of which the seed is one: use 0 to 1, not 2"),
    ],
)
def test_what_was_not_recorded_is_refused(trace, ranks, seed, message):
    with pytest.raises(InputError, match=message):
        trace_case(ranks, "float32", f"trace:{trace}", seed)


def test_a_text_that_is_too_short_is_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT)
    with pytest.raises(InputError, match="3 steps of 2 ranks take 18 words, and the text has 12"):
        record_trace(tmp_path / "t.npz", ranks=2, row=2, batch=3, steps=3, data=text)


def test_trace_of_another_length_is_refused(trace):
    with pytest.raises(InputError, match=r"the size is 16, and small\.npz has 8 positions: leave out --size"):
        Case(2, 16, 0.5, distribution=f"trace:{trace}")


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": [0, 1, 0, 2, 0, 1, 0, 4]},  # beyond the vocabulary
        {"rows": [0, 1, 2, 0, 0, 1, 0, 3]},  # not sorted
        {"rows": [0, 0, 0, 2, 0, 1, 0, 3]},  # twice
        {"rows": [0.0, 1, 0, 2, 0, 1, 0, 3]},
        {"counts": [[2, 2], [2, 3]]},
        {"counts": [[4, 4], [0, 0]]},
        {"counts": [2, 2, 2, 2]},
        {"row": 0},
        {"row": [2]},
        {"more": 1},
    ],
)
def test_damaged_trace_is_refused(tmp_path, damage):
    rows = [0, 1, 0, 2, 0, 1, 0, 3]
    whole = {"rows": rows, "counts": [[2, 2], [2, 2]], "vocabulary": 4, "row": 2}
    path = tmp_path / "t.npz"
    np.savez(path, **whole)
    assert read_trace(path).ranks == 2
    np.savez(path, **{**whole, **damage})
    with pytest.raises(InputError, match=r"t\.npz .*`sparsewire bench trace FILE` records one"):
        read_trace(path)


@pytest.mark.parametrize("content", [b"", b"some text", b"PK\x03\x04 and no more"])
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"t\.npz is no trace"):
        read_trace(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "8"], "a trace has a size of its own: leave out --size"),
        (["--density", "0.5"], "a trace has a density of its own: leave out --density"),
        (["--algorithms", "omnireduce-dedicated"], "say how many with --aggregators"),
        (["--aggregators", "1", "--driver", "local"], "--aggregators needs --driver tcp, not local"),
        (["--aggregators", "1", "--driver", "mpi"], "--aggregators needs --driver tcp, not mpi"),
    ],
)
def test_options_that_contradict_each_other_are_refused(trace, words, message):
    done = CliRunner().invoke(
        app, ["bench", "allreduce", "-n", "2", "--distribution", f"trace:{trace}", *words]
    )
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_dedicated_aggregators_bring_their_own_row():
    assert choose_algorithms("dense_ring", "tcp", aggregators=2) == ["dense_ring", "omnireduce-dedicated"]
    assert choose_algorithms("all", "tcp", aggregators=2)[-1] == "omnireduce-dedicated"
    assert "omnireduce-dedicated" not in choose_algorithms("all", "tcp")
    named = "omnireduce-dedicated,omnireduce-arrival,omnireduce-pairs"
    assert choose_algorithms(named, "tcp", aggregators=2) == named.split(",")


def test_peers_can_be_chosen():
    assert choose_peers("all", "tcp") == ("gloo-dense", "gloo-sparse")
    assert choose_peers("gloo-dense", "tcp") == ("gloo-dense",)
    assert choose_peers("all", "local") == ()
    with pytest.raises(InputError, match="unknown peer mpi-dense; known are gloo-dense, gloo-sparse"):
        choose_peers("mpi-dense", "tcp")


def test_dedicated_aggregators_always_code():
    runs, skipped = configurations(["omnireduce-dedicated", "dense_ring"], ["exact", "coo"])
    assert [str(run) for run in runs] == ["omnireduce-dedicated", "dense_ring", "dense_ring coo"]
    assert set(skipped) == {"omnireduce-dedicated coo"}


def test_omnireduce_is_called_as_its_row_says(trace):
    blocks = Case(2, 80, 0.1, distribution="blocks:16")
    table = trace_case(2, "float32", f"trace:{trace}", seed=0)
    uniform = Case(2, 80, 0.1)
    assert (
        as_called("omnireduce", blocks) == as_called("omnireduce-dedicated", blocks) == OmniReduce(block=16)
    )
    assert as_called("omnireduce-arrival", blocks) == OmniReduce(block=16, arrival=True)
    assert as_called("omnireduce-arrival", table) == OmniReduce(block=2, arrival=True)
    for case in (blocks, table, uniform):
        assert as_called("omnireduce-pairs", case) == "omnireduce"
        assert as_called("dense_ring", case) == "dense_ring"
        assert script_options("dense_ring", case) is None
    assert as_called("omnireduce", table) == as_called("omnireduce", uniform) == "omnireduce"
    assert script_options("omnireduce", table) == OmniReduce(block=2)
    assert as_given(np.arange(8), table).shape == (4, 2)
    assert as_given(np.arange(80), blocks).shape == (80,)


def test_model_follows_from_the_blocks_of_the_inputs(trace):
    """Of four rows of eight bytes each rank has two, and both together three; a byte takes a second."""
    touched = Touched.of(trace_case(2, "float32", f"trace:{trace}", seed=1))
    assert (touched.of_ranks, touched.union) == ((2, 2), 3)
    assert touched.seconds(8) == 1 / 2 * (2 / 4 + 3 / 4) * 32
    assert touched.seconds(8, aggregators=1) == 2 * 3 / 4 * 32
    assert touched.seconds(8, aggregators=2) == touched.seconds(8, aggregators=3) == 3 / 4 * 32
    assert touched.bytes_sent(0) == (2 + 3 * 1 / 2) * 8


def record(name, seconds, sent):
    return {
        "name": name,
        "precision": "exact",
        "digests": [],
        "seconds": [seconds],
        "moved": {"bytes_sent": sent, "bytes_received": sent, "messages": 1, "algorithm": name},
        "interface_sent": None,
        "interface_received": None,
        "wrong": 0,
    }


def of_rank(factor):
    sent = {"omnireduce": 28, "omnireduce-dedicated": 14, "omnireduce-pairs": 42, "dense_ring": 56}
    ours = [record(name, 10.0 * factor, nbytes * factor) for name, nbytes in sent.items()]
    return [*ours, record("gloo-dense", 10.0, None)]


def test_rows_say_model_and_touched_bytes_where_there_are_blocks(trace):
    case = trace_case(2, "float32", f"trace:{trace}", seed=1)
    made = make_rows(case, [of_rank(1), of_rank(2)], nnz_out=6, driver="tcp", network="8bit", aggregators=1)
    rows = {row.algorithm: row for row in made}
    assert {name: row.model_seconds for name, row in rows.items()} == {
        "omnireduce": 20.0,
        "omnireduce-dedicated": 48.0,
        "omnireduce-pairs": None,
        "dense_ring": None,
        "gloo-dense": None,
    }
    assert rows["omnireduce"].times_model == 1.0  # the slower rank took 20 seconds
    assert isclose(rows["omnireduce-dedicated"].times_model, 20 / 48)
    assert [rows[name].times_touched_bytes for name in ("omnireduce", "dense_ring", "gloo-dense")] == [
        2,
        4,
        None,
    ]
    assert [row.aggregators for row in made if row.algorithm == "omnireduce-dedicated"] == [1]
    assert {row.aggregators for row in made if row.algorithm != "omnireduce-dedicated"} == {0}
    assert {row.distribution for row in made} == {"trace:small.npz"}


def test_rows_without_blocks_or_without_a_rate_have_no_model(trace):
    case = trace_case(2, "float32", f"trace:{trace}", seed=1)
    without_rate = make_rows(case, [of_rank(1), of_rank(1)], nnz_out=6, driver="tcp")
    without_blocks = make_rows(
        Case(2, 8, 0.5), [of_rank(1), of_rank(1)], nnz_out=6, driver="tcp", network="8bit"
    )
    assert all(row.model_seconds is row.times_model is None for row in [*without_rate, *without_blocks])
    assert all(row.times_touched_bytes is None for row in without_blocks)
    assert without_rate[0].times_touched_bytes == 1.0


def test_picture_of_a_sweep(tmp_path, trace):
    pytest.importorskip("matplotlib")
    case = trace_case(2, "float32", f"trace:{trace}", seed=1)
    rows = make_rows(case, [of_rank(1), of_rank(2)], nnz_out=6, driver="tcp", network="8bit")
    allreduce.plot(rows, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_simulation_of_a_table_has_whole_rows_and_a_trace_is_not_shrunk(monkeypatch, trace):
    monkeypatch.setattr("sparsewire.bench.simulate.ROOM_BYTES", 1)
    monkeypatch.setattr("sparsewire.bench.simulate.FEWEST_ENTRIES", 1)
    assert scale_of(trace_case(2, "float32", f"trace:{trace}", seed=0)) == 1
    monkeypatch.setattr("sparsewire.bench.simulate.ROOM_BYTES", 1 << 14)
    words = ["-n", "4", "--size", str(37 * 112), "--density", "0.2", "--distribution", "rows:112,zipf"]
    done = CliRunner().invoke(app, ["simulate", "allreduce", *words, "--algorithms", "omnireduce,dense_ring"])
    assert done.exit_code == 0, done.output
    assert "simulated at 1/8" in done.output


@pytest.mark.parametrize("distribution", ["blocks:64", "rows:64,zipf"])
def test_one_process_runs_omnireduce_in_all_forms(tmp_path, distribution):
    path = tmp_path / "rows.json"
    words = ["-n", "3", "--size", "8k", "--density", "0.1", "--driver", "local", "--iterations", "1"]
    words += ["--distribution", distribution, "--json", str(path)]
    words += ["--algorithms", "omnireduce,omnireduce-arrival,omnireduce-pairs,dense_ring"]
    done = CliRunner().invoke(app, ["bench", "allreduce", *words])
    assert done.exit_code == 0, done.output
    rows = {row["algorithm"]: row for row in json.loads(path.read_text())["rows"]}
    assert len(rows) == 4
    assert all(row["wrong"] == 0 for row in rows.values())
    assert rows["omnireduce"]["bytes_sent_max"] == rows["omnireduce-arrival"]["bytes_sent_max"]
    assert rows["omnireduce"]["bytes_sent_max"] != rows["omnireduce-pairs"]["bytes_sent_max"]


def test_sweep_over_tcp_with_both_layouts(cli, tmp_path):
    pytest.importorskip("matplotlib")
    path, picture = tmp_path / "rows.json", tmp_path / "sweep.png"
    words = ["-n", 2, "--aggregators", 2, "--size", "8k", "--density", "0.05,1", "--iterations", 2]
    words += ["--algorithms", "omnireduce,omnireduce-arrival,omnireduce-pairs,dense_ring", "--no-peers"]
    done = cli(
        "bench", "allreduce", *words, "--distribution", "rows:32,zipf", "--json", path, "--plot", picture
    )
    assert done.returncode == 0, done.stderr
    saved = json.loads(path.read_text())
    names = ["dense_ring", "omnireduce", "omnireduce-arrival", "omnireduce-dedicated", "omnireduce-pairs"]
    for nnz in (13 * 32, 8192):
        rows = {row["algorithm"]: row for row in saved["rows"] if row["nnz_in"] == nnz}
        assert sorted(rows) == names
        assert all(row["wrong"] == 0 and len(row["seconds"]) == 2 for row in rows.values())
        assert [rows[name]["aggregators"] for name in names] == [0, 0, 0, 2, 0]
        assert all(row["times_touched_bytes"] > 0 for row in rows.values())
    assert "--density 0.05,1 " in saved["command"]
    assert " --aggregators 2 " in saved["command"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    for text in ("aggregators 2", "x touched", "density 0.05", "density 1 "):
        assert text in done.stdout
