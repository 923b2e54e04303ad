"""Random sequences of deaths and returns in one job; every sequence ends right, or with a named error.

    python tests/drivers/sequences.py [SEQUENCES] [FIRST_SEED]

In a sequence, a group of 2 to 5 ranks meets some events.  In each, ranks die in the middle of a sum, at their
way into ``shrink``, or in it; or a newcomer is taken in by ``grow``.  After each, the sum must be right.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import jobs

# Every rank knows the whole sequence, and its own number in the job, which is not its rank.
PROGRAM = """
def step(comm):
    'A sum that everybody can check.'
    total = comm.allreduce(np.full(1000, 2.0**comm.rank))
    assert total[0] == 2.0**comm.size - 1, (total[0], comm.size)

def expect_no_more(comm, me, dying):
    'Sum until the death of another rank is noticed.'
    if me in dying:
        after(dying[me], die)
    while True:
        step(comm)

def main(rank, size):
    me, events, names = rank, EVENTS, []
    first = next((i for i, event in enumerate(events) if event.get("newcomer") == me), None)
    if first is None:
        comm = sw.init(timeout=20)
    else:
        wait_for(f"event-{first}")
        comm = sw.join(timeout=20)
        step(comm)
        events = events[first + 1 :]
    done = len(EVENTS) - len(events)
    for number, event in enumerate(events, done):
        if "newcomer" in event:
            open(in_folder(f"event-{number}"), "w").close()
            comm = comm.grow(at_least=1, timeout=20)
        else:
            comm.barrier()
            dying = {int(who): when for who, when in event["in a sum"].items()}
            error = tried(lambda: expect_no_more(comm, me, dying))
            assert "TransportError" in error["kinds"], error
            if me in event["before"]:
                die()
            if str(me) in event["within"]:
                after(event["within"][str(me)], die)
            comm = shrunk(comm)
        step(comm)
    return [comm.size, me]

def shrunk(comm):
    'Those who die within it may do so when it is over for others.'
    comm = comm.shrink(timeout=10)
    for _ in range(4):
        try:
            time.sleep(0.35)  # until the last of them is dead
            comm.barrier()
            return comm
        except sw.TransportError:
            comm = comm.shrink(timeout=10)
    raise AssertionError("still no group")
"""


def draw(chance: random.Random) -> tuple[int, list[dict[str, Any]], set[int]]:
    """The size, the events, and the ranks that are there at the end, by their numbers in the job."""
    size = chance.randint(2, 5)
    alive, used = set(range(size)), size
    events: list[dict[str, Any]] = []
    for _ in range(chance.randint(1, 4)):
        if len(alive) < 2 or (chance.random() < 0.45 and len(alive) < 6):
            events.append({"newcomer": used})
            alive.add(used)
            used += 1
            continue
        dying = chance.sample(sorted(alive), chance.randint(1, len(alive) - 1))
        event: dict[str, Any] = {"in a sum": {dying[0]: chance.uniform(0.0, 0.3)}, "before": [], "within": {}}
        for who in dying[1:]:
            how = chance.choice([*event])
            if how == "before":
                event[how].append(who)
            else:
                event[how][who] = chance.uniform(0.0, 0.3)
        events.append(event)
        alive -= set(dying)
    return size, events, alive


def judge(seed: int) -> str:
    """What became of a sequence: "right", the named error, or what was WRONG."""
    size, events, alive = draw(random.Random(seed))
    numbers = range(size + sum("newcomer" in event for event in events))
    text = f"import json\nEVENTS = json.loads({json.dumps(json.dumps(events))})\n{PROGRAM}"
    with jobs.job(size) as job:
        for number in numbers:
            job.start(number, text)
        outcomes = dict(zip(numbers, job.wait(90), strict=True))
    wrong = []
    named = set()
    for number, outcome in outcomes.items():
        if number not in alive:
            if outcome.get("error") == jobs.DIED:
                continue
        elif outcome.get("result") == [len(alive), number]:
            continue
        if "TransportError" in outcome.get("kinds", ()):
            named.add(f"{number}: {outcome['error']}: {outcome['message']}")
        else:
            wrong.append((number, dict(outcome)))
    if wrong:
        return f"WRONG {size} {events} {wrong}"
    return f"named {sorted(named)}" if named else "right"


def main() -> int:
    count, first = (int(word) for word in (*sys.argv[1:], *("100", "0")[len(sys.argv) - 1 :]))
    seen: dict[str, int] = {}
    for seed in range(first, first + count):
        started = time.monotonic()
        verdict = judge(seed)
        kind = verdict.split()[0]
        seen[kind] = seen.get(kind, 0) + 1
        if kind != "right":
            print(f"seed {seed}, {time.monotonic() - started:.1f} s: {verdict}", flush=True)
    print(f"{count} sequences from seed {first}: {seen}")
    return int("WRONG" in seen)


if __name__ == "__main__":
    sys.exit(main())
