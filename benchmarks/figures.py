"""The figures of README and docs from the committed results:  python benchmarks/figures.py  writes them."""

import json
import statistics
from pathlib import Path

HERE = Path(__file__).parent
PAGES = {
    "README.md": "benchmarks/",
    "docs/results.md": "../benchmarks/",
    "docs/reliability.md": "../benchmarks/",
}  # and where the data are, from there
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
CASES = {
    "allreduce-p4-d0.01-1gbit.json": "Four ranks, 1% non-zeros",
    "allreduce-p4-d0.001-1gbit.json": "Four ranks, 0.1% non-zeros",
    "allreduce-p8-d0.01-1gbit.json": "Eight ranks on the same two cores, 1% non-zeros",
    "allreduce-p4-d0.01-mpi.json": "Four ranks of MPI on shared memory, 1% non-zeros",
    "allreduce-p4-d0.001-mpi.json": "Four ranks of MPI on shared memory, 0.1% non-zeros",
}
COLUMNS = {
    "median": lambda row: f"{row['seconds_median'] * 1e3:,.1f} ms",
    "against `gloo-dense`": lambda row: _times(row["speedup_vs_gloo_dense"]),
    "against `gloo-sparse`": lambda row: _times(row["speedup_vs_gloo_sparse"]),
    "against `mpi-dense`": lambda row: _times(row["speedup_vs_mpi_dense"]),
    "sent by a rank": lambda row: f"{row['bytes_sent_max'] / 1e6:.3g} MB" if row["bytes_sent_max"] else "",
    "x wire limit": lambda row: _ratio(row["seconds_median"], row["wire_limit_seconds"]),
    "x model": lambda row: _ratio(row["seconds_median"], row.get("model_seconds")),
    "x touched bytes": lambda row: _ratio(row.get("times_touched_bytes"), 1),
}
SIMULATED = {
    "p4-d0.01-1gbit.json": "four ranks, 1%",
    "p4-d0.001-1gbit.json": "four ranks, 0.1%",
    "p8-d0.01-1gbit.json": "eight ranks, 1%",
}
OVERLAP = {"0.3": "a third as long", "1": "as long", "3": "three times as long"}
PRECISION = {
    "precision-tcp-p4.json": "Four ranks, 1% non-zeros, 1 Gbit/s",
    "precision-tcp-p8.json": "Eight ranks, 1% non-zeros, 1 Gbit/s",
    "precision-mpi-p4.json": "Four ranks of MPI on shared memory, 1% non-zeros",
}
STEPS = {
    "step-p4-mpi.json": "A training step, 2^24 values, 1%, four ranks of MPI on shared memory",
    "step-p4-1gbit.json": "A training step, 2^24 values, 1%, four ranks, 1 Gbit/s",
}
TRAINING = {
    "train-chars-1gbit.json": "Training under DDP: next character, 7.6M parameters, 1%, four ranks, 1 Gbit/s",
    "train-embedding-1gbit.json": "Training under DDP: next word, a table of 100,000 rows, four ranks, 1 Gbit/s",
    "train-chars-loopback.json": "Training under DDP: next character, four ranks, no emulated network",
}
TRAINED = {
    "step": lambda row: f"{row['step_seconds_median'] * 1e3:,.1f} ms",
    "x no communication": lambda row: f"{row['ratio_to_floor']:.2f}",
    "against `dense`": lambda row: _times(row["speedup_vs_dense"]),
    "sent by a rank": lambda row: f"{row['bytes_sent'] / 1e6:.3g} MB" if row["bytes_sent"] else "",
    "final loss": lambda row: f"{row['final_loss']:.4f}" if row["final_loss"] else "",
    "loss / dense's": lambda row: f"{row['loss_vs_dense']:.3f}" if row["loss_vs_dense"] else "",
    "distance to float64": lambda row: _distance(row["distance_to_float64"]),
}
BLOCKS = {
    "omnireduce-1gbit.json": "OmniReduce, blocks of 256, four ranks, 1 Gbit/s",
    "omnireduce-p8-1gbit.json": "OmniReduce, blocks of 256, eight ranks, 1 Gbit/s",
    "omnireduce-pairs-1gbit.json": "Blocks of 256, given as sparse vectors, four ranks, 1 Gbit/s",
    "omnireduce-identical-1gbit.json": "OmniReduce, the same blocks on all of four ranks, 1 Gbit/s",
}
TRACES = {
    "omnireduce-trace-p4-1gbit.json": "Embedding rows of a real text, four ranks, 1 Gbit/s",
    "omnireduce-trace-p8-1gbit.json": "Embedding rows of a real text, eight ranks, 1 Gbit/s",
}
LINEAR = {
    "linear-url-p4-1gbit.json": "Logistic regression like URL: 3.2M features, four ranks, 1 Gbit/s",
    "linear-url-p8-1gbit.json": "Logistic regression like URL: 3.2M features, eight ranks, 1 Gbit/s",
    "linear-webspam-p8-1gbit.json": "Logistic regression like Webspam: 16.6M features, eight ranks, 1 Gbit/s",
    "linear-url-p4-mpi.json": "Logistic regression like URL: four ranks of MPI on shared memory",
    "linear-url-p4-loopback.json": "Logistic regression like URL: four ranks on one machine, and others",
}
PASSES = {
    "pass": lambda row: _seconds(row["seconds_median"]),
    "communicating": lambda row: (
        f"{row['communicating_median']:,.3g} s" if row["communicating_median"] else ""
    ),
    "against dense": lambda row: _times(row["speedup_vs_dense"]),
    "communicating, against dense": lambda row: _times(row["communication_speedup_vs_dense"]),
    "against `spark-sgd`": lambda row: _times(row["speedup_vs_spark"]),
    "sent by a rank": lambda row: f"{row['bytes_sent_max'] / 1e6:,.3g} MB" if row["bytes_sent_max"] else "",
    "loss": lambda row: f"{row['loss']:.4f}",
    "distance to `dense`": lambda row: _distance(row["distance"]),
}
ACCURACY = {
    "news20-binary": "news20, comp.* against the rest: test accuracy",
    "news20": "news20, 20 classes: test accuracy",
}
JUDGES = ("hang", "wrong sum", "unnamed", "types differ", "innocent named", "late", "leftovers")
LEFT_OUT = ("auto", "mpi-same-bytes", "barrier")  # the first is one of the others, the last two are no sums


def render(page):
    """What stands in a page: what matters first in the README, faults alone, or everything else."""
    if page == "docs/reliability.md":
        return _faults().replace("](benchmarks/", f"]({PAGES[page]}")
    tables = [_table(name, title) for name, title in CASES.items()]
    precision = [_precision(name, title) for name, title in PRECISION.items()]
    steps = [_step(name, title) for name, title in STEPS.items()]
    training = [_training(name, title) for name, title in TRAINING.items()]
    blocks = [_sweep(name, title) for name, title in BLOCKS.items()]
    traces = [_table(name, title) for name, title in TRACES.items()]
    linear = [_linear(name, title) for name, title in LINEAR.items()]
    if page == "README.md":
        shown = [tables[0], *training[:2], linear[0], blocks[0], precision[0], *steps, _grid()]
    else:
        linear += [_accuracy(name, title) for name, title in ACCURACY.items()]
        more = [
            *linear,
            _reading(),
            _linear_memory(),
            _words(),
            _convergence(),
            _coding(),
            _rounding(),
            _grid(),
            _overlap(),
            _simulated(),
        ]
        shown = [*tables, *blocks, *traces, *training, *precision, *steps, *more]
    return "\n".join(shown).replace("](benchmarks/", f"]({PAGES[page]}")


def _table(name, title):
    """A column appears only if some row has something to say in it."""
    shown = sorted(
        (r for r in _rows(name) if r["algorithm"] not in LEFT_OUT), key=lambda row: row["seconds_median"]
    )
    columns = [column for column, cell in COLUMNS.items() if any(map(cell, shown))]
    lines = [[f"{title} ([data](benchmarks/{name}))", *columns], ["---", *["---:"] * len(columns)]]
    lines += [[f"`{row['algorithm']}`", *(COLUMNS[column](row) for column in columns)] for row in shown]
    return _lines(lines)


def _sweep(name, title):
    """A row for each density: times, and how they compare with `gloo-dense` and with the model."""
    of_densities = {}
    for row in _rows(name):
        of_densities.setdefault(row["density_in"], {})[row["algorithm"]] = row
    picture = name.replace(".json", ".png")
    files = f"[data](benchmarks/{name})"
    if (HERE / picture).exists():
        files += f", [picture](benchmarks/{picture})"
    everybody = sorted(next(iter(of_densities.values())))
    ours = [who for who in everybody if who.startswith("omnireduce")]
    head = [f"{title} ({files}): blocks that are not zero", *(f"`{who}`" for who in everybody)]
    head += [*(f"`{who}` against `gloo-dense`" for who in ours), *(f"`{who}` x model" for who in ours)]
    lines = [head, ["---:"] * len(head)]
    for density, rows in sorted(of_densities.items()):
        cells = [f"{rows[who]['seconds_median'] * 1e3:,.1f} ms" for who in everybody]
        cells += [_times(rows[who]["speedup_vs_gloo_dense"]) for who in ours]
        cells += [_ratio(rows[who]["seconds_median"], rows[who]["model_seconds"]) for who in ours]
        lines.append([f"{density:.2g}", *cells])
    return _lines(lines)


def _training(name, title):
    rows = sorted(_rows(name), key=lambda row: row["step_seconds_median"])
    columns = [column for column, cell in TRAINED.items() if any(map(cell, rows))]
    lines = [[f"{title} ([data](benchmarks/{name}))", *columns], ["---", *["---:"] * len(columns)]]
    lines += [[f"`{row['method']}`", *(TRAINED[column](row) for column in columns)] for row in rows]
    return _lines(lines)


def _linear(name, title):
    rows = sorted(_rows(name), key=lambda row: row["seconds_median"])
    columns = [column for column, cell in PASSES.items() if any(map(cell, rows))]
    picture = name.replace(".json", ".png")
    files = f"[data](benchmarks/{name})"
    if (HERE / picture).exists():
        files += f", [picture](benchmarks/{picture})"
    lines = [[f"{title} ({files})", *columns], ["---", *["---:"] * len(columns)]]
    lines += [[f"`{row['contender']}`", *(PASSES[column](row) for column in columns)] for row in rows]
    return _lines(lines)


def _accuracy(name, title):
    """The best of each of scikit-learn's models, and ours after its last pass."""
    best = {}
    for row in _rows(f"{name}-sklearn.json"):
        known = best.get(row["model"])
        if known is None or row["test_accuracy"] > known["test_accuracy"]:
            best[row["model"]] = row
    last = _rows(f"{name}.json")[-1]
    files = f"[ours](benchmarks/{name}.json), [scikit-learn's](benchmarks/{name}-sklearn.json)"
    lines = [[f"{title} ({files})", ""], ["---", "---:"]]
    ours = f"`sparsewire linear fit`, coordinate descent, four ranks, {last['epoch']} passes"
    found = [(ours, last["test_score"])]
    found += [(f"`{row['model']}`, {row['strength']:g}", row["test_accuracy"]) for row in best.values()]
    lines += [[who, f"{accuracy:.4f}"] for who, accuracy in sorted(found, key=lambda row: -row[1])]
    return _lines(lines)


def _reading():
    files = {"libsvm-url.json": "like URL", "libsvm-news20.json": "news20"}
    links = ", ".join(f"[{title}](benchmarks/{name})" for name, title in files.items())
    lines = [
        [f"LIBSVM files on one core ({links})", "file", "MB/s", "against `sklearn`"],
        ["---", "---", "---:", "---:"],
    ]
    for name, title in files.items():
        for row in _rows(name):
            rate = f"{row['megabytes_per_second']:,.0f}"
            lines.append([f"`{row['reader']}`", title, rate, _times(row["speedup_vs_sklearn"])])
    return _lines(lines)


def _linear_memory():
    names = {"linear-memory-url.json": "like URL", "linear-memory-webspam.json": "like Webspam"}
    links = ", ".join(f"[{title}](benchmarks/{name})" for name, title in names.items())
    head = [
        f"Peak memory of training, four ranks ({links})",
        "rows",
        "weights",
        "peak",
        "peak / (rows + weights)",
    ]
    lines = [head, ["---", *["---:"] * 4]]
    for name, title in names.items():
        [row] = _rows(name)
        sizes = [f"{row[size] / 1e6:,.1f} MB" for size in ("shard_bytes", "model_bytes", "peak_bytes")]
        lines.append([title, *sizes, f"{row['ratio']:.2f}"])
    return _lines(lines)


def _precision(name, title):
    """Medians in each precision, and how many times as fast as plain indices and values that is."""
    rows, sizes = {}, {}
    for row in _rows(name):
        rows.setdefault(row["algorithm"], {})[row["precision"]] = row
        sizes[row["precision"]] = f"{row['bytes_per_nonzero']:.2f}"
    precisions = [precision for precision in ("coo", "exact", "float16", "qsgd4") if precision in sizes]
    head = [f"{title} ([data](benchmarks/{name}))", *(f"`{precision}`" for precision in precisions)]
    lines = [head, ["---", *["---:"] * len(precisions)]]
    lines.append(["bytes per non-zero", *(sizes[precision] for precision in precisions)])
    for algorithm in sorted(rows):
        cells = [_time_and_gain(rows[algorithm][precision]) for precision in precisions]
        lines.append([f"`{algorithm}`", *cells])
    return _lines(lines)


def _time_and_gain(row):
    gain = f", {row['speedup_vs_coo']:.2f}x" if row["precision"] != "coo" else ""
    return f"{row['seconds_median'] * 1e3:,.1f} ms{gain}"


def _step(name, title):
    """Medians of whole steps and of their phases; the dense step is of the same run.

    Rows that select less than k / 2 come last, with a star: they are fast because they send nearly nothing.
    """
    rows = sorted(_rows(name), key=lambda row: (not _selects_enough(row), row["seconds_median"]))
    dense = next(row["method"] for row in rows if row["kind"] == "dense")
    speedup = f"speedup_vs_{dense.replace('-', '_')}"
    head = [f"{title} ([data](benchmarks/{name}))", "median", "select", "exchange", "apply"]
    lines = [[*head, f"against `{dense}`", "entries / k", "received / 4k"], ["---", *["---:"] * 7]]
    for row in rows:
        phases = (row[f"{phase}_seconds"] * 1e3 for phase in ("select", "exchange", "apply"))
        numbers = [f"{row['seconds_median'] * 1e3:,.1f} ms", *(f"{ms:.1f} ms" if ms else "" for ms in phases)]
        sizes = ["", ""]
        if row["k"]:
            entries = statistics.median(row["selected"]) / row["k"]
            sizes = [f"{entries:.2f}", f"{row['bytes_received_over_4k']:.2f}"]
        title = f"`{row['method']}`" + (", renewal" if row["kind"] == "renewal" else "")
        if not _selects_enough(row):
            title += " *"
        lines.append([title, *numbers, _times(row[speedup] if _selects_enough(row) else None), *sizes])
    return _lines(lines)


def _selects_enough(row):
    return row["k"] is None or statistics.median(row["selected"]) >= row["k"] / 2


def _words():
    """Words of `ok_topk`, counted by the simulator."""
    rows = _rows("words.json")
    head = [f"Words of `ok_topk` in units of k = {rows[0]['k']:,} ([data](benchmarks/words.json))"]
    kinds = list(dict.fromkeys(row["gradients"] for row in rows))
    for kind in kinds:
        head += [f"{kind}: mean received", "most received in a step", "most sent in a step"]
    lines = [[*head, "6 (P-1) / P"], ["---", *["---:"] * (3 * len(kinds) + 1)]]
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        cells = []
        for row in (row for row in rows if row["ranks"] == ranks):
            names = "received_mean_over_k", "received_max_over_k", "sent_max_over_k"
            cells += [f"{row[name]:.2f}" for name in names]
        lines.append([f"{ranks} ranks", *cells, f"{6 * (ranks - 1) / ranks:.2f}"])
    return _lines(lines)


def _convergence():
    """Final losses over that of dense training."""
    rows = _rows("convergence.json")
    files = "[data](benchmarks/convergence.json), [curves](benchmarks/convergence.png)"
    seeds = sorted({row["seed"] for row in rows})
    lines = [[f"Final loss / dense, digits, 1% ({files})", *(f"seed {seed}" for seed in seeds)]]
    lines.append(["---", *["---:"] * len(seeds)])
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != "dense"):
        of_method = {row["seed"]: row["ratio_to_dense"] for row in rows if row["method"] == method}
        lines.append([f"`{method}`", *(f"{of_method[seed]:.4f}" for seed in seeds)])
    return _lines(lines)


def _coding():
    """Bits per index, by density, for the three kinds of support."""
    files = "[data](benchmarks/coding.json), [picture](benchmarks/coding.png)"
    found, limits = {}, {}
    for row in _rows("coding.json"):
        limits[row["density"]] = row["bits_per_index_limit"]
        found.setdefault(row["distribution"], {})[row["density"]] = row
    lines = [[f"Bits per index at density ({files})", *(f"{density:g}" for density in limits)]]
    lines.append(["---", *["---:"] * len(limits)])
    lines.append(["entropy of uniform supports", *(f"{limit:.2f}" for limit in limits.values())])
    for distribution, rows in found.items():
        lines.append([distribution, *(f"{rows[density]['bits_per_index']:.2f}" for density in limits)])
    rates = [found["uniform"][density]["coded_per_second"] / 1e6 for density in limits]
    lines.append(["uniform, million indices per second", *(f"{rate:,.0f}" for rate in rates)])
    return _lines(lines)


def _rounding():
    content = json.loads((HERE / "coding.json").read_text())
    head = [f"Values on one core ({content['environment']['isa']})", "bytes per value"]
    lines = [[*head, "round, then decode"], ["---", "---:", "---:"]]
    for row in content["precisions"]:
        rate = f"{row['both_bytes_per_second'] / 1e9:.1f} GB/s of float32"
        lines.append([f"`{row['precision']}`", f"{row['bytes_per_value']:.3f}", rate])
    return _lines(lines)


def _grid():
    summary = json.loads((HERE / "grid.json").read_text())["summary"]
    files = "[data](benchmarks/grid.json), [picture](benchmarks/grid.png)"
    return (
        f"`auto` was measured in {summary['cells']} cells of length, density, ranks and network ({files}).\n"
        f"It is within 10% of the best single algorithm in {summary['within_10_percent']:.1%} of them, and "
        f"within 25% in {summary['within_25_percent']:.1%}.\nAt worst it takes {summary['worst_vs_best']:.2f} "
        f"times as long as the best one, and {summary['worst_vs_dense']:.2f} times as long as the best dense "
        "one.\n"
    )


def _overlap():
    """Eight calls in flight beside a loop."""
    lines = [
        [
            "Eight `iallreduce` of 2^22 floats, 1%, two ranks, during a numpy loop that takes",
            "together / the longer",
        ]
    ]
    lines.append(["---", "---:"])
    for ratio, title in OVERLAP.items():
        name = f"overlap-p2-1gbit-x{ratio}.json"
        ratio_found = json.loads((HERE / name).read_text())["times_longer_alone"]
        lines.append([f"{title} ([data](benchmarks/{name}))", f"{ratio_found:.2f}"])
    return _lines(lines)


def _simulated():
    """Predictions over measurements, where both know the algorithm."""
    head = ["Simulated / measured time, 1 Gbit/s"]
    ratios = {}
    for name, title in SIMULATED.items():
        head.append(f"{title} ([data](benchmarks/simulate-{name}))")
        measured = {row["algorithm"]: row["seconds_median"] for row in _rows(f"allreduce-{name}")}
        for row in _rows(f"simulate-{name}"):
            ratio = row["seconds_median"] / measured[row["algorithm"]]
            ratios.setdefault(row["algorithm"], []).append(f"{ratio:.2f}")
    lines = [[f"`{algorithm}`", *of_cases] for algorithm, of_cases in sorted(ratios.items())]
    return _lines([head, ["---", *["---:"] * len(SIMULATED)], *lines])


def _faults():
    """A row for each fault: how many trials, what the judges count, and how long an error took."""
    found = json.loads((HERE / "faults.json").read_text())
    title = f"{found['trials']:,} faults, seed {found['seed']} ([data](benchmarks/faults.json))"
    times = ("seconds_to_error_median", "seconds_to_error_p99")
    total = {key: sum(row[key] for row in found["rows"]) for key in ("trials", "ok", *JUDGES)}
    rows = [*found["rows"], {"fault": "**all**", **total, **dict.fromkeys(times)}]
    lines = [[title, "trials", "ok", *JUDGES, "median", "p99"], ["---", *["---:"] * (4 + len(JUDGES))]]
    for row in rows:
        counts = [f"{row[key]:,}" for key in ("trials", "ok", *JUDGES)]
        lines.append([row["fault"], *counts, *("" if row[key] is None else f"{row[key]:.2f}" for key in times)])
    return _lines(lines)


def _rows(name):
    return json.loads((HERE / name).read_text())["rows"]


def _lines(lines):
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _times(factor):
    return f"{factor:.3g}x" if factor else ""


def _seconds(seconds):
    return f"{seconds:,.3g} s" if seconds else ""


def _distance(norm):
    return "" if norm is None else f"{norm:.1e}"


def _ratio(time, limit):
    return f"{time / limit:.2f}" if time and limit else ""


if __name__ == "__main__":
    for page in PAGES:
        file = HERE.parent / page
        before, _, rest = file.read_text().partition(BEGIN)
        file.write_text(before + BEGIN + render(page) + END + rest.partition(END)[2])
