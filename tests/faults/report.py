"""The table of a campaign, its JSON, and what it says while it runs."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaign import Done
from judges import DEATH_BAR_S, JUDGES
from trials import FAULTS


def tell(one: Done, done: Sequence[Done], of: int, seconds: float, verbose: bool) -> None:
    trial, failures = one.trial, one.verdict.failures
    where = f"{trial.kind}, {trial.driver}, {trial.size} ranks"
    for judge, said in failures.items():
        print(f"FAILED {judge}: {where}: {repeat(trial.seed, trial.number)}")
        print("".join(f"    {text}\n" for text in said), flush=True)
    if verbose:
        print(trial)
        for rank, journal in enumerate(one.evidence.journals):
            print(f"rank {rank}:", *journal, one.evidence.printed[rank], sep="\n    ")
        print(f"{one.seconds:.1f} s; time to error {one.verdict.seconds_to_error}")
    failed = sum(bool(each.verdict.failures) for each in done)
    left = seconds / len(done) * (of - len(done))
    if len(done) % 10 == 0 or len(done) == of:
        print(f"{len(done)} of {of} trials, {failed} failed, {left / 60:.1f} min left", flush=True)


def repeat(seed: int, number: int) -> str:
    return f"python tests/faults --seed {seed} --trial {number}"


def result(
    seed: int, drivers: list[str], done: Sequence[Done], seconds: float, leftovers: list[str]
) -> dict[str, Any]:
    """What is committed: rows by fault, and the trials that failed."""
    kinds = [kind for kind in FAULTS if any(one.trial.kind == kind for one in done)]
    failed = [one for one in sorted(done, key=lambda one: one.trial.number) if one.verdict.failures]
    return {
        "command": f"python tests/faults --trials {len(done)} --seed {seed}",
        "seed": seed,
        "trials": len(done),
        "seconds": round(seconds, 1),
        "drivers": {name: sum(one.trial.driver == name for one in done) for name in drivers},
        "rows": [_row(kind, [one for one in done if one.trial.kind == kind]) for kind in kinds],
        "leftovers": leftovers,
        "failed": [
            {
                "command": repeat(seed, one.trial.number),
                "fault": one.trial.kind,
                "driver": one.trial.driver,
                "ranks": one.trial.size,
                "judges": one.verdict.failures,
            }
            for one in failed
        ],
    }


def _row(kind: str, done: list[Done]) -> dict[str, Any]:
    times = sorted(one.verdict.seconds_to_error for one in done if one.verdict.seconds_to_error is not None)
    deaths = sorted(
        one.verdict.seconds_to_error
        for one in done
        if one.verdict.seconds_to_error is not None and one.verdict.is_death
    )
    counts = Counter(judge for one in done for judge in one.verdict.failures)
    return {
        "fault": kind,
        "trials": len(done),
        "ok": sum(not one.verdict.failures for one in done),
        **{judge: counts[judge] for judge in JUDGES},
        "seconds_to_error_median": round(statistics.median(times), 3) if times else None,
        "seconds_to_error_p99": round(_p99(times), 3) if times else None,
        "death_p99": round(_p99(deaths), 3) if deaths else None,
    }


def _p99(times: Sequence[float]) -> float:
    """The largest of up to 100, and the one behind it of more."""
    return times[-1 - len(times) // 101]


def has_failed(found: dict[str, Any]) -> bool:
    late = [row for row in found["rows"] if (row["death_p99"] or 0.0) > DEATH_BAR_S]
    return bool(found["failed"] or found["leftovers"] or late)


def table(found: dict[str, Any]) -> str:
    head = ["fault", "trials", "ok", *JUDGES, "median s", "p99 s"]
    rows = [
        [
            row["fault"],
            *(str(row[name]) for name in ("trials", "ok", *JUDGES)),
            *(
                "" if row[key] is None else f"{row[key]:.2f}"
                for key in ("seconds_to_error_median", "seconds_to_error_p99")
            ),
        ]
        for row in found["rows"]
    ]
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]
    ]
    lines += [f"{found['trials']} trials with seed {found['seed']} in {found['seconds'] / 60:.1f} min"]
    lines += [f"left behind: {left}" for left in found["leftovers"]]
    return "\n".join(
        [
            *lines,
            *(
                entry["command"] + f"   # {entry['fault']}: {', '.join(entry['judges'])}"
                for entry in found["failed"]
            ),
        ]
    )


def write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n")
