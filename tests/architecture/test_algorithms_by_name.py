"""Only tables and an algorithm's own file name it: other rooms know what its row says."""

import ast
from pathlib import Path

import pytest

import sparsewire
from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS

ROOT = Path(sparsewire.__file__).parent
ROOMS = ("drivers", "choosing", "communicator", "compress", "launch")
MODULES = sorted(str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_no_algorithm_is_asked_for_by_name(module):
    tree = ast.parse((ROOT / module).read_text())
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert not {*ALGORITHMS, *TOPK_ALGORITHMS} & {text for text in strings if isinstance(text, str)}
