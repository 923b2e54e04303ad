"""``sparsewire run`` and ``sparsewire serve``: a script as local ranks, and ranks that only aggregate."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from sparsewire.errors import InputError

# Workers may prepare for this long before they join; they have time-outs of their own.
LONGEST_PREPARATION_S = 7 * 24 * 3600.0


def run(
    script: Annotated[str, typer.Argument(help="A Python script, or a module with -m.", show_default=False)],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="Number of ranks.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed on to the script.")] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module.")] = False,
    aggregators: Annotated[
        int, typer.Option(min=0, help="More ranks, which only aggregate for omnireduce.")
    ] = 0,
) -> None:
    """Run a script as local ranks; all stop if one dies, and its exit code is the result."""
    from sparsewire.launch.local import launch

    if not module and not Path(script).exists():
        raise InputError(f"there is no script {script!r}")
    command = [sys.executable, *(["-m"] if module else []), script, *(arguments or [])]
    try:
        outcome = launch(command, ranks, aggregators=aggregators)
    except BrokenPipeError:  # the reader of our output has closed it, as in `sparsewire run ... | head`
        # Python flushes standard output at exit and would complain about the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None
    if outcome.code != 0:
        print(f"sparsewire: {outcome}; the other ranks were stopped", file=sys.stderr)
    raise typer.Exit(outcome.code)


def serve() -> None:
    """Only aggregate, for a job's workers, until they have left; `run --aggregators` starts this."""
    import sparsewire

    with sparsewire.init(timeout=LONGEST_PREPARATION_S) as comm:
        comm.serve()
