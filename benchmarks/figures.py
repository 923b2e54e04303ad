"""The README's figures from the committed results:  python benchmarks/figures.py  writes them."""

import json
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
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
}
SIMULATED = {
    "p4-d0.01-1gbit.json": "four ranks, 1%",
    "p4-d0.001-1gbit.json": "four ranks, 0.1%",
    "p8-d0.01-1gbit.json": "eight ranks, 1%",
}
OVERLAP = {"0.3": "a third as long", "1": "as long", "3": "three times as long"}
LEFT_OUT = ("auto", "mpi-same-bytes", "barrier")  # the first is one of the others, the last two are no sums


def render():
    """All tables and the grid's summary, as they stand in the README."""
    tables = [_table(name, title) for name, title in CASES.items()]
    return "\n".join([*tables, _grid(), _overlap(), _simulated()])


def _table(name, title):
    """A column appears only if some row has something to say in it."""
    shown = sorted(
        (r for r in _rows(name) if r["algorithm"] not in LEFT_OUT), key=lambda row: row["seconds_median"]
    )
    columns = [column for column, cell in COLUMNS.items() if any(map(cell, shown))]
    lines = [[f"{title} ([data](benchmarks/{name}))", *columns], ["---", *["---:"] * len(columns)]]
    lines += [[f"`{row['algorithm']}`", *(COLUMNS[column](row) for column in columns)] for row in shown]
    return _lines(lines)


def _grid():
    summary = json.loads((HERE / "grid.json").read_text())["summary"]
    files = "[data](benchmarks/grid.json), [picture](benchmarks/grid.png)"
    return (
        f"`auto` in {summary['cells']} cells of length, density, ranks and network ({files}): within 10% of "
        f"the\nbest single algorithm in {summary['within_10_percent']:.1%} of them, within 25% in "
        f"{summary['within_25_percent']:.1%};\nat worst {summary['worst_vs_best']:.2f} times as long as "
        f"the best one, and {summary['worst_vs_dense']:.2f} times as long as the best dense one.\n"
    )


def _overlap():
    """Eight calls in flight beside a loop."""
    lines = [
        [
            "Eight `iallreduce` of 2^22 floats, 1%, two ranks, beside a numpy loop that takes",
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


def _rows(name):
    return json.loads((HERE / name).read_text())["rows"]


def _lines(lines):
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _times(factor):
    return f"{factor:.3g}x" if factor else ""


def _ratio(time, limit):
    return f"{time / limit:.2f}" if limit else ""


if __name__ == "__main__":
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(before + BEGIN + render() + END + rest.partition(END)[2])
