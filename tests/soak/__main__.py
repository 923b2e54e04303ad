"""Many minutes of random collectives on real ranks: sums stay right, and nothing grows.

    python tests/soak --minutes 30 [--ranks 4] [--seed 0] [--json FILE] [--plot FILE]

Ranks over TCP perform seeded random activities (``activities.py``): collectives of every kind and algorithm,
many in flight, splits, errors on purpose, top-k sums with feedback, and steps of DDP with ``compress``.
Every sum is compared with an oracle.  The exit code is 1 if a sum was wrong, if memory grew by more than
``--most-mb``, or if descriptors or threads grew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from growth import COUNTS, FIRST_USES, MIB, Growth, growths, plot
from rich.console import Console
from rich.table import Table

from sparsewire.errors import SparsewireError
from sparsewire.files import replaced_file
from sparsewire.launch.events import EventReader
from sparsewire.launch.job import run_job
from sparsewire.launch.local import free_port
from sparsewire.launch.signals import leave_by_exception

SAMPLES = 240  # in a whole soak; a sample takes some milliseconds
BYTES = ("rss", "anonymous", "heap")
# Arrays get pages of their own, which go back when they die.  In the C library's heap they would leave gaps
# between what lives on, whose growth by chance hides that of what is forgotten.
NO_GAPS = {"MALLOC_MMAP_THRESHOLD_": "32768", "MALLOC_ARENA_MAX": "2"}


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-mb", type=float, default=1.0, help="growth of a rank's memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args(words)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The samples of a soak; raises SparsewireError if a rank fails or a sum is wrong."""
    samples: list[dict[str, Any]] = []
    seconds = 60 * options.minutes

    def on_event(event: dict[str, Any]) -> None:
        sample = event["sample"]
        samples.append(sample)
        memory = "  ".join(f"{figures['rss'] / MIB:.1f}" for figures in sample["ranks"])
        left = max(0.0, seconds - sample["seconds"])
        print(
            f"{sample['seconds']:7.0f} s  {sample['calls']:9,} calls  {memory} MiB  {left:.0f} s left",
            flush=True,
        )

    reader = EventReader(on_event)
    rank = str(Path(__file__).with_name("rank.py"))
    arguments = [rank, f"{seconds}", f"{options.seed}", f"{max(1.0, seconds / SAMPLES)}", f"{free_port()}"]
    os.environ.update(NO_GAPS)
    outcome = run_job(arguments, options.ranks, on_line=reader.hear)
    if outcome.code != 0:
        raise SparsewireError(f"{outcome}; its last words:\n{reader.tail(outcome.rank)}")
    return samples


def is_too_much(growth: Growth, most_mb: float) -> bool:
    if growth.figure == "rss":
        return growth.difference > most_mb * 1e6
    return growth.figure in COUNTS and growth.difference > FIRST_USES


def print_table(console: Console, found: Sequence[Growth], most_mb: float) -> None:
    table = Table(box=None)
    for title in ("rank", "figure", "early", "late", "growth", ""):
        table.add_column(title, justify="left" if title in ("figure", "") else "right")
    for growth in found:
        unit = 1e6 if growth.figure in BYTES else 1
        digits = ".2f" if growth.figure in BYTES else ".0f"
        name = f"{growth.figure}, MB" if growth.figure in BYTES else growth.figure
        numbers = [f"{value / unit:{digits}}" for value in (growth.early, growth.late, growth.difference)]
        table.add_row(f"{growth.rank}", name, *numbers, "too much" if is_too_much(growth, most_mb) else "")
    console.print(table)


def to_json(
    options: argparse.Namespace, samples: Sequence[Mapping[str, Any]], found: Sequence[Growth]
) -> str:
    growth = [{"rank": g.rank, "figure": g.figure, "early": g.early, "late": g.late} for g in found]
    facts = {"minutes": options.minutes, "ranks": options.ranks, "seed": options.seed}
    return json.dumps({**facts, "growth": growth, "samples": list(samples)}, indent=1) + "\n"


def main(words: Sequence[str]) -> int:
    leave_by_exception()
    options, begin = parse(words), time.monotonic()
    try:
        samples = run(options)
        found = growths(samples)
        print_table(Console(), found, options.most_mb)
        if options.json:
            with replaced_file(options.json) as file:
                file.write(to_json(options, samples, found))
        if options.plot:
            plot(samples, options.plot)
    except SparsewireError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    failed = [growth for growth in found if is_too_much(growth, options.most_mb)]
    verdict = (
        "grows: " + ", ".join(f"{g.figure} of rank {g.rank}" for g in failed) if failed else "nothing grows"
    )
    calls = samples[-1]["calls"]
    print(f"{calls:,} calls in {time.monotonic() - begin:.0f} s, every sum as the oracle says; {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
