"""What happens in the progress thread, between real processes: requests end, whatever goes wrong there."""

import jobs
import pytest


@pytest.mark.parametrize("callback", ["sys.exit(3)", "(_ for _ in ()).throw(KeyboardInterrupt)", "1 / 0"])
def test_what_a_callback_raises_hurts_nobody(callback):
    program = f"""
    def main(rank, size):
        comm = sw.init(timeout=20)
        called = []
        if rank == 1:
            time.sleep(0.5)  # so that rank 0 has callbacks before anything ends
        requests = [comm.iallreduce(np.ones(1000), name="layer") for _ in range(5)]
        for request in requests[rank * 5 :]:
            request.add_done_callback(lambda _: {callback})
            request.add_done_callback(called.append)
        sums = [float(request.wait(20)[0]) for request in requests]
        comm.barrier()
        return [sums, len(called), float(comm.iallreduce(np.ones(3)).wait(20)[0])]
    """
    results = [outcome["result"] for outcome in jobs.run(program, 2, 30)]
    assert results == [[[2.0] * 5, 5, 2.0], [[2.0] * 5, 0, 2.0]]


def test_a_callback_that_exits_after_the_end_of_its_request_hurts_nobody_either():
    """It then runs in the thread that adds it; which of the two it is must make no difference."""
    program = """
    def main(rank, size):
        comm = sw.init(timeout=20)
        request = comm.iallreduce(np.ones(3))
        request.wait(20)
        request.add_done_callback(lambda _: sys.exit(3))
        return float(comm.allreduce(np.ones(3))[0])
    """
    assert [outcome["result"] for outcome in jobs.run(program, 2, 30)] == [2.0] * 2


@pytest.mark.parametrize("error", ["SystemExit(1)", "OSError(24, 'Too many open files')", "MemoryError()"])
def test_an_error_in_the_driver_ends_all_requests_on_every_rank(error):
    program = f"""
    def main(rank, size):
        comm = sw.init(timeout=30)
        comm.iallreduce(np.ones(10)).wait(20)
        if rank == 1:
            time.sleep(0.3)  # until the others have ended that one
            def broken(timeout):
                raise {error}
            comm._driver.transport.poll = broken
        requests = [comm.iallreduce(np.ones(10), name=name) for name in ("a", "a", "b")]
        return [tried(lambda: request.wait(20)) for request in requests] + [tried(comm.barrier)]
    """
    name = error.partition("(")[0]
    for outcome in jobs.run(program, 3, 30):
        for failed in outcome["result"]:
            assert failed["error"] == "TransportError"
            assert f"rank 1 failed with {name}" in failed["message"]


def test_a_blocking_call_raises_an_error_of_ours_for_one_of_the_system():
    program = """
    def main(rank, size):
        comm = sw.init(timeout=30)
        def broken(timeout):
            raise OSError(24, "Too many open files")
        if rank == 1:
            time.sleep(0.3)  # until the others have joined
            comm._driver.transport.poll = broken
        def call():
            for _ in range(3):  # what was sent before may be enough for the others' first call
                comm.allreduce(np.ones(10), algorithm="allgather_sum")
        return tried(call)
    """
    for outcome in jobs.run(program, 3, 30):
        assert outcome["result"]["error"] == "TransportError"
        assert "rank 1 failed with OSError: [Errno 24] Too many open files" in outcome["result"]["message"]


@pytest.mark.parametrize("call", ["comm.allreduce('text')", "comm.iallreduce('text').wait(20)"])
def test_a_rank_without_descriptors_tells_those_that_it_can(call):
    """Ranks are connected when they first need each other, so telling others may take more connections."""
    program = f"""
    import resource
    def main(rank, size):
        comm = sw.init(timeout=20)
        comm.iallreduce(np.ones(1), algorithm="dense_ring").wait(20)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        outcome = tried(lambda: {call} if rank == 1 else comm.iallreduce(np.ones(10)).wait(20))
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        return [outcome, float(comm.iallreduce(np.ones(1), algorithm="dense_ring").wait(20)[0])]
    """
    for outcome in jobs.run(program, 5, 40):
        failed, total = outcome["result"]
        assert failed["error"] == "InputError"
        assert total == 5.0


@pytest.mark.parametrize("then", ["comm.allreduce(np.ones(10))", "comm.close()"])
def test_a_network_that_breaks_between_two_calls_is_told_to_all(then):
    program = f"""
    def main(rank, size):
        comm = sw.init(timeout=60)
        comm.barrier()
        open(in_folder(str(rank)), "w").close()
        if rank == 1:
            for other in (0, 2, 3):
                wait_for(str(other))
            comm._driver.transport._on_error(sw.WireError("rank 2 sent nonsense"))
            outcome = tried(lambda: {then})
            wait_for("told")  # a rank that ends would be noticed
            return outcome
        outcome = tried(lambda: comm.allreduce(np.ones(10)))
        open(in_folder("told"), "w").close()
        return outcome
    """
    outcomes = [outcome["result"] for outcome in jobs.run(program, 4, 30)]
    for rank, outcome in enumerate(outcomes):
        if rank == 1 and "close" in then:
            assert "result" in outcome
        else:
            assert (outcome["error"], outcome["message"]) == ("WireError", "rank 2 sent nonsense")
