import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernel_cases import each_isa

from sparsewire import kernels
from sparsewire.kernels import _compiled, reference

X = np.linspace(1, 2, 200, dtype=np.float32)
CALLS = {
    "select": lambda: kernels.select(X, 0.5),
    "accumulate_select": lambda: kernels.accumulate_select(X.copy(), X, 0.5),
    "threshold_for_k": lambda: kernels.threshold_for_k(X, 5),
    "select_buckets": lambda: kernels.select_buckets(X, 5),
    "accumulate_select_buckets": lambda: kernels.accumulate_select_buckets(X.copy(), X, 5),
    "first_invalid": lambda: kernels.first_invalid(np.arange(200, dtype=np.uint32), 0, 200),
    "checksum": lambda: kernels.checksum(X),
    "quantize": lambda: kernels.quantize(X, 4),
    "dequantize": lambda: kernels.dequantize(X[:1], np.zeros(100, np.uint8), 200, 4),
}
I = np.arange(200, dtype=np.uint32)  # noqa: E741
# These gain nothing from AVX-512.
CALLS_UP_TO_AVX2 = {
    "histogram": lambda: kernels.histogram(X),
    "accumulate_block_norms": lambda: kernels.accumulate_block_norms(X.copy(), X, 64),
    "add_blocks": lambda: kernels.add_blocks(X.copy(), np.arange(4), X, 50),
    "encode_elias_fano": lambda: kernels.encode_elias_fano(I, 0, 200),
    "decode_elias_fano": lambda: kernels.decode_elias_fano(np.zeros(7, np.uint64), 200, 0, 200),
    "encode_bitmap": lambda: kernels.encode_bitmap(I, 0, 200),
    "decode_bitmap": lambda: kernels.decode_bitmap(np.zeros(4, np.uint64), 200, 0, 200),
    "count_tiles": lambda: kernels.count_tiles(I, 0),
    "decode_tiles": lambda: kernels.decode_tiles(np.zeros(1, np.uint64), 0, 0, 200),
    "row_columns": lambda: kernels.row_columns(np.array([0, 200]), I, np.array([0]), 200),
}
COMPILED = kernels.available_isas()[1:]


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("isa", COMPILED)
@pytest.mark.parametrize("kernel", CALLS)
def test_the_forced_version_is_the_one_that_ran(isa, kernel):
    other = COMPILED[0] if isa != COMPILED[0] else COMPILED[-1]
    with kernels.use_isa(other):
        CALLS[kernel]()
        assert _compiled.last_isa() == other
    with kernels.use_isa(isa):
        CALLS[kernel]()
        assert kernels.active_isa() == _compiled.active_isa() == _compiled.last_isa() == isa


@pytest.mark.parametrize("isa", COMPILED)
@pytest.mark.parametrize("kernel", CALLS_UP_TO_AVX2)
def test_an_isa_without_a_version_runs_the_one_below(isa, kernel):
    with kernels.use_isa(COMPILED[0] if isa != COMPILED[0] else COMPILED[-1]):
        CALLS["checksum"]()
    with kernels.use_isa(isa):
        CALLS_UP_TO_AVX2[kernel]()
    assert _compiled.last_isa() == min(isa, "avx2", key=["scalar", "avx2", "avx512"].index)


@pytest.mark.parametrize(("kernel", "call"), [*CALLS.items(), *CALLS_UP_TO_AVX2.items()])
def test_the_reference_runs_no_compiled_code(kernel, call, monkeypatch):
    monkeypatch.setattr(_compiled, kernel, None)
    with kernels.use_isa("reference"):
        call()
    with kernels.use_isa("scalar"), pytest.raises(TypeError):
        call()


@each_isa
def test_leaving_the_block_restores_the_version_also_after_an_error(isa):
    before = kernels.active_isa()
    with kernels.use_isa(isa):
        assert kernels.active_isa() == isa
    assert kernels.active_isa() == before
    with pytest.raises(ZeroDivisionError), kernels.use_isa(isa):
        raise ZeroDivisionError
    assert kernels.active_isa() == before


def test_an_unknown_name_is_refused_with_the_known_ones():
    before = kernels.active_isa()
    with (
        pytest.raises(ValueError, match="no kernels named 'mmx' here; there are reference, scalar"),
        kernels.use_isa("mmx"),
    ):
        pass
    assert kernels.active_isa() == before
    assert not _compiled.force_isa("mmx")


def functions(module):
    return {name: value for name, value in vars(module).items() if callable(value) and name[0] != "_"}


DISPATCH = {"active_isa", "available_isas", "force_isa", "isas_with", "last_isa"}


def test_reference_and_compiled_have_the_same_functions():
    assert set(functions(reference)) == set(functions(_compiled)) - DISPATCH


@pytest.mark.parametrize("kernel", functions(reference))
def test_reference_and_compiled_take_the_same_arguments(kernel):
    # The type checker knows the compiled functions only by the types of the reference.
    with pytest.raises(TypeError, match="incompatible function arguments") as refusal:
        getattr(_compiled, kernel)()
    arguments = re.findall(r"\barg\d*: ", str(refusal.value).partition("Invoked with")[0])
    assert len(arguments) == len(inspect.signature(getattr(reference, kernel)).parameters)


CSRC = Path(__file__).parents[2] / "csrc"


def features_of(isa):
    """What functions for an ISA are compiled for, from the attribute that they have."""
    macros = dict(re.findall(r"#define (\w+) (.*)", (CSRC / "dispatch.h").read_text()))
    target = macros[f"SPARSEWIRE_{isa.upper()}"]
    while "SPARSEWIRE" in target:
        target = re.sub(r"SPARSEWIRE\w+", lambda macro: macros[macro[0]], target)
    return "".join(re.findall(r'"([^"]*)"', target)).split(",")


@pytest.mark.parametrize(
    ("isa", "feature"), [(isa, feature) for isa in ("avx2", "avx512") for feature in features_of(isa)]
)
def test_an_isa_needs_every_feature_that_its_functions_are_compiled_for(isa, feature):
    features = features_of(isa)
    assert isa in _compiled.isas_with(features)
    assert isa not in _compiled.isas_with([f for f in features if f != feature])


def test_no_other_function_is_compiled_for_an_instruction_set():
    sources = [*CSRC.glob("*.h"), *CSRC.glob("*.cpp")]
    assert [file.name for file in sources if re.search(r"gnu::target|-m(arch|avx)", file.read_text())] == [
        "dispatch.h"
    ]


def test_the_processor_is_asked_for_every_feature():
    try:
        flags = re.search(r"(?m)^flags\s*: (.*)", Path("/proc/cpuinfo").read_text())[1].split()
    except (OSError, TypeError):
        pytest.skip("this system does not list the features of an x86 processor in /proc/cpuinfo")
    present = [{"bmi1": "bmi", "abm": "lzcnt", "pclmulqdq": "pclmul"}.get(flag, flag) for flag in flags]
    assert _compiled.available_isas() == _compiled.isas_with(present)


@each_isa
def test_the_environment_forces_a_version(isa):
    done = python("from sparsewire import kernels; print(kernels.active_isa())", SPARSEWIRE_ISA=isa)
    assert done.stdout.strip() == isa, done.stderr


def test_an_unknown_version_in_the_environment_stops_the_import():
    done = python("import sparsewire.kernels", SPARSEWIRE_ISA="mmx")
    assert done.returncode != 0
    assert "no kernels named 'mmx' here" in done.stderr


def test_a_missing_extension_warns_once_and_the_reference_runs():
    code = """
import sys, warnings
sys.modules["sparsewire.kernels._compiled"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from sparsewire import kernels
    import numpy as np
    kernels.dense_to_sparse(np.ones(3, np.float32))
print([w.category.__name__ for w in caught], kernels.available_isas(), kernels.active_isa())
"""
    environment = {"SPARSEWIRE_ISA": ""} if "SPARSEWIRE_ISA" in os.environ else {}
    done = python(code, **environment)
    assert done.stdout.strip() == "['RuntimeWarning'] ('reference',) reference", done.stderr


def test_ml_dtypes_is_not_imported_for_nothing():
    code = """
import sys
import numpy as np
from sparsewire import kernels
kernels.accumulate_select(np.ones(3, np.float16), np.ones(3, np.float16), 1)
print("ml_dtypes" in sys.modules)
"""
    assert python(code).stdout.strip() == "False"
