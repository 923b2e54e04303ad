"""Inside sparsewire.torch: codes know no exchange, exchanges know no device, and one file knows streams."""

import ast
from pathlib import Path

import pytest

import sparsewire.torch as swt

pytestmark = pytest.mark.torch

ROOT = Path(swt.__file__).parent
MODULES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}
DEVICE_WORDS = ("torch.cuda", "is_cuda", "record_stream", "wait_event", "synchronize(")


def imported(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("module", MODULES)
def test_only_one_file_knows_streams_and_events(module):
    found = [word for word in DEVICE_WORDS if word in MODULES[module]]
    assert not found or module == "device.py"


@pytest.mark.parametrize(
    ("room", "unknown"),
    [
        ("codes/", ("sparsewire.torch.exchange", "sparsewire.torch.handle", "sparsewire.torch.compress")),
        ("exchange/", ("sparsewire.torch.device", "sparsewire.torch.handle", "sparsewire.torch.compress")),
        ("device", ("sparsewire.torch",)),
        ("group", ("sparsewire.torch",)),
    ],
)
def test_rooms_do_not_know_those_who_use_them(room, unknown):
    inside = {module: text for module, text in MODULES.items() if module.startswith(room)}
    assert inside
    for module, text in inside.items():
        assert not [name for name in imported(text) if name.startswith(unknown)], module
