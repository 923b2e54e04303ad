"""What a trial must have shown.  docs/reliability.md says the same in words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from trials import MPI, Trial

DEATH_BAR_S = (
    1.5  # from a death to the last survivor's error; the 99th percentile of a row is held against it
)
SLACK_S = 2.0  # beyond the time-out, where a time-out notices the fault
JUDGES = ("hang", "wrong sum", "unnamed", "types differ", "innocent named", "late", "leftovers")

LOST = frozenset({"PeerLostError"})
LEFT = frozenset({"PeerLostError", "TransportError"})
CUT_OFF = frozenset({"CollectiveTimeout", "PeerLostError"})
DAMAGED = frozenset({"WireError", "CollectiveTimeout"})
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Promise:
    """What ranks raise after a fault.  No type: nothing, and the job goes on."""

    types: frozenset[str] = NOTHING
    may_pass: bool = False  # it is also right if nobody is concerned
    may_differ: bool = False  # there is no group yet in which ranks could tell each other
    next_call_works: bool = False
    is_death: bool = False  # noticed at once, and not by a time-out


PROMISES = {
    "kill": Promise(LOST, is_death=True),
    "kill while joining": Promise(CUT_OFF, may_differ=True),
    "stop": Promise(frozenset({"CollectiveTimeout"})),
    "pause": Promise(),
    "continue too late": Promise(frozenset({"CollectiveTimeout"})),
    "link down": Promise(CUT_OFF),
    "link interrupted": Promise(),
    "pair drop": Promise(CUT_OFF, may_pass=True),
    "garbage to a port": Promise(),
    "junk on a link": Promise(DAMAGED),
    "bit flip": Promise(DAMAGED),
    "truncation": Promise(DAMAGED),
    "slow rank": Promise(),
    "slow link": Promise(),
    "exception": Promise(LEFT, is_death=True),
    "exit": Promise(LEFT, is_death=True),
    "close": Promise(LEFT, is_death=True),
    "mismatch": Promise(frozenset({"CallMismatchError"}), next_call_works=True),
    "bad input": Promise(frozenset({"InputError"}), next_call_works=True),
    "descriptors": Promise(CUT_OFF | LEFT, may_pass=True),
    "fork": Promise(),
    "disk full": Promise(),
}
# Ranks that a message speaks of, apart from the one that noticed.
NAMED = re.compile(r"(?<!by )\brank (\d+(?:, \d+)*)")
# After these the victim is dead, or it sees the others as they see it: it is not compared with them.
APART = {
    "kill",
    "kill while joining",
    "stop",
    "continue too late",
    "link down",
    "exception",
    "exit",
    "close",
}


# Of a rank with one of these nothing is expected; all others come to the end of their program.
ENDING = {"kill", "kill while joining", "stop", "exception", "exit", "close"}


@dataclass
class Evidence:
    """What is known of a trial that has ended."""

    journals: list[list[dict[str, Any]]]  # of each rank
    exit_codes: list[int | None]
    hung: set[int]
    leftovers: list[str]
    printed: list[str]
    ended_at: float  # on the clock of the journals


@dataclass
class Verdict:
    failures: dict[str, list[str]] = field(default_factory=dict)  # judge -> what it says
    seconds_to_error: float | None = None
    is_death: bool = False

    def blame(self, judge: str, what: str) -> None:
        self.failures.setdefault(judge, []).append(what)


def judge(trial: Trial, evidence: Evidence) -> Verdict:
    verdict = Verdict()
    for rank in sorted(evidence.hung):
        verdict.blame("hang", f"rank {rank}: {evidence.printed[rank][-1500:]}")
    for left in evidence.leftovers:
        verdict.blame("leftovers", left)
    struck = _struck(trial, evidence)
    _judge_sums_and_names(trial, evidence, verdict, struck)
    if not verdict.failures.keys() & {"hang"}:
        _judge_errors(trial, evidence, verdict, struck)
    if trial.kind == "disk full":
        _judge_disk(evidence, verdict, struck)
    return verdict


def accused(message: str) -> set[int]:
    """The ranks that a message names as those at fault.

    >>> accused("rank 1, 3 did not arrive within 2 s in barrier() (noticed by rank 0)")
    {1, 3}
    """
    return {int(rank) for ranks in NAMED.findall(message) for rank in ranks.split(", ")}


def _struck(trial: Trial, evidence: Evidence) -> dict[str, dict[str, Any]]:
    """The first event of each kind of fault that really happened: not each finds something to damage.

    A fault that comes when its rank has ended the call before the last concerns nobody: all others have what
    they need of it, or get it.
    """
    events = []
    for journal in evidence.journals:
        over = next((event["at"] for event in journal if event.get("call") == len(trial.calls) - 2), math.inf)
        events += [event for event in journal if "fault" in event and event["at"] < over]
    return {event["fault"]: event for event in sorted(events, key=lambda event: -event["at"])}


def _judge_sums_and_names(trial: Trial, evidence: Evidence, verdict: Verdict, struck: dict[str, Any]) -> None:
    ending = {fault.victim for fault in trial.faults if fault.kind in ENDING}
    ends_by_launcher = trial.driver in MPI and any(PROMISES[kind].is_death for kind in struck)
    for rank, journal in enumerate(evidence.journals):
        for event in journal:
            if event.get("right") is False:
                verdict.blame("wrong sum", f"rank {rank}, call {event['call']}")
            if "unnamed" in event:
                verdict.blame("unnamed", f"rank {rank}: {event['unnamed']}")
            if "error" in event and not event["named"]:
                verdict.blame("unnamed", f"rank {rank}: {event['error']}: {event['message']}")
        code = evidence.exit_codes[rank]
        ours = rank in ending or rank in evidence.hung or ends_by_launcher
        if code is not None and code < 0 and not ours:
            verdict.blame("unnamed", f"rank {rank} died of signal {-code}: {evidence.printed[rank][-1500:]}")
        ended = journal and "end" in journal[-1]
        if not ended and not ours:
            verdict.blame("unnamed", f"rank {rank} ended early: {evidence.printed[rank][-1500:]}")


# -- errors --------------------------------------------------------------------------------------


def _judge_errors(trial: Trial, evidence: Evidence, verdict: Verdict, struck: dict[str, Any]) -> None:
    # In the order of calls: those of a burst that begin after another one broke fail sooner, and say so.
    errors = [
        sorted((event for event in journal if "error" in event), key=lambda event: event["call"])
        for journal in evidence.journals
    ]
    refusal = next((kind for kind in struck if PROMISES[kind].next_call_works), None)
    breaking = next((kind for kind in struck if PROMISES[kind].types and kind != refusal), None)
    apart = trial.victims if breaking in APART else set()
    judged = [rank for rank in range(trial.size) if rank not in apart]
    if refusal is not None:
        _judge_refusal(trial, refusal, breaking is not None, errors, verdict)
        errors = [[e for e in events if e["error"] not in PROMISES[refusal].types] for events in errors]
    ends_job = trial.driver in MPI and breaking in ("kill", "exit", "exception")
    if ends_job and not any(errors[rank] for rank in judged):  # the launcher ended it
        verdict.seconds_to_error = evidence.ended_at - struck[breaking]["at"]
        _judge_time(trial, breaking, verdict)
        return
    first = {rank: errors[rank][0] for rank in judged if errors[rank]}
    if breaking is None:
        for rank, error in first.items():
            verdict.blame("types differ", f"rank {rank} raised {error['error']}: {error['message']}")
        return
    _judge_types(trial, breaking, judged, first, verdict)
    _judge_accusations(trial, breaking, errors, struck, verdict)
    if first:
        verdict.seconds_to_error = max(error["at"] for error in first.values()) - struck[breaking]["at"]
        _judge_time(trial, breaking, verdict)


def _judge_refusal(
    trial: Trial, kind: str, broke: bool, errors: list[list[dict[str, Any]]], verdict: Verdict
) -> None:
    """Every worker raises the refused call once, and says whose it was; or it broke before that."""
    [fault] = [fault for fault in trial.faults if fault.kind == kind]
    for rank in range(trial.workers):
        found = [e for e in errors[rank] if e["error"] in PROMISES[kind].types]
        if len(found) > 1 and trial.driver == "ddp":  # a step has several groups
            found = found[:1]
        if len(found) != 1 and not (broke and not found):
            others = [f"{e['call']}: {e['error']}: {e['message']}" for e in errors[rank]]
            verdict.blame("types differ", f"rank {rank}: {kind} at call {fault.at}, raised {others}")
        for error in found:
            named = accused(error["message"])
            if named != {fault.victim} if kind == "bad input" else fault.victim not in named:
                verdict.blame("innocent named", f"rank {rank} says: {error['message']}")


def _judge_types(
    trial: Trial, kind: str, judged: list[int], first: dict[int, dict[str, Any]], verdict: Verdict
) -> None:
    promise = PROMISES[kind]
    # An aggregator that nobody needs may end in peace.
    concerned = [rank for rank in judged if rank < trial.workers or rank in first]
    types = {rank: first[rank]["error"] if rank in first else "nothing" for rank in concerned}
    needless = promise.may_pass or any(victim >= trial.workers for victim in trial.victims)
    allowed = promise.types | ({"nothing"} if needless else NOTHING)
    differ = len(set(types.values())) > 1 and not promise.may_differ
    if differ or not set(types.values()) <= allowed:
        said = {rank: error["message"] for rank, error in first.items()}
        verdict.blame("types differ", f"{types}; {said}")


def _judge_accusations(
    trial: Trial, kind: str, errors: list[list[dict[str, Any]]], struck: dict[str, Any], verdict: Verdict
) -> None:
    guilty = set(trial.victims)
    if kind == "pair drop":
        guilty.add(trial.faults[0].other)
    if "peer" in struck[kind]:  # it is the link that is broken, seen from both of its ends
        guilty.add(struck[kind]["peer"])
    for rank, events in enumerate(errors):
        if rank in trial.victims and kind in APART:
            continue
        for said in dict.fromkeys(f"{error['error']}: {error['message']}" for error in events):
            named = accused(said)
            if not named or not named <= guilty:
                verdict.blame("innocent named", f"rank {rank} says: {said}")


def _judge_time(trial: Trial, kind: str, verdict: Verdict) -> None:
    """After a death the campaign judges the whole row; a single trial has as much as a time-out's slack."""
    verdict.is_death = PROMISES[kind].is_death and trial.driver not in MPI
    limit = SLACK_S if PROMISES[kind].is_death else trial.timeout + SLACK_S
    assert verdict.seconds_to_error is not None
    if verdict.seconds_to_error > limit:
        verdict.blame("late", f"{verdict.seconds_to_error:.2f} s after the fault; allowed are {limit:g} s")


def _judge_disk(evidence: Evidence, verdict: Verdict, struck: dict[str, Any]) -> None:
    """The error names the file; the file that was there remains, and none that is not finished."""
    if "disk full" not in struck:
        return
    events = [event for journal in evidence.journals for event in journal]
    refused = [event for event in events if "refused" in event]
    if not refused or not refused[0]["named"]:
        verdict.blame("unnamed", f"disk full, and the error is {refused}")
    for event in events:
        if "files" in event:
            if len(event["files"]) > 4:
                verdict.blame("leftovers", f"files on the full disk: {event['files']}")
            if not event["intact"]:
                verdict.blame("leftovers", "a file that was complete is damaged")
