"""Imports go to the own room or to an earlier one: the list of docs/design.md, held against every import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparsewire

ROOT = Path(sparsewire.__file__).parent
DESIGN = Path(__file__).parents[2] / "docs/design.md"


def listed_rooms():
    """The first word of each line of the one block that lists the rooms."""
    [block] = re.findall(r"^```rooms\n(.*?)^```$", DESIGN.read_text(), re.MULTILINE | re.DOTALL)
    return [line.split()[0] for line in block.splitlines()]


ROOMS = listed_rooms()
FRONT_DOORS = ("__init__", "__main__")  # they hold no code, and show what is inside
OPTIONAL = {"torch", "scipy", "mpi4py", "ml_dtypes", "sklearn", "matplotlib", "cryptography"}
NEEDED = {"torch": {"torch"}, "linear": {"scipy", "sklearn"}}  # by who is imported for it
COMMAND_LINE = ("bench", "commands")
COMMAND_LINE_ONLY = {"typer", "rich"}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")


def imports(module, *, top_level_only=False):
    """The dotted names that a module imports."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(module):
    """``sparsewire`` itself, which shows what all rooms up to ``sync`` have to offer, is no room."""
    return module.removeprefix("sparsewire.").split(".")[0]


def test_rooms_are_what_the_package_consists_of():
    assert set(ROOMS) == {room(module) for module in modules()} - set(FRONT_DOORS)
    assert len(ROOMS) == len(set(ROOMS))


@pytest.mark.parametrize("module", [m for m in modules() if m not in FRONT_DOORS])
def test_imports_go_to_the_own_room_or_an_earlier_one(module):
    allowed = ROOMS[: ROOMS.index(room(module)) + 1]
    for name in imports(module):
        if name.startswith("sparsewire."):
            assert room(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", list(modules()))
def test_optional_packages_are_imported_on_first_use(module):
    packages = {name.split(".")[0] for name in imports(module, top_level_only=True)}
    layer = module.split(".")[0]
    assert not packages & (OPTIONAL - NEEDED.get(layer, set()))
    if layer not in COMMAND_LINE:
        assert not packages & COMMAND_LINE_ONLY


def test_importing_the_library_loads_numpy_and_nothing_else_heavy():
    heavy = sorted(OPTIONAL | COMMAND_LINE_ONLY)
    code = f"import sparsewire, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
