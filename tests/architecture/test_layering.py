"""Imports point downwards only: the picture of docs/design.md, held against every import in the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sparsewire

ROOT = Path(sparsewire.__file__).parent

# What a module may import from the package, by prefix; all may import `errors`.
ALLOWED = {
    "errors": [],
    "steps": [],
    "memory": [],
    "work": [],
    "kernels": ["kernels", "memory"],
    "vector": ["kernels", "memory", "work"],
    "support": ["kernels"],
    "precision": ["kernels", "vector"],
    "rounding": ["precision", "vector"],
    "compress": ["compress", "kernels", "memory", "precision", "rounding", "vector"],
    "wire": ["precision", "support", "vector", "kernels", "memory"],
    "model": ["precision", "support", "work"],
    "algorithms.omnireduce": [
        *("algorithms.omnireduce", "kernels", "memory", "model", "steps", "vector", "work"),
    ],
    "algorithms": ["algorithms", "rounding", "steps", "vector", "model", "work"],
    "calibration": ["model"],
    "chooser": ["algorithms", "model", "precision", "steps", "vector"],
    "explain": ["algorithms", "calibration", "model"],
    "fit": ["algorithms", "model"],
    "tune": ["algorithms", "calibration", "communicator", "explain", "fit", "model", "support", "vector", ""],
    "drivers": ["drivers", "steps", "vector", "wire", "memory", "model", "work"],
    "convert": ["kernels", "vector"],
    "request": ["drivers._base"],
    "communicator": [
        *("algorithms", "calibration", "chooser", "convert", "drivers._base", "explain", "kernels", "model"),
        *("precision", "request", "rounding", "steps", "vector", "wire"),
    ],
    "agreement": ["communicator"],
    "sync": ["algorithms", "communicator", "compress", "precision", "request", "vector"],
    "start": ["communicator", "drivers"],
    "torch": [
        *(
            "algorithms",
            "communicator",
            "compress",
            "convert",
            "drivers",
            "kernels",
            "model",
            "precision",
            "request",
        ),
        *("rounding", "start", "sync", "torch", "vector"),
    ],
    "linear": [
        *("agreement", "algorithms", "communicator", "compress", "events", "kernels", "linear", "precision"),
        *("start", "sync", "vector"),
    ],
    "testing": ["algorithms", "communicator", "drivers", "precision", "rounding", "steps", "vector", "wire"],
    "events": [],
    "launch": [],
    "launch_mpi": ["launch", "network"],
    "job": ["launch", "launch_mpi", "network"],
    "network": [],
    "linear_command": ["bench", "events", "job", "linear", "network", "start"],
    "cli": [
        *("bench", "job", "launch", "linear", "linear_command", "network", "tune", "kernels", "model", ""),
    ],
    "__init__": [
        *("algorithms", "communicator", "precision", "request", "rounding", "start", "sync", "vector"),
    ],
}
OPTIONAL = {"torch", "scipy", "mpi4py", "ml_dtypes", "sklearn", "matplotlib"}
NEEDED = {"torch": {"torch"}, "linear": {"scipy", "sklearn"}}  # by who is imported for it
COMMAND_LINE = ("bench", "cli", "linear_command")
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


def is_below(name, allowed):
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


@pytest.mark.parametrize("module", [m for m in modules() if not m.startswith("bench")])
def test_imports_point_downwards(module):
    layers = (module.rpartition(".")[0], module.split(".")[0])
    allowed = [*next(ALLOWED[layer] for layer in layers if layer in ALLOWED), "errors"]
    for name in imports(module):
        package, _, inside = name.partition(".")
        if package == "sparsewire" and not ("" in allowed and name == "sparsewire"):
            assert is_below(inside, allowed), f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in modules() if m.split(".")[0] not in COMMAND_LINE])
def test_nobody_but_the_command_line_imports_the_benchmark(module):
    assert not any(name.startswith("sparsewire.bench") for name in imports(module))


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
