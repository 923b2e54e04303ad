"""``sparsewire tune``: measure what messages and computing cost."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass

import typer

from sparsewire.bench.harness.options import Network, Options, Seconds, option


@dataclass(frozen=True, kw_only=True)
class TuneOptions(Options):
    """Measure what messages and computing cost here, for `auto` to choose by; in a job, with its ranks."""

    ranks: int = option(4, "Local ranks to start.", flags=("-n", "--ranks"), min=2)
    driver: str = option("tcp", "Of the ranks to start: tcp or mpi.")
    network: Network = None
    seconds: Seconds = 20.0


def tune(options: TuneOptions) -> None:
    """Tune the ranks of the job that this process belongs to, or start ranks that do."""
    import sparsewire
    from sparsewire.bench.harness.progress import progress
    from sparsewire.choosing.tune import run_tune
    from sparsewire.launch.emulation import parse_rate
    from sparsewire.launch.job import run_job

    with sparsewire.init() as comm:
        if comm.size > 1:
            with progress("tune") if comm.rank == 0 else nullcontext(lambda *_: None) as on_progress:
                found = run_tune(comm, budget_s=options.seconds, tell=on_progress)
            print(found, end="\n" if found else "")
            return
    rate = parse_rate(options.network) if options.network else None
    ourselves = ["-m", "sparsewire", "tune", "--seconds", f"{options.seconds:g}"]
    outcome = run_job(
        ourselves, options.ranks, driver=options.driver, bits_per_second=rate, on_line=_print_line
    )
    raise typer.Exit(outcome.code)


def _print_line(rank: int, stream: str, line: bytes) -> None:
    """Print a rank's line as it is; only rank 0 prints anything."""
    print(line.decode(errors="replace"), file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)
