"""The command line: ``sparsewire run | serve | linear | bench | simulate | tune | demo | doctor``.

Commands import what they need when they are called, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import typer

from sparsewire.commands import bench, linear, run, tune
from sparsewire.commands.generate import make_callback
from sparsewire.errors import SparsewireError
from sparsewire.launch.signals import leave_by_exception

app = typer.Typer(
    name="sparsewire",
    help="Sparse collective communication: sums of mostly-zero vectors at the cost of their non-zeros.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(linear.group, name="linear")
app.add_typer(bench.make_group("Measure, side by side and checked."), name="bench")
app.add_typer(bench.make_group("Predict, in virtual time, for any number of ranks."), name="simulate")
app.command(context_settings={"allow_interspersed_args": False})(run.run)
app.command()(run.serve)
app.command("tune")(make_callback(tune.TuneOptions, tune.tune))


@app.command("demo")
def _demo() -> None:
    """Four real processes add up 16M floats, sparse and dense: half a minute, no set-up."""
    from sparsewire.bench.harness.table import wide_console
    from sparsewire.commands.demo import run_demo

    raise typer.Exit(run_demo(wide_console()))


@app.command("doctor")
def _doctor() -> None:
    """What is installed, and what can run here."""
    from sparsewire.bench.harness.table import wide_console
    from sparsewire.commands.doctor import print_doctor

    print_doctor(wide_console())


def main() -> NoReturn:
    """Run the command line; an error of this library is one line and not a traceback."""
    leave_by_exception()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # Python itself would complain about a full disk when it is too late
    except SparsewireError as error:
        _complain(error)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader has seen enough, as in `sparsewire doctor | head -1`
        _discard_output()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        _discard_output()
        _complain(error if error.filename else f"the output cannot be written: {error.strerror or error}")
    sys.exit(0)


def _complain(error: object) -> NoReturn:
    print(f"sparsewire: {error}", file=sys.stderr)
    sys.exit(2)


def _discard_output() -> None:
    """Send what is left of the output nowhere, because Python writes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
