"""Documentation keeps up with the code."""

import itertools
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sparsewire import SparseVector
from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS, patterns
from sparsewire.choosing import explain
from sparsewire.choosing.calibration import ASSUMED, Calibration
from sparsewire.coding import frame as wire
from sparsewire.coding.rounding import EXACT
from sparsewire.cost import Shape
from sparsewire.reduction import SUM, concat
from sparsewire.steps import Recv, Send
from sparsewire.testing import ORACLES, run_local

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("name", [*ALGORITHMS, *TOPK_ALGORITHMS])
def test_each_algorithm_has_a_section_and_a_row(name):
    page = (ROOT / "docs/algorithms.md").read_text()
    assert f"\n## {name}\n" in page
    assert f"\n| `{name}` |" in page


def test_each_algorithm_has_an_oracle():
    assert list(ORACLES) == list(ALGORITHMS)


def test_the_wire_format_page_has_the_size_of_the_header():
    page = (ROOT / "docs/wire-format.md").read_text()
    fields = [(int(m[1]), int(m[2])) for m in re.finditer(r"^\| (\d+) \| (\d+) \| \S", page, re.MULTILINE)]
    assert fields[0][0] == 0
    assert all(at + size == following for (at, size), (following, _) in itertools.pairwise(fields))
    assert sum(fields[-1]) == wire.HEADER_BYTES
    assert f"a header of {wire.HEADER_BYTES} bytes" in page


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_sections_lead_to_a_heading(page):
    for target, section in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        text = (page.parent / target if target else page).read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert section in anchors, f"{page.name} links to {target}#{section}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    """A path begins in the repository or in the package; ``<name>`` stands for any name."""
    for path in re.findall(r"`((?:[\w<>-]+/)+(?:[\w<>*-]+\.\w+)?)`", page.read_text()):
        pattern = re.sub(r"<\w+>", "*", path.rstrip("/"))
        found = [*ROOT.glob(pattern), *ROOT.glob(f"src/sparsewire/{pattern}")]
        assert found, f"{page.name} names {path}"


def test_the_script_of_the_readme_sums():
    [code] = re.findall(r"```python\n(def .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {**vars(patterns), "Recv": Recv, "Send": Send, "concat": concat}
    exec(code, names)
    vectors = [SparseVector(8, [rank, rank + 3], np.array([2.0, 3.0]) ** rank) for rank in range(5)]
    context = SimpleNamespace(op=SUM, rounding=EXACT)
    totals, _ = run_local(lambda *rank: names["split_allgather"](*rank, context), vectors)
    for total in totals:
        np.testing.assert_array_equal(total.to_dense(), sum(vector.to_dense() for vector in vectors))


def test_the_page_on_tuning_has_what_explain_prints():
    figures = ASSUMED["tcp", True]
    shape = Shape(4, 1 << 24, 167_772, index_price=figures.index_price)
    printed = explain.render(Calibration(figures), shape)
    assert "".join(f"    {line}\n" for line in printed.splitlines()) in (ROOT / "docs/tuning.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/reliability.md"])
def test_figures_are_those_of_the_committed_results(page):
    figures = runpy.run_path(str(ROOT / "benchmarks/figures.py"))
    text = (ROOT / page).read_text()
    assert text.partition(figures["BEGIN"])[2].partition(figures["END"])[0] == figures["render"](page)


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_rows_that_send_less_than_half_of_k_come_last_and_have_a_star(page):
    tables = re.findall(r"^\| A training step.*?\n\n", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(tables) == 2
    for table in tables:
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:-1]]
        too_few = [row[6] != "" and float(row[6]) < 0.5 for row in rows]
        assert too_few == sorted(too_few)
        assert too_few == [row[0].endswith("*") for row in rows]


def test_times_of_the_section_on_omnireduce_are_those_of_the_committed_results():
    section = (
        (ROOT / "docs/algorithms.md").read_text().split("### Where omnireduce wins")[1].split("\n## ")[0]
    )
    quoted = re.findall(r"[\d.]+\d(?: ms| MB|x)", section)
    assert len(quoted) > 10
    results = (ROOT / "docs/results.md").read_text()
    assert [number for number in quoted if f"| {number} |" not in results] == []
