"""Collectives in flight, between real processes over TCP."""

import jobs
import pytest


def results(program, size, **options):
    outcomes = jobs.run(program, size, **options)
    assert all("result" in outcome for outcome in outcomes), outcomes
    return [outcome["result"] for outcome in outcomes]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_many_in_flight_are_waited_for_in_any_order(size):
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            right = []
            for order in (list(range(20)), list(range(20))[::-1], [7 * i % 20 for i in range(20)]):
                mine = [np.full(100, (i + 1) * 2.0**rank) for i in range(20)]
                requests = [comm.iallreduce(x) for x in mine]
                right += [bool((requests[i].wait(20) == (i + 1) * (2.0**size - 1)).all()) for i in order]
            return all(right)
    """
    assert results(program, size) == [True] * size


def test_every_non_blocking_call_gives_what_the_blocking_one_gives():
    program = """
    def main(rank, size):
        x = np.zeros(50)
        x[rank::3] = rank + 1.0
        with sw.init(timeout=30) as comm:
            requests = [
                comm.iallreduce(x, op="max"),
                comm.iallgather(x),
                comm.ireduce_scatter(x, op="avg"),
                comm.ibroadcast(x, root=1),
                comm.iallreduce(x, algorithm="dense_ring"),
            ]
            blocking = [
                comm.allreduce(x, op="max"),
                comm.allgather(x),
                comm.reduce_scatter(x, op="avg"),
                comm.broadcast(x, root=1),
                comm.allreduce(x, algorithm="dense_ring"),
            ]
            return [np.array_equal(request.wait(20), y) for request, y in zip(requests, blocking)]
    """
    assert results(program, 3) == [[True] * 5] * 3


def test_calls_of_one_name_in_flight_follow_one_another_and_choose_alike():
    """What is seen in a sum decides about the next one, on ranks that are not equally fast."""
    program = """
    from sparsewire.cost import CostFigures

    def main(rank, size):
        chance = np.random.default_rng(0)
        nnz = [int(n) for n in 10 ** chance.uniform(0, 3.6, 40)]
        with sw.init(timeout=30) as comm:
            comm.network = CostFigures(latency=1e-4, bandwidth=1e6)
            requests = []
            for i, n in enumerate(nnz):
                x = sw.SparseVector(5_000, np.arange(n), np.ones(n))
                requests.append(comm.iallreduce(x, name="layer"))
                if i % (rank + 2) == 0:
                    requests[-1].wait(20)
                if i % 10 == 3:
                    comm.allreduce(x, name="layer")
            ends = [(request.wait(20).nnz, request.last.algorithm) for request in requests]
            return ends
    """
    first, *others = results(program, 3)
    assert all(other == first for other in others)
    assert len({algorithm for _, algorithm in first}) > 1


def test_a_result_that_nobody_keeps_is_not_kept():
    program = """
    def main(rank, size):
        import gc
        import weakref
        with sw.init(timeout=30) as comm:
            gone = []
            for layer in range(3):
                request = comm.iallreduce(np.ones(1000), name=f"layer {layer}")
                gone.append(weakref.ref(request.wait(20)))
                del request
            comm.barrier()  # the thread is through with all of them
            gc.collect()
            return [ref() is None for ref in gone]
    """
    assert results(program, 2) == [[True] * 3] * 2


def test_a_request_is_a_future_of_concurrent_futures_and_asyncio():
    program = """
    def main(rank, size):
        import asyncio
        import concurrent.futures as cf
        with sw.init(timeout=30) as comm:
            x = np.array([1.0])
            called = []
            request = comm.iallreduce(x)
            request.add_done_callback(lambda done: called.append(float(done.result()[0])))
            first = float(cf.wait([request], 20).done.pop().result()[0])
            requests = [comm.iallreduce(x) for _ in range(5)]
            several = [float(r.result()[0]) for r in cf.as_completed(requests, 20)]

            async def both():
                a, b = comm.iallreduce(2 * x), comm.iallreduce(3 * x)
                return [float((await a)[0]), float((await asyncio.wrap_future(b))[0])]

            awaited = asyncio.run(asyncio.wait_for(both(), 20))
            cancelled = request.cancel() or comm.iallreduce(x).cancel()
            tested = comm.iallreduce(x)
            while not tested.test():
                time.sleep(0.001)
            return [called, first, several, awaited, cancelled]
    """
    assert results(program, 2) == [[[2.0], 2.0, [2.0] * 5, [4.0, 6.0], False]] * 2


def test_wait_that_times_out_leaves_the_collective_in_flight():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            if rank == 0:
                request = comm.iallreduce(np.ones(3))
                waited = tried(lambda: request.wait(0.05))
                comm_two = waited["kinds"], waited["message"]
            else:
                time.sleep(0.5)
                request = comm.iallreduce(np.ones(3))
                comm_two = None
            return [comm_two, float(request.wait(20)[0])]
    """
    (message, total), (_, other) = results(program, 2)
    assert "TimeoutError" in message[0]
    assert "SparsewireError" not in message[0]
    assert "it goes on" in message[1]
    assert total == other == 2.0


def test_a_failed_one_fails_alone():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            before = [comm.iallreduce(np.full(1000, 2.0**rank)) for _ in range(3)]
            bad = tried(lambda: comm.iallreduce("text" if rank == 1 else np.ones(3)).wait(20))
            after = [comm.iallreduce(np.full(1000, 2.0**rank)) for _ in range(3)]
            return [bad["error"], bad["message"], [float(r.wait(20)[0]) for r in before + after]]
    """
    outcomes = results(program, 3)
    assert all(outcome[0] == "InputError" for outcome in outcomes)
    assert all("rank 1: str cannot be summed" in outcome[1] for outcome in outcomes)
    assert all(outcome[2] == [7.0] * 6 for outcome in outcomes)


def test_calls_that_differ_fail_alone_on_every_rank():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            x = np.ones(8)
            requests = [comm.iallreduce(x), comm.iallreduce(np.ones(8 + (rank == 2))), comm.iallreduce(x)]
            return [tried(lambda: float(request.wait(20)[0])) for request in requests]
    """
    for good, bad, good_too in results(program, 3):
        assert (good, good_too) == ({"result": 3.0}, {"result": 3.0})
        assert bad["error"] == "CallMismatchError"


def test_calls_in_another_order_are_named_on_every_rank_and_the_next_one_works():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            calls = [lambda: comm.allreduce(np.ones(4)), comm.barrier]
            outcomes = [tried(call)["error"] for call in (calls if rank else calls[::-1])]
            return [outcomes, float(comm.allreduce(np.ones(4))[0])]
    """
    assert results(program, 3) == [[["CallMismatchError"] * 2, 3.0]] * 3


def test_a_lost_rank_ends_all_that_is_in_flight():
    program = """
    def main(rank, size):
        comm = sw.init(timeout=30)
        comm.barrier()
        if rank == 2:
            die()
        requests = [comm.iallreduce(np.ones(10)) for _ in range(4)]
        return [tried(lambda: request.wait(20)) for request in requests] + [tried(comm.barrier)]
    """
    first, second, third = jobs.run(program, 3)
    assert third["error"] == jobs.DIED
    for outcome in (first, second):
        *in_flight, later = outcome["result"]
        assert all("TransportError" in failed["kinds"] for failed in in_flight)
        assert "rank 2 is gone" in in_flight[0]["message"]
        assert "broken" in later["message"]


@pytest.mark.parametrize("closed", [True, False])
def test_a_program_that_ends_with_requests_in_flight_ends(closed):
    program = f"""
    def main(rank, size):
        comm = sw.init(timeout=30)
        if rank == 0:
            requests = [comm.iallreduce(np.ones(1000)) for _ in range(3)]
            if {closed}:
                comm.close()
                open(in_folder("closed"), "w").close()
                return [tried(lambda: request.wait(5))["error"] for request in requests]
        elif {closed}:
            wait_for("closed")  # or its own end would be what rank 0 notices first
        return None
    """
    outcomes = results(program, 2, seconds=30)
    assert outcomes == [["TransportError"] * 3 if closed else None, None]


def test_all_ranks_forget_to_wait_and_the_sums_are_still_made():
    program = """
    def main(rank, size):
        global requests
        comm = sw.init(timeout=30)
        requests = [comm.iallreduce(np.full(10, 2.0**rank)) for _ in range(50)]
        import atexit
        atexit.register(lambda: print(*{float(r.result()[0]) for r in requests}))
        return None
    """
    assert results(program, 3, seconds=30) == [None] * 3


def test_two_threads_at_once_are_refused_on_every_rank_and_the_communicator_stays_usable():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            if rank == 0:
                inside = threading.Event()
                outcome = []

                def second():
                    inside.wait()
                    while not comm._lane._calling.locked():
                        time.sleep(0.001)
                    outcome.append(tried(lambda: comm.allreduce(np.ones(2))))

                thread = threading.Thread(target=second)
                thread.start()
                inside.set()
                first = comm.allreduce(np.ones(2)).tolist()  # rank 1 comes late
                thread.join()
            else:
                time.sleep(0.5)
                first = comm.allreduce(np.ones(2)).tolist()
                outcome = [tried(lambda: comm.allreduce(np.ones(2)))]
            return [first, outcome[0]["error"], outcome[0]["message"], comm.allreduce(np.ones(2)).tolist()]
    """
    for first, error, message, last in results(program, 2):
        assert first == last == [2.0, 2.0]
        assert error == "InputError"
        assert message.startswith("rank 0: two threads called this communicator at once")


def test_a_blocking_call_in_a_callback_is_refused():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            outcome = []
            request = comm.iallreduce(np.ones(2))
            request.add_done_callback(lambda _: outcome.append(tried(comm.barrier)["message"]))
            request.wait(20)
            while not outcome:
                time.sleep(0.001)
            return outcome[0]
    """
    assert all("a blocking call in a done-callback" in message for message in results(program, 2))


def test_a_blocking_call_in_a_callback_is_refused_also_when_the_request_had_ended():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            outcome = []
            request = comm.iallreduce(np.ones(2))
            request.wait(20)
            request.add_done_callback(lambda _: outcome.append(tried(comm.barrier)["message"]))
            comm.barrier()
            return outcome[0]
    """
    assert all("a blocking call in a done-callback" in message for message in results(program, 2))


def test_a_callback_may_make_a_blocking_call_of_another_communicator():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as comm:
            other = comm.split(0)
            outcome = []
            request = comm.iallreduce(np.ones(2))
            request.wait(20)
            request.add_done_callback(lambda _: outcome.append(float(other.allreduce(np.ones(1))[0])))
            return outcome[0]
    """
    assert results(program, 2) == [2.0, 2.0]


def test_several_communicators_work_side_by_side():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as world:
            row, column = world.split(rank // 2), world.split(rank % 2, key=-rank)
            mine = np.array([2.0**rank])
            requests = [c.iallreduce(mine) for c in (world, row, column) for _ in range(5)]
            column.barrier()
            sums = [float(request.wait(20)[0]) for request in requests]
            return [sums[0], sums[5], sums[10], len(set(sums)), column.rank, world.split(None) is None]
    """
    assert results(program, 4) == [
        [15.0, 3.0, 5.0, 3, 1, True],
        [15.0, 3.0, 10.0, 3, 1, True],
        [15.0, 12.0, 5.0, 3, 0, True],
        [15.0, 12.0, 10.0, 3, 0, True],
    ]


def test_a_failure_in_one_group_does_not_concern_another():
    program = """
    def main(rank, size):
        with sw.init(timeout=30) as world:
            group = world.split(rank % 2)
            if rank == 3:
                group.close()
            outcome = tried(lambda: group.allreduce(np.ones(2)).tolist())
            return [outcome, world.allreduce(np.ones(2)).tolist()]
    """
    even, odd, even_too, closed = results(program, 4)
    assert even == even_too == [{"result": [2.0, 2.0]}, [4.0, 4.0]]
    assert odd[0]["error"] == "PeerLostError"
    assert "closed" in closed[0]["message"]
    assert odd[1] == closed[1] == [4.0, 4.0]
