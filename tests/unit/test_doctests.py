"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import sparsewire

MODULES = [
    "sparsewire",
    *(
        info.name
        for info in pkgutil.walk_packages(sparsewire.__path__, "sparsewire.")
        if not info.name.endswith("_compiled")
    ),
]
JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SPARSEWIRE_SECRET")


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name, monkeypatch):
    for variable in JOB:
        monkeypatch.delenv(variable, raising=False)
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_examples_are_found():
    counts = [doctest.testmod(importlib.import_module(name)).attempted for name in ("sparsewire.vector",)]
    assert min(counts) > 5
