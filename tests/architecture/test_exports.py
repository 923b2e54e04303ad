"""Every ``__all__`` is sorted and true."""

import importlib
import pkgutil

import pytest

import sparsewire

MODULES = [
    info.name
    for info in pkgutil.walk_packages(sparsewire.__path__, "sparsewire.")
    if not info.name.endswith("_compiled")
]


@pytest.mark.parametrize("name", ["sparsewire", *MODULES])
def test_all_is_sorted_and_every_name_exists(name):
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    constants = [n for n in exported if n.isupper()]
    classes = [n for n in exported if n[0].isupper() and not n.isupper()]
    others = [n for n in exported if n not in constants and n not in classes]
    assert list(exported) == sorted(constants) + sorted(classes) + sorted(others)
    assert all(hasattr(module, n) for n in exported)


def test_every_error_is_exported():
    errors = importlib.import_module("sparsewire.errors").__all__
    assert set(errors) <= set(sparsewire.__all__)
