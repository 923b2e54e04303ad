"""Documentation keeps up with the code."""

import itertools
import re
import runpy
from pathlib import Path

import pytest

from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS
from sparsewire.coding import frame as wire
from sparsewire.testing import ORACLES

ROOT = Path(__file__).parents[2]


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
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_figures_are_those_of_the_committed_results(page):
    figures = runpy.run_path(str(ROOT / "benchmarks/figures.py"))
    text = (ROOT / page).read_text()
    assert text.partition(figures["BEGIN"])[2].partition(figures["END"])[0] == figures["render"](page)
