"""The page on compression: its examples print what they say, and it has every public compressor."""

import doctest
import inspect
from pathlib import Path

import pytest

import sparsewire.compress as swc

PAGE = Path(__file__).parents[2] / "docs/compression.md"
COMPRESSORS = [
    name
    for name in swc.__all__
    if inspect.isclass(getattr(swc, name)) and issubclass(getattr(swc, name), swc.Compressor)
]


def test_examples_print_what_they_say(monkeypatch):
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SPARSEWIRE_SECRET"):
        monkeypatch.delenv(variable, raising=False)
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in COMPRESSORS if name != "Compressor"])
def test_every_compressor_has_a_row(name):
    assert f"\n| `{name}(" in PAGE.read_text()
