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
}
HEAD = """| {title} | median | against `gloo-dense` | against `gloo-sparse` | sent by a rank | x wire limit |
|---|---:|---:|---:|---:|---:|
"""


def render():
    """All tables, as they stand in the README."""
    return "\n".join(_table(name, title) for name, title in CASES.items())


def _table(name, title):
    rows = json.loads((HERE / name).read_text())["rows"]
    shown = sorted((row for row in rows if row["algorithm"] != "auto"), key=lambda row: row["seconds_median"])
    return HEAD.format(title=f"{title} ([data](benchmarks/{name}))") + "".join(map(_row, shown))


def _row(row):
    cells = [
        f"`{row['algorithm']}`",
        f"{row['seconds_median'] * 1e3:,.1f} ms",
        f"{row['speedup_vs_gloo_dense']:.3g}x",
        f"{row['speedup_vs_gloo_sparse']:.3g}x",
        f"{row['bytes_sent_max'] / 1e6:.3g} MB",
        f"{row['seconds_median'] / row['wire_limit_seconds']:.2f}",
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(before + BEGIN + render() + END + rest.partition(END)[2])
