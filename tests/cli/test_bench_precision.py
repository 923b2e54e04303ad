"""``--precision`` and ``sparsewire bench coding``: what travels in fewer bytes, and how it is judged."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import sparsewire as sw
from sparsewire import ALGORITHMS
from sparsewire.bench import allreduce, coding
from sparsewire.bench.allreduce.frames import measure_frame
from sparsewire.bench.allreduce.rows import make_rows
from sparsewire.bench.harness.contenders import (
    LocalAllreduce,
    choose_precisions,
    configurations,
    input_vector,
    without_coding,
)
from sparsewire.bench.harness.problem import Case
from sparsewire.bench.harness.table import show
from sparsewire.commands import app

PRECISIONS = ["exact", "coo", "float16", "bfloat16", "qsgd2", "qsgd4", "qsgd8"]
FIELDS = {
    *("precision", "speedup_vs_coo", "bytes_per_nonzero", "compression_vs_coo"),
    *("encode_seconds", "decode_seconds"),
}
PNG = b"\x89PNG\r\n\x1a\n"


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def read(path):
    saved = json.loads(path.read_text())
    return saved, {(row["algorithm"], row["precision"]): row for row in saved["rows"]}


@pytest.mark.parametrize("driver", ["tcp", "mpi"])
def test_every_algorithm_runs_in_every_precision_it_can(cli, tmp_path, driver):
    path = tmp_path / "rows.json"
    words = ["-n", 3, "--size", "8k", "--density", 0.02, "--iterations", 2, "--no-peers", "--json", path]
    words += [
        "--algorithms",
        "allgather_sum,recursive_doubling,auto",
        "--precision",
        "exact,coo,float16,qsgd4",
    ]
    done = cli("bench", "allreduce", "--driver", driver, *words)
    assert done.returncode == 0, done.stderr
    saved, rows = read(path)
    both, lossless = ("allgather_sum", "auto"), ("exact", "coo")
    assert set(rows) == {
        *((name, precision) for name in both for precision in (*lossless, "float16", "qsgd4")),
        *(("recursive_doubling", precision) for precision in lossless),
    }
    assert set(saved["skipped"]) == {"recursive_doubling float16", "recursive_doubling qsgd4"}
    assert "recursive_doubling did not run in float16, qsgd4: it adds up in many places" in done.stdout
    assert "All results are within their bounds." in done.stdout
    assert "--precision exact,coo,float16,qsgd4" in saved["command"]
    for row in rows.values():
        assert set(row) >= FIELDS
        assert row["wrong"] == 0
        assert row["encode_seconds"] > 0
        assert row["decode_seconds"] > 0
    coo, half = rows["allgather_sum", "coo"], rows["allgather_sum", "float16"]
    assert (coo["bytes_per_nonzero"], coo["compression_vs_coo"]) == (8.0, 1.0)
    assert half["bytes_per_nonzero"] <= 6.0
    assert half["compression_vs_coo"] == pytest.approx(8 / half["bytes_per_nonzero"])
    assert half["speedup_vs_coo"] == coo["seconds_median"] / half["seconds_median"]
    assert rows["allgather_sum", "qsgd4"]["bytes_sent_max"] < half["bytes_sent_max"] < coo["bytes_sent_max"]


def test_exact_is_the_default_and_needs_no_columns(tmp_path):
    path = tmp_path / "rows.json"
    done = invoke(
        "bench", "allreduce", "--driver", "local", "--size", "1k", "--iterations", 1, "--json", path
    )
    assert done.exit_code == 0, done.output
    _, rows = read(path)
    assert set(rows) == {(name, "exact") for name in ALGORITHMS}
    assert all(set(row) >= FIELDS and row["speedup_vs_coo"] is None for row in rows.values())
    assert "precision" not in done.output
    assert "non-zero\n" not in done.output


def test_all_ranks_in_one_process_round_as_well(tmp_path):
    path = tmp_path / "rows.json"
    words = ["-n", 5, "--driver", "local", "--size", 999, "--density", 0.2, "--iterations", 1, "--json", path]
    done = invoke("bench", "allreduce", *words, "--precision", ",".join(PRECISIONS))
    assert done.exit_code == 0, done.output
    saved, rows = read(path)
    rounding = {name for name in ALGORITHMS if ALGORITHMS[name].supports_precision}
    for precision in PRECISIONS[2:]:
        assert {name for name, found in rows if found == precision} == rounding
    assert not any(precision == "coo" for _, precision in rows)
    assert "nothing travels with --driver local" in saved["skipped"]["allgather_sum coo"]
    assert all(row["wrong"] == 0 for row in rows.values())


@pytest.mark.parametrize("precision", PRECISIONS[2:])
def test_a_broken_sum_is_counted(tmp_path, monkeypatch, precision):
    def broken(self):
        for result in right(self):
            result[np.flatnonzero(result)[:2]] += 100
            yield result

    right = LocalAllreduce.results
    monkeypatch.setattr(LocalAllreduce, "results", broken)
    path = tmp_path / "rows.json"
    words = ["-n", 3, "--driver", "local", "--size", 100, "--density", 0.1, "--iterations", 1, "--json", path]
    done = invoke("bench", "allreduce", *words, "--algorithms", "split_allgather", "--precision", precision)
    assert done.exit_code == 1
    assert f"Wrong results from split_allgather {precision}" in done.output
    _, rows = read(path)
    assert rows["split_allgather", precision]["wrong"] == 2 * 3  # two entries on each of three ranks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--precision", "float8"],
            "unknown precision float8; known are exact, coo, float16, bfloat16, qsgd2, ",
        ),
        (["--precision", ","], "unknown precision"),
        (
            ["--precision", "exact,qsgd4", "--dtype", "int32"],
            "precision qsgd4 rounds float32 and float64 values",
        ),
        (["--precision", "qsgd4", "--algorithms", "dense_ring"], "dense_ring qsgd4 cannot run: it adds up"),
    ],
)
@pytest.mark.parametrize("kind", ["bench", "simulate"])
def test_bad_precisions_get_one_line_and_exit_code_2(command, kind, words, message):
    code, _, errors = command(kind, "allreduce", "--size", "1k", "-n", 2, *words)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_names_are_taken_once_and_in_their_order():
    assert choose_precisions(" qsgd4,exact, qsgd4", "float32") == ["qsgd4", "exact"]
    runs, skipped = configurations(["dense_ring", "balanced"], ["float16", "coo"])
    assert [str(run) for run in runs] == ["dense_ring coo", "balanced float16", "balanced coo"]
    assert list(skipped) == ["dense_ring float16"]


def test_sending_plain_indices_changes_nothing_for_others():
    with sw.init() as comm:
        before = comm.network
        with without_coding(comm) as plain:
            assert plain.network.index_price == math.inf
            assert comm.network == before
        assert comm.allreduce(np.ones(3)).tolist() == [1, 1, 1]


def elias_fano_bytes(nnz, length):
    """Low bits of every index; above them a one for each index and a zero for each step of the high bits."""
    low = int(math.log2(length / nnz))
    return 8 * (math.ceil(nnz * low / 64) + math.ceil((nnz + ((length - 1) >> low)) / 64))


def padded(nbytes):
    return math.ceil(nbytes / 8) * 8


@pytest.mark.parametrize(
    ("precision", "value_bytes"),
    [
        ("exact", 4 * 655),
        ("float16", 2 * 655),
        ("bfloat16", 2 * 655),
        ("qsgd2", 4 + 655 * 2 / 8),
        ("qsgd4", 4 + 655 * 4 / 8),
        ("qsgd8", 4 + 655),
    ],
)
def test_frame_is_as_large_as_indices_and_values_together(precision, value_bytes):
    vector = input_vector(Case(1, 1 << 16, 0.01), 0)
    coded = measure_frame(vector, 655, precision, index_price=0.0)
    nbytes = elias_fano_bytes(655, 1 << 16) + padded(value_bytes)
    assert coded.bytes_per_nonzero == nbytes / 655
    assert coded.compression_vs_coo == 655 * 8 / nbytes
    plain = measure_frame(vector, 655, precision, index_price=math.inf)
    assert plain.bytes_per_nonzero == (padded(655 * 4) + padded(value_bytes)) / 655


def test_frame_in_coo_has_plain_indices_whatever_coding_costs():
    vector = input_vector(Case(1, 1 << 16, 1 / 128), 0)
    for price in (0.0, math.inf):
        frame = measure_frame(vector, 512, "coo", price)
        assert (frame.bytes_per_nonzero, frame.compression_vs_coo) == (8.0, 1.0)


def test_frame_of_a_dense_input_has_no_indices():
    vector = input_vector(Case(1, 1 << 10, 0.5), 0).as_dense()
    frame = measure_frame(vector, 512, "exact", index_price=0.0)
    assert (frame.bytes_per_nonzero, frame.compression_vs_coo) == (8.0, 1.0)


def test_simulated_precisions_send_less_and_agree_with_the_formulas(tmp_path):
    path = tmp_path / "rows.json"
    words = ["-n", 4, "--size", "256k", "--latency", "20us", "--json", path]
    words += ["--algorithms", "split_allgather,sparse_ring", "--precision", "coo,exact,float16,qsgd4"]
    done = invoke("simulate", "allreduce", *words)
    assert done.exit_code == 0, done.output
    saved, rows = read(path)
    sent = [rows["split_allgather", p]["bytes_sent_max"] for p in ("coo", "exact", "float16", "qsgd4")]
    assert sent == sorted(sent, reverse=True)
    assert sent[0] > 1.4 * sent[1] > 2 * sent[2] > 3 * sent[3]
    assert set(saved["skipped"]) == {"sparse_ring float16", "sparse_ring qsgd4"}
    for (name, precision), row in rows.items():
        label = name if precision == "exact" else f"{name} {precision}"
        assert row["wrong"] == 0
        assert row["seconds_median"] == pytest.approx(saved["model_seconds"][label], rel=0.1)


def test_coding_tells_what_indices_and_values_take(tmp_path):
    path, picture = tmp_path / "coding.json", tmp_path / "coding.png"
    done = invoke("bench", "coding", "--size", "64k", "--json", path, "--plot", picture)
    assert done.exit_code == 0, done.output
    saved = json.loads(path.read_text())
    assert saved["command"] == "sparsewire bench coding --size 64k"
    assert f"isa {saved['environment']['isa']}" in done.output
    assert [(row["distribution"], row["density"]) for row in saved["rows"]] == [
        (name, density) for name in ("uniform", "zipf", "rows") for density in coding.DENSITIES
    ]
    for row in saved["rows"]:
        nnz, length = row["nnz"], 1 << 16
        assert nnz == max(1, round(length * row["density"]))
        supports = math.lgamma(length + 1) - math.lgamma(nnz + 1) - math.lgamma(length - nnz + 1)
        assert row["bits_per_index_limit"] * nnz == pytest.approx(supports / math.log(2), rel=0.01, abs=8)
        assert row["times_limit"] == pytest.approx(row["bits_per_index"] / row["bits_per_index_limit"])
        assert row["compression_vs_coo"] == pytest.approx(32 / row["bits_per_index"])
        assert row["bits_per_index"] * nnz <= min(32 * nnz, length) + 64 * 8
        both = 1 / row["encoded_per_second"] + 1 / row["decoded_per_second"]
        assert row["coded_per_second"] == pytest.approx(1 / both)
        assert row["wrong"] == 0
    forms = {(row["distribution"], row["density"]): row["form"] for row in saved["rows"]}
    assert forms["uniform", 0.01] == "elias_fano"
    assert forms["uniform", 0.5] == "bitmap"
    assert forms["rows", 0.1] == "tiles"
    sizes = {row["precision"]: row["bytes_per_value"] for row in saved["precisions"]}
    scale = 4 / 1024
    assert sizes == {
        "float16": 2.0,
        "bfloat16": 2.0,
        "qsgd2": 0.25 + scale,
        "qsgd4": 0.5 + scale,
        "qsgd8": 1 + scale,
    }
    assert all(row["both_bytes_per_second"] > 0 for row in saved["precisions"])
    assert picture.read_bytes().startswith(PNG)


def test_an_index_that_does_not_come_back_is_counted(monkeypatch, tmp_path):
    def damaged(code, words, count, start, stop, dtype):
        indices = right(code, words, count, start, stop, dtype)
        indices[-1] -= 1
        return indices

    right = coding.codes.decode_indices
    monkeypatch.setattr(coding.codes, "decode_indices", damaged)
    monkeypatch.setattr(coding, "DENSITIES", [0.25])
    [result] = coding.run(coding.CodingOptions(size="4k"), lambda *_: None)
    assert [row.wrong for row in result.rows] == [1, 1, 1]


def test_too_short_a_vector_is_refused(command):
    code, _, errors = command("bench", "coding", "--size", 100)
    assert code == 2
    assert "at least 1,024" in errors


def support_row(distribution, density, form="elias_fano"):
    return coding.SupportRow(
        distribution, 1 << 24, density, 5, form, 8.5, 8.25, 1.03, 3.76, 5e8, 1e9, 3.33e8, wrong=0
    )


def test_coding_is_printed_in_millions_and_gigabytes():
    console = Console(file=io.StringIO(), width=200)
    rows = [coding.PrecisionRow("qsgd4", 1 << 20, 0.504, 2e9, 4e9, 1.333e9)]
    supports = [support_row("uniform", 0.01), support_row("rows", 0.1, "tiles")]
    show(console, coding.BENCHMARK, coding.make_result(supports, rows))
    printed = console.file.getvalue()
    for text in ("isa ", "16,777,216", "elias_fano", "tiles", "8.50", "1.030", "3.8x", "500", "1,000", "333"):
        assert text in printed
    for text in ("qsgd4", "0.504", "2.00", "4.00", "1.33"):
        assert text in printed


def test_coding_is_drawn_in_the_format_of_the_suffix(tmp_path):
    rows = [support_row(name, density) for name in coding.SUPPORTS for density in (1e-3, 0.1)]
    coding.plot(rows, tmp_path / "coding.svg")
    drawn = (tmp_path / "coding.svg").read_text()
    assert drawn.startswith("<?xml")


def test_precision_columns_are_shown_when_precisions_are_compared():
    def table(*precisions):
        moved = {"bytes_sent": 5, "bytes_received": 5, "messages": 1, "algorithm": "balanced"}
        unknown = {"interface_sent": None, "interface_received": None, "digests": [], "wrong": 0}
        record = {"name": "balanced", "seconds": [1.0], "moved": moved, **unknown}
        records = [{**record, "precision": precision} for precision in precisions]
        case, console = Case(1, 1000, 0.1), Console(file=io.StringIO(), width=200)
        rows = make_rows(case, [records], nnz_out=9, driver="tcp")
        show(console, allreduce.BENCHMARK, allreduce.make_result(case, rows, {}))
        return console.file.getvalue()

    assert "precision" not in table("exact")
    assert "precision" in table("exact", "float16")
    assert "float16" in table("exact", "float16")
