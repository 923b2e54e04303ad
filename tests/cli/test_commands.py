"""Commands that are made from records: what is recorded can be run again, and help needs nothing heavy."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from processes import ignoring
from sparsewire.bench import BENCHMARKS, load_benchmark
from sparsewire.bench.harness.options import ProblemOptions, options_of
from sparsewire.commands import app
from sparsewire.commands.linear import FitOptions

ROOT = Path(__file__).parents[2]
SAVED = {path.name: json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks").glob("*.json"))}
COMMANDS = {name: saved["command"] for name, saved in SAVED.items() if "sparsewire " in saved["command"]}


def parse(words):
    """The values of a command's parameters, without running it."""
    command, context = typer.main.get_command(app), None
    while hasattr(command, "list_commands"):
        context = command.make_context(None, [], parent=context, resilient_parsing=True)
        command, words = command.get_command(context, words[0]), words[1:]
        assert command is not None
    return command.make_context(None, list(words), parent=context).params


@pytest.mark.parametrize("name", COMMANDS)
def test_every_recorded_command_can_be_run(name):
    program, *words = shlex.split(COMMANDS[name])
    assert program == "sparsewire"
    parse(words)


def test_there_are_recorded_commands_of_every_kind():
    recorded = {" ".join(shlex.split(command)[1:3]) for command in COMMANDS.values()}
    assert {*BENCHMARKS, "linear fit"} - recorded == {"bench trace"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_defaults_are_recorded_so_that_they_are_parsed_again(name):
    benchmark = load_benchmark(name)
    required = {"file": Path("made.npz")} if name == "bench trace" else {}
    options = benchmark.options(**required)
    program, *words = benchmark.command(options)
    assert (program, words[:2]) == ("sparsewire", name.split())
    assert benchmark.options(**parse(words)) == options


def test_every_option_of_a_benchmark_has_a_help_text():
    for name in BENCHMARKS:
        for _, option, _ in options_of(load_benchmark(name).options):
            assert option.help.endswith((".", "..."))


def test_files_are_recorded_without_folders_and_outputs_not_at_all():
    options = FitOptions(train=Path("/a/train.svm"), model=Path("/b/m.npz"), json=Path("/c/rows.json"))
    assert options.words() == ["train.svm", "--model", "m.npz"]


def test_a_trace_is_recorded_without_folder_size_and_density():
    words = ProblemOptions(distribution="trace:/somewhere/t.npz").words()
    assert words == ["-n", "4", "--dtype", "float32", "--distribution", "trace:t.npz", "--seed", "0"]


@pytest.mark.parametrize(
    ("zero_based", "words"), [(None, []), (True, ["--zero-based"]), (False, ["--one-based"])]
)
def test_a_switch_is_recorded_by_the_flag_that_was_given(zero_based, words):
    assert FitOptions(train=Path("a"), zero_based=zero_based).words() == ["a", *words]


@pytest.mark.parametrize("density", [0.01, 1e-5, 0.123456789])
def test_numbers_are_recorded_exactly(density):
    options = FitOptions(train=Path("a"), density=density, method="topk")
    assert FitOptions(**parse(["linear", "fit", *options.words()])).density == density


def test_fit_has_a_parameter_for_every_option():
    given = parse(["linear", "fit", "a"])
    assert set(given) == {field.name for field in fields(FitOptions)}


@pytest.mark.parametrize("ignored", [(), ("INT",), ("HUP",), ("INT", "TERM", "HUP")])
def test_signals_that_are_ignored_at_the_start_stay_ignored(ignored):
    code = (
        "import signal, sys, sparsewire.commands as c; sys.argv = ['sparsewire', 'doctor'];"
        "signals = ['INT', 'TERM', 'HUP'];"
        "is_ignored = lambda name: signal.getsignal(getattr(signal, 'SIG' + name)) is signal.SIG_IGN;"
        "c.app = lambda: print(*filter(is_ignored, signals)); c.main()"
    )
    command = ignoring(*ignored)([sys.executable, "-c", code])
    done = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
    assert tuple(done.stdout.split()) == ignored, done.stderr
