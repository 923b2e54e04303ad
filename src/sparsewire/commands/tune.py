"""``sparsewire tune``: measure what messages and computing cost."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

Ranks = Annotated[int, typer.Option("-n", "--ranks", min=2, help="Local ranks to start.")]


def tune(
    ranks: Ranks = 4,
    driver: Annotated[str, typer.Option(help="Of the ranks to start: tcp or mpi.")] = "tcp",
    network: Annotated[
        str | None, typer.Option(help="Rate of an emulated link per rank, e.g. 1gbit (Linux, root).")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to spend on measuring.")] = 20.0,
) -> None:
    """Measure what messages and computing cost here, for `auto` to choose by; in a job, with its ranks."""
    import sparsewire
    from sparsewire.bench.harness.progress import progress
    from sparsewire.choosing.tune import run_tune
    from sparsewire.launch.emulation import parse_rate
    from sparsewire.launch.job import run_job

    with sparsewire.init() as comm:
        if comm.size > 1:
            with progress("tune") if comm.rank == 0 else nullcontext(lambda *_: None) as on_progress:
                found = run_tune(comm, budget_s=seconds, tell=on_progress)
            print(found, end="\n" if found else "")
            return
    rate = parse_rate(network) if network else None
    ourselves = ["-m", "sparsewire", "tune", "--seconds", f"{seconds:g}"]
    outcome = run_job(ourselves, ranks, driver=driver, bits_per_second=rate, on_line=_print_line)
    raise typer.Exit(outcome.code)


def _print_line(rank: int, stream: str, line: bytes) -> None:
    """Print a rank's line as it is; only rank 0 prints anything."""
    print(line.decode(errors="replace"), file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)
