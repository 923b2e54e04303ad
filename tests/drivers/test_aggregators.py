"""Ranks that only aggregate: how they serve, with a toy script; then sums of real processes."""

import contextlib
import socket
import threading
import time

import jobs
import numpy as np
import pytest

import sparsewire as sw
from sparsewire.coding.call import Call
from sparsewire.drivers import tcp
from sparsewire.errors import (
    CallMismatchError,
    CollectiveTimeout,
    InputError,
    PeerLostError,
    SparsewireError,
    TransportError,
)
from sparsewire.steps import Recv, Send
from sparsewire.vector import SparseVector

# -- serving -------------------------------------------------------------------------------------

WORKERS, AGGREGATORS = 2, 2
SERVERS = range(WORKERS, WORKERS + AGGREGATORS)
ADD = Call("allreduce", "toy", "sum", "int64", 1)


def number(value):
    return SparseVector.from_dense(np.array([value], np.int64))


def ask(value):
    """A worker's script: every aggregator gets the value, and returns the sum."""
    totals = yield [Send(server, number(value)) for server in SERVERS] + [Recv(server) for server in SERVERS]
    return [int(total.values[0]) for total in totals]


def answer(call):
    values = yield [Recv(worker) for worker in range(WORKERS)]
    total = number(sum(int(value.values[0]) for value in values))
    yield [Send(worker, total) for worker in range(WORKERS)]


def threads(
    work,
    script_of=answer,
    aggregators=lambda rank: AGGREGATORS,
    before_serving=lambda: None,
    outcomes=None,
):
    """What ``work`` returns or raises at each worker, and ``serve`` at each aggregator."""
    outcomes = {} if outcomes is None else outcomes

    def take_part(rank, port):
        driver = None
        try:
            master = ("127.0.0.1", port)
            driver = tcp.connect(
                rank, WORKERS + AGGREGATORS, master, "a secret for tests", 20, aggregators(rank)
            )
            if rank in SERVERS:
                before_serving()
                outcomes[rank] = driver.serve(script_of)
            else:
                outcomes[rank] = work(driver)
        except Exception as error:
            outcomes[rank] = error
        finally:
            with contextlib.suppress(AttributeError):  # it never came to have one
                driver.close()

    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        port = keeper.getsockname()[1]
        ranks = [threading.Thread(target=take_part, args=(r, port)) for r in range(WORKERS + AGGREGATORS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    return [outcomes[rank] for rank in range(WORKERS + AGGREGATORS)]


def run(driver, value, call=ADD, timeout=20):
    return driver.run(ask(value), call, timeout)[0]


def error_of(driver, value, **options):
    with pytest.raises(SparsewireError) as caught:
        run(driver, value, **options)
    return caught.value


def assert_all(outcomes, kind, *texts):
    for rank, outcome in enumerate(outcomes):
        assert type(outcome) is kind, (rank, outcomes)
        for text in texts:
            assert text in str(outcome), (rank, outcomes)


def test_every_call_is_answered_and_serving_ends_when_the_workers_have_left():
    outcomes = threads(lambda driver: [run(driver, 10**driver.rank * i) for i in range(5)])
    assert outcomes == [[[11 * i, 11 * i] for i in range(5)]] * WORKERS + [None] * AGGREGATORS


def test_calls_may_come_in_any_order_and_some_not_at_all():
    def work(driver):
        numbers = [driver.reserve() for _ in range(6)]
        order = [3, 0, 5, 1] if driver.rank else [1, 5, 0, 3]
        started = {i: driver.start(ask(i + driver.rank), ADD, 20, number=numbers[i]) for i in order}
        while not driver.idle:
            driver.progress(20)
        return {i: started[i].outcome()[0] for i in sorted(order)}

    expected = {i: [2 * i + 1] * AGGREGATORS for i in (0, 1, 3, 5)}
    assert threads(work) == [expected] * WORKERS + [None] * AGGREGATORS


def test_calls_that_come_before_serving_wait_for_it():
    is_asked = threading.Event()

    def work(driver):
        asked = driver.start(ask(1), ADD, 20)
        is_asked.set()
        while not asked.ended:
            driver.progress(20)
        return asked.outcome()[0]

    assert threads(work, before_serving=is_asked.wait) == [[2, 2]] * WORKERS + [None] * AGGREGATORS


def test_a_call_that_one_worker_refuses_starts_nothing_and_the_next_is_answered():
    is_refused = threading.Event()

    def work(driver):
        if driver.rank == 1:
            driver.refuse(InputError("not with me"))
            is_refused.set()
            return [None, run(driver, 1)]
        is_refused.wait()  # what this worker sends now comes late
        return [str(error_of(driver, 5)), run(driver, 1)]

    assert threads(work) == [["not with me", [2, 2]], [None, [2, 2]], None, None]


def test_a_call_that_the_aggregators_refuse_is_raised_by_every_worker_and_the_next_is_answered():
    def script_of(call):
        if call.length == 3:
            raise InputError(f"cannot take part in {call}")
        yield from answer(call)

    def work(driver):
        refused = error_of(driver, 5, call=Call("allreduce", "toy", "sum", "int64", 3))
        assert type(refused) is InputError
        return [str(refused), run(driver, 1)]

    text = "cannot take part in allreduce(length=3, dtype=int64, algorithm=toy, op=sum)"
    assert threads(work, script_of) == [[text, [2, 2]]] * WORKERS + [None] * AGGREGATORS


def test_calls_that_differ_name_the_workers_and_the_next_is_answered():
    def work(driver):
        differs = error_of(driver, 5, call=Call("allreduce", "toy", "sum", "int64", 3 + driver.rank))
        assert type(differs) is CallMismatchError
        return [str(differs), run(driver, 1)]

    calls = [
        f"rank {rank} called allreduce(length={3 + rank}, dtype=int64, algorithm=toy, op=sum)"
        for rank in (0, 1)
    ]
    assert threads(work) == [[", but ".join(calls), [2, 2]]] * WORKERS + [None] * AGGREGATORS


def test_an_aggregator_that_fails_says_why_to_all():
    def script_of(call):
        yield [Recv(0)]
        raise ZeroDivisionError("on purpose")

    *workers, third, fourth = threads(lambda driver: run(driver, 1), script_of)
    assert_all(workers, TransportError, "failed with ZeroDivisionError: on purpose")
    assert ZeroDivisionError in {type(third), type(fourth)}  # the other one may have been told first


def test_a_worker_that_leaves_during_a_call_is_named_by_all():
    def work(driver):
        return run(driver, 1) if driver.rank == 0 else "left"

    worker, left, *aggregators = threads(work)
    assert left == "left"
    assert_all([worker, *aggregators], PeerLostError, "rank 1 is gone")


def test_a_worker_that_does_not_come_is_named_by_all():
    outcomes = {}

    def work(driver):
        if driver.rank == 0:
            return run(driver, 1, timeout=0.2)
        while len(outcomes) < 3:
            time.sleep(0.01)
        return "slept"

    worker, slept, *aggregators = threads(work, outcomes=outcomes)
    assert slept == "slept"
    late = "rank 1 did not arrive within 0.2 s in allreduce("
    assert_all([worker, *aggregators], CollectiveTimeout, late)


def test_an_aggregator_that_does_not_answer_is_named_as_one():
    is_over = threading.Barrier(WORKERS + AGGREGATORS)

    def work(driver):
        try:
            return run(driver, 1, timeout=0.2)
        finally:
            is_over.wait()

    def come_too_late():
        is_over.wait()
        raise TimeoutError

    workers = threads(work, before_serving=come_too_late)[:WORKERS]
    named = "rank 2, 3 did not arrive within 0.2 s", "; rank 2 is an aggregator; rank 3 is an aggregator"
    assert_all(workers, CollectiveTimeout, *named)


def test_ranks_that_differ_about_the_number_of_aggregators_all_say_so():
    outcomes = threads(lambda driver: None, aggregators=lambda rank: 1 if rank == 3 else 2)
    both = "rank 0 called init(aggregators=2), but rank 3 called init(aggregators=1)"
    assert_all(outcomes, CallMismatchError, both)


# -- what the job says of them --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beyond", "aggregators", "message"),
    [
        ("2", 1, "the launcher has started 2 aggregators"),
        ("two", 0, "SPARSEWIRE_AGGREGATORS='two' is not an integer"),
        ("-1", 0, "aggregators is -1 in a job of 2 ranks"),
        ("0", 3, "aggregators is 3 in a job of 3 ranks"),
        ("0", -1, "aggregators is -1 in a job of 3 ranks"),
        ("0", "1", "aggregators is '1' in a job of 3 ranks"),
    ],
)
def test_numbers_of_aggregators_that_make_no_sense_are_refused(monkeypatch, beyond, aggregators, message):
    job = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in {
        **job,
        "SPARSEWIRE_SECRET": "a secret for tests",
        "SPARSEWIRE_AGGREGATORS": beyond,
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        sw.init(aggregators=aggregators)


def test_a_rank_that_is_alone_cannot_aggregate(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="aggregators is 1 in a job of 1 ranks"):
        sw.init(aggregators=1)
    with sw.init() as comm, pytest.raises(InputError, match=r"rank 0 is a worker; ranks .*: none"):
        comm.serve()


# -- sums of real processes ----------------------------------------------------------------------

SUMS = """
from sparsewire.steps import Recv, Send
from sparsewire.coding.call import Call

OPS = {"sum": lambda rows: rows.sum(axis=0), "avg": lambda rows: rows.sum(axis=0) / len(rows),
       "max": lambda rows: rows.max(axis=0), "min": lambda rows: rows.min(axis=0)}

def row(rank, turn, length):
    'Rank r has 2**r, with changing signs, in places that differ from turn to turn.'
    array = np.zeros(length)
    where = np.arange(rank, length, 1 + (rank + turn) % 5)
    array[where] = 2.0**rank * (-1.0) ** (where + turn)
    return array

def is_right(total, comm, turn, op="sum"):
    rows = np.array([row(rank, turn, len(total)) for rank in range(comm.size)])
    return np.array_equal(total, OPS[op](rows))

def one_after_another(comm):
    for turn in range(200):
        op, length = [*OPS][turn % 4], [0, 1, 7, 1000][turn % 3]
        total = comm.allreduce(row(comm.rank, turn, length), algorithm="omnireduce", op=op)
        yield is_right(total, comm, turn, op)

def in_flight(comm):
    'Named and unnamed, among other collectives, waited for in another order.'
    requests = []
    for turn in range(20):
        mine = row(comm.rank, turn, 500)
        name = f"layer {turn % 3}" if turn % 2 else None
        algorithm = ["omnireduce", "omnireduce", "auto", "split_allgather"][turn % 4]
        requests.append(comm.iallreduce(mine, algorithm=algorithm, name=name))
        if turn % 5 == 0:
            comm.barrier()
    for turn in np.random.default_rng(0).permutation(20):
        yield is_right(requests[turn].wait(20), comm, turn)

def among_others(comm):
    everybody = comm.allgather(np.array([comm.rank]))
    yield [int(rank[0]) for rank in everybody] == list(range(comm.size))
    group = comm.split(comm.rank % 2)
    yield (group.aggregators, group.size) == (0, len(range(comm.rank % 2, comm.size, 2)))
    yield is_right(group.allreduce(row(group.rank, 0, 50), algorithm="omnireduce"), group, 0)
    yield is_right(comm.allreduce(row(comm.rank, 3, 50), algorithm="omnireduce"), comm, 3)

def one_round(steps):
    yield steps

def refused(comm):
    bad = tried(lambda: comm.allreduce("text" if comm.rank == 0 else np.ones(9), algorithm="omnireduce"))
    yield bad["error"] == "InputError" and "str cannot be summed" in bad["message"]
    servers = range(comm.size, comm.size + AGGREGATORS)
    to_all = [Send(server, sw.SparseVector.empty(1)) for server in servers]
    odd = tried(lambda: comm._driver.run(one_round([*to_all, *map(Recv, servers)]), Call("barrier"), 20))
    yield odd["error"] == "InputError" and "cannot take part in barrier()" in odd["message"]
    yield is_right(comm.allreduce(row(comm.rank, 5, 50), algorithm="omnireduce"), comm, 5)

def main(rank, size):
    comm = sw.init(aggregators=AGGREGATORS, timeout=30)
    facts = [comm.rank, comm.size, comm.aggregators, comm.is_aggregator]
    if comm.is_aggregator:
        return [*facts, comm.serve(), tried(comm.barrier)["message"], tried(lambda: comm.split(0))["error"]]
    parts = [one_after_another, in_flight, among_others, refused]
    facts += [{part.__name__: all(part(comm)) for part in parts}, tried(comm.serve)["message"]]
    if rank:
        wait_for("outcome-0.json")  # which leaves early, and without a word
    comm.close()
    return facts
"""


@pytest.mark.parametrize(("workers", "aggregators"), [(1, 4), (2, 3), (3, 2), (4, 1)])
def test_sums_over_aggregators_are_those_of_the_workers(workers, aggregators):
    outcomes = jobs.run(f"AGGREGATORS = {aggregators}\n{SUMS}", workers + aggregators)
    assert all("result" in outcome for outcome in outcomes), outcomes
    right = dict.fromkeys(["one_after_another", "in_flight", "among_others", "refused"], True)
    servers = ", ".join(str(rank) for rank in range(workers, workers + aggregators))
    for rank, outcome in enumerate(outcomes):
        facts, said = outcome["result"][:4], outcome["result"][4:]
        assert facts == [rank, workers, aggregators, rank >= workers]
        if rank < workers:
            assert said == [
                right,
                f"rank {rank} is a worker; ranks that aggregate and call serve(): {servers}",
            ]
        else:
            only = f"rank {rank} only aggregates: it calls serve(), and no collectives"
            assert said == [None, only, "InputError"]


SLOW_THEN_DEAD = """
def main(rank, size):
    comm = sw.init(aggregators=2, timeout=60)
    if comm.is_aggregator:
        return comm.serve()
    x = np.full(300_000, 2.0**rank, "float32")
    slow = int(open(in_folder("outcome-4.json.pid")).read())
    comm.barrier()
    if rank == 0:
        os.kill(slow, signal.SIGSTOP)
        after(1.0, lambda: os.kill(slow, signal.SIGCONT))
    late = comm.allreduce(x, algorithm="omnireduce")
    def kill():
        open(in_folder("death"), "w").write(str(time.time()))
        os.kill(slow, signal.SIGKILL)
    if rank == 0:
        after(0.3, kill)
    def until_it_breaks():
        while True:
            comm.allreduce(x, algorithm="omnireduce")
    return [bool((late == 7).all()), tried(until_it_breaks)]
"""


def test_an_aggregator_that_is_slow_is_waited_for_and_one_that_dies_is_named_within_ten_seconds():
    with jobs.job(5) as job:
        for rank in range(5):
            job.start(rank, SLOW_THEN_DEAD)
        *workers, fourth, fifth = job.wait()
        died_at = float((job.folder / "death").read_text())
    assert fifth["error"] == jobs.DIED
    assert fourth["error"] == "PeerLostError"
    for worker in workers:
        is_right, broken = worker["result"]
        assert is_right
        assert broken["error"] == "PeerLostError"
        assert "rank 4 is gone" in broken["message"]
        assert "rank 4 is an aggregator" in broken["message"]
        assert broken["at"] - died_at < 10


def test_an_aggregator_that_dies_between_calls_is_named_in_the_next_that_needs_it():
    outcomes = jobs.run(
        """
        def main(rank, size):
            comm = sw.init(aggregators=1, timeout=60)
            if comm.is_aggregator:
                after(0.3, lambda: (open(in_folder("death"), "w").close(), die()))
                return comm.serve()
            x = np.ones(1000)
            first = comm.allreduce(x, algorithm="omnireduce").tolist() == [2.0] * 1000
            wait_for("death")
            others = comm.allreduce(x, algorithm="dense_ring").tolist() == [2.0] * 1000
            return [first, others, tried(lambda: comm.allreduce(x, algorithm="omnireduce"))]
        """,
        3,
    )
    assert outcomes.pop()["error"] == jobs.DIED
    for outcome in outcomes:
        first, others, last = outcome["result"]
        assert first
        assert others
        assert last["error"] == "PeerLostError"
        assert "rank 2 is gone" in last["message"]
        assert "rank 2 is an aggregator" in last["message"]


def test_a_worker_that_dies_is_named_by_workers_and_aggregators():
    outcomes = jobs.run(
        """
        def main(rank, size):
            comm = sw.init(aggregators=2, timeout=60)
            if comm.is_aggregator:
                return comm.serve()
            if rank == 1:
                after(0.3, die)
            while True:
                comm.allreduce(np.ones(100_000), algorithm="omnireduce")
        """,
        5,
    )
    assert outcomes.pop(1)["error"] == jobs.DIED
    for outcome in outcomes:
        assert outcome["error"] == "PeerLostError"
        assert "rank 1 is gone" in outcome["message"]
