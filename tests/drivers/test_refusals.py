"""Random sequences of calls of which some are refused by a rank: the valid ones give the right sum."""

import textwrap

import jobs
import pytest

# All ranks draw the same calls.  A rank that is late with an error raises it at the end of another call.
CALLS = """
import random

class Bad:
    pass

def main(rank, size):
    rng = random.Random(SEED)
    comm = sw.init(timeout=30)
    late, wrong, flight = 0, [], []

    def judge(step, kind, is_refused, outcome, expected):
        nonlocal late
        error = outcome.get("error")
        if error is None:
            if is_refused and kind == "allreduce":
                wrong.append((step, "a refused call has a result"))
            late += is_refused  # of a call that this rank had done its part of
            if not is_refused and outcome["result"] not in (expected, None):
                wrong.append((step, outcome["result"], expected))
        elif error != "InputError" or not (is_refused or late):
            wrong.append((step, kind, is_refused, outcome))
        elif not is_refused:
            late -= 1

    def settle():
        while flight:
            step, kind, is_refused, request, expected = flight.pop(0)
            if request is not None:
                judge(step, kind, is_refused, tried(lambda: total(request.wait(20))), expected)

    def total(array):
        return None if array is None else float(array.sum())

    for step in range(80):
        kind = rng.choice(KINDS)
        name = rng.choice([None, "a", "a", "b", "c"])
        length, nnz = rng.choice([1000, 1000, 3000]), rng.choice([1, 30, 900])
        refused = rng.sample(range(size), rng.choice([0, 0, 0, 1, 1, 2, size]))
        blocking, by_refuse = rng.random() < 0.5, rng.random() < 0.3
        promise = rng.choice([None, None, nnz])
        x = np.zeros(length, "f4")
        x[:nnz] = 2.0**rank
        expected = float(nnz * (2.0**size - 1)) if kind != "broadcast" else float(nnz)
        bad = rank in refused
        given = Bad() if bad else x
        if kind != "allreduce" or bad and by_refuse:
            settle()
            if bad and by_refuse:
                outcome = tried(lambda: comm.refuse(ValueError("on purpose")))
            elif kind == "broadcast":
                outcome = tried(lambda: total(comm.broadcast(given)))
            else:
                outcome = tried(lambda: total(comm.reduce(given)))
            judge(step, kind, bool(refused), outcome, expected)
        elif blocking:
            call = lambda: total(comm.allreduce(given, name=name, nnz=promise))
            judge(step, kind, bool(refused), tried(call), expected)
        else:
            try:
                request = comm.iallreduce(given, name=name, nnz=promise)
            except sw.InputError:
                request = None
                bad or wrong.append((step, "refused at once"))
            flight.append((step, kind, bool(refused), request, expected))
        if rng.random() < 0.3:
            settle()
    settle()
    tried(comm.barrier)
    good = [total(comm.allreduce(np.ones(5), name=name)) for name in ("a", "b", "c")]
    return wrong[:3], good
"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kinds", [["allreduce"], ["allreduce", "allreduce", "broadcast", "reduce"]], ids=len)
def test_valid_calls_between_refused_ones_give_the_right_sum(seed, kinds):
    size = 2 + seed % 3
    outcomes = jobs.run(f"SEED, KINDS = {seed}, {kinds!r}\n{CALLS}", size, 60)
    for outcome in outcomes:
        wrong, good = outcome["result"]
        assert not wrong
        assert good == [5.0 * size] * 3


@pytest.mark.parametrize(
    "call", ["comm.allreduce(x, name='layer')", "comm.iallreduce(x, name='layer').wait(20)"]
)
@pytest.mark.parametrize("refusal", ["comm.refuse(ValueError('no'))", "comm.allreduce('text', name='layer')"])
def test_a_named_call_after_a_refused_one_gives_the_right_sum(call, refusal):
    program = f"""
    def main(rank, size):
        comm = sw.init(timeout=30)
        x = np.ones(1000)
        before = {call}
        refused = tried(lambda: {refusal} if rank == 1 else {call})
        return [refused["error"], float(({call})[0])]
    """
    assert [outcome["result"] for outcome in jobs.run(program, 3)] == [["InputError", 3.0]] * 3


def test_the_memory_of_failed_calls_is_bounded():
    program = """
    from sparsewire.drivers import abandoned
    abandoned.MOST = 8
    def main(rank, size):
        comm = sw.init(timeout=30)
        failed = [tried(lambda: comm.allreduce(Bad() if rank == step % size else np.ones(3)))["error"]
                  for step in range(40)]
        total = comm.allreduce(np.ones(3)).tolist()
        return failed == ["InputError"] * 40, total, len(comm._driver._abandoned)
    """
    outcomes = jobs.run(f"class Bad:\n    pass\n{textwrap.dedent(program)}", 3, 40)
    assert [outcome["result"] for outcome in outcomes] == [[True, [3.0] * 3, 8]] * 3
