"""The page on PyTorch: its examples print what they say, and no method or option is missing."""

import doctest
import inspect
import re
from pathlib import Path

import pytest

import sparsewire.torch as swt

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[2] / "docs/pytorch.md"
OPTIONS = {
    name: option.default
    for name, option in inspect.signature(swt.compress).parameters.items()
    if name not in ("ddp", "method")
}


def test_examples_print_what_they_say():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 40
    assert result.failed == 0


@pytest.mark.parametrize("method", swt.METHODS)
def test_every_method_has_a_row(method):
    assert f'\n| `"{method}"` |' in PAGE.read_text()


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_row_with_its_default(name):
    default = "16 << 20" if name == "group_bytes" else repr(OPTIONS[name]).replace("'", '"')
    assert f"\n| `{name}={default}` |" in PAGE.read_text()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE.read_text()):
        assert target.startswith("https://") or (PAGE.parent / target).exists(), target
