"""A short campaign with every fault, and what draws and judges trials.  ``make faults`` runs a long one."""

import functools
import threading
from collections import Counter

import pytest
from campaign import run_all, usable_drivers
from judges import PROMISES, Evidence, accused, judge
from trials import FAULTS, TCP, Call, Fault, Trial, draw

from sparsewire.algorithms import ALGORITHMS, TOPK_ALGORITHMS

SEED = 38  # whose first trials have every driver
WORKERS = 3  # most of a trial's time is spent waiting
DRIVERS = usable_drivers()
POSSIBLE = [kind for kind, drivers in FAULTS.items() if {*drivers} & {*DRIVERS}]


# -- the campaign --------------------------------------------------------------------------------


@functools.cache
def campaign():
    done = run_all([(SEED, number, DRIVERS) for number in range(len(POSSIBLE))], WORKERS)
    return {one.trial.kind: one for one in done}


@pytest.mark.parametrize("kind", FAULTS)
def test_fault_is_survived_or_named_rightly_on_every_rank(kind):
    if kind not in POSSIBLE:
        pytest.skip("needs root on Linux (network namespaces, a small disk)")
    one = campaign()[kind]
    one.verdict.failures.pop("late", None)  # ``make faults`` judges times, where no other tests run beside
    assert one.verdict.failures == {}, f"python tests/faults --seed {SEED} --trial {one.trial.number}"


def test_a_campaign_that_is_interrupted_starts_no_more_trials():
    threads = threading.active_count()
    trials = run_all([(SEED, number, ["tcp"]) for number in (0, 1, *range(900, 950))], workers=1)
    next(trials)
    trials.close()  # as an exception does
    assert threading.active_count() == threads


# -- drawing -------------------------------------------------------------------------------------


def test_a_seed_and_a_number_draw_the_same_trial_again():
    assert draw(3, 40) == draw(3, 40) == Trial.from_json(draw(3, 40).to_json())
    assert draw(3, 40) != draw(4, 40)


def test_a_thousand_trials_meet_every_fault_driver_algorithm_and_kind_of_call():
    trials = [draw(SEED, number) for number in range(1000)]
    assert min(Counter(trial.kind for trial in trials).values()) >= 1000 // len(FAULTS)
    assert {trial.driver for trial in trials} == {name for names in FAULTS.values() for name in names}
    calls = [call for trial in trials for call in trial.calls]
    assert {call.algorithm for call in calls} >= {*ALGORITHMS, *TOPK_ALGORITHMS, "auto"}
    assert {call.blocking for call in calls if call.operation == "allreduce"} == {True, False}
    assert {call.name for call in calls} == {None, "weights", "bias"}
    bursts = Counter((trial.number, call.burst) for trial in trials for call in trial.calls)
    assert max(bursts.values()) == 5
    assert {trial.size for trial in trials if trial.driver in TCP} == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("number", range(200))
def test_every_fault_has_a_victim_and_calls_that_follow(number):
    trial = draw(SEED, number)
    for fault in trial.faults:
        assert 0 <= fault.victim < trial.size
        assert fault.other != fault.victim or fault.kind == "kill"
        assert fault.at < len(trial.calls) - 3
        assert fault.kind in PROMISES


# -- judging -------------------------------------------------------------------------------------


def trial(kind="kill", victim=1, other=2, timeout=20.0):
    calls = tuple(Call(number, number, True, "barrier") for number in range(6))
    fault = Fault(kind, victim, 1, 0.0, other)
    return Trial(0, 0, kind, "tcp", 3, 0, timeout, 0.0, 0.0, calls, (fault,))


def evidence(kind="kill", victim=1, at=11.0, **said):
    """Of a job in which all ranks but the victim raise after its fault at 10 s; ``said`` is by rank."""
    default = "PeerLostError: rank 1 is gone: it closed the connection (noticed by rank 0)"
    journals = []
    for rank in range(3):
        error, _, message = said.get(f"rank_{rank}", default).partition(": ")
        event = {"call": 2, "error": error, "message": message, "named": True, "at": at}
        journals.append([{"pid": 1, "at": 9.0}, *([event] if error else []), {"end": True, "at": at}])
    journals[victim] = [{"pid": 1, "at": 9.0}, {"fault": kind, "at": 10.0}]
    return Evidence(journals, [0, -9, 0], set(), [], [""] * 3, at)


def test_a_death_that_all_survivors_name_is_right():
    verdict = judge(trial(), evidence())
    assert verdict.failures == {}
    assert (verdict.seconds_to_error, verdict.is_death) == (1.0, True)


def test_a_fault_after_the_last_but_one_call_of_its_rank_concerns_nobody():
    said = {"rank_0": "", "rank_2": ""}
    late, in_time = evidence("link down", **said), evidence("link down", **said)
    for case, call in ((late, 4), (in_time, 3)):
        case.journals[1] = [{"call": call, "right": True, "at": 9.9}, {"fault": "link down", "at": 10.0}]
        case.journals[1].append({"end": True, "at": 11.0})
        case.exit_codes[1] = 0
    assert judge(trial("link down"), late).failures == {}
    assert [*judge(trial("link down"), in_time).failures] == ["types differ"]


def test_each_judge_finds_what_it_looks_for():
    cases = {
        "innocent named": evidence(rank_2="PeerLostError: rank 0 is gone: it closed the connection"),
        "types differ": evidence(rank_2="CollectiveTimeout: rank 1 did not arrive within 20 s in barrier()"),
        "late": evidence(at=13.0),
    }
    cases["hang"] = evidence()
    cases["hang"].hung.add(0)
    cases["leftovers"] = evidence()
    cases["leftovers"].leftovers.append("the temporary file x")
    cases["wrong sum"] = evidence()
    cases["wrong sum"].journals[0].insert(1, {"call": 0, "right": False, "at": 9.5})
    cases["unnamed"] = evidence()
    cases["unnamed"].journals[2].insert(1, {"unnamed": "OSError", "at": 9.5})
    assert {name: [*judge(trial(), case).failures] for name, case in cases.items()} == {
        name: [name] for name in cases
    }


def test_a_survivor_that_ends_by_a_signal_or_without_a_word_is_unnamed():
    crashed = evidence()
    crashed.exit_codes[2] = -11
    silent = evidence()
    silent.journals[2].pop()
    for case in (crashed, silent):
        assert [*judge(trial(), case).failures] == ["unnamed"]


def test_a_survivor_that_notices_nothing_differs_from_those_that_do():
    assert [*judge(trial(), evidence(rank_2="")).failures] == ["types differ"]


def test_an_error_that_no_fault_explains_is_found():
    assert [*judge(trial("slow rank"), evidence("slow rank")).failures] == ["unnamed", "types differ"]


def refused(*ranks, says="InputError: rank 1: indices[1] is 4", kind="bad input"):
    """The verdict on a job in which these ranks raise what rank 1 refuses, and go on."""
    case = evidence(kind, **{f"rank_{rank}": says if rank in ranks else "" for rank in (0, 2)})
    case.exit_codes[1] = 0
    error, _, message = says.partition(": ")
    raised = {"call": 1, "error": error, "message": message, "named": True, "at": 10.0}
    case.journals[1] += [*([raised] if 1 in ranks else []), {"end": True, "at": 12.0}]
    return [*judge(trial(kind), case).failures]


def test_a_refused_call_is_raised_by_every_rank_and_names_the_one_that_refused():
    assert refused(0, 1, 2) == []
    assert refused(0, 1) == ["types differ"]
    assert refused(0, 1, 2, says="InputError: rank 2: indices[1] is 4") == ["innocent named"]
    assert refused(0, 1, 2, says="PeerLostError: rank 1 is gone") == ["types differ"]
    both = "CallMismatchError: rank 0 called barrier(), but rank {} called allgather()"
    assert refused(0, 1, 2, says=both.format(1), kind="mismatch") == []
    assert refused(0, 1, 2, says=both.format(2), kind="mismatch") == ["innocent named"]


def test_either_of_a_pair_may_be_named_and_nobody_else():
    def late(rank):
        return f"CollectiveTimeout: rank {rank} did not arrive within 2 s in barrier()"

    def verdict(named):
        said = {"rank_0": late(named), "rank_2": late(1)}
        case = evidence("pair drop", **said)
        case.exit_codes[1] = 0
        case.journals[1] += [{**case.journals[0][1]}, {"end": True, "at": 12.0}]
        return [*judge(trial("pair drop", timeout=2.0), case).failures]

    assert (verdict(1), verdict(2), verdict("1, 2")) == ([], [], [])
    assert verdict(0) == ["innocent named"]


@pytest.mark.parametrize(
    ("message", "ranks"),
    [
        ("rank 1, 3 did not arrive within 2 s in barrier()", {1, 3}),
        ("rank 4 is gone: it closed the connection (noticed by rank 0)", {4}),
        ("this communicator is broken, make a new one: rank 2 is gone: sending to it failed", {2}),
        ("rank 2 cannot accept connections: this process has no free file descriptors", {2}),
        ("rank 2 is gone: it left (noticed by rank 1); rank 2 is an aggregator", {2}),
        ("from rank 5: the checksum is wrong", {5}),
        ("rank 3: indices[1] is 4", {3}),
        ("rank 1 called barrier(), but rank 2 called allgather()", {1, 2}),
    ],
)
def test_accused_are_those_at_fault_and_not_those_who_say_so(message, ranks):
    assert accused(message) == ranks
