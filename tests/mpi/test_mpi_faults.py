"""Mistakes and faults under MPI: a named error on every rank, and never a hang."""

import subprocess
import sys

import jobs
import pytest
from mpiexec import MPICH, OPEN_MPI

# what the last rank calls, what the others call; what the message has to name
MISMATCHES = {
    "length": ("comm.allreduce(ones(9))", "comm.allreduce(ones(10))", ["length=9", "length=10"]),
    "dtype": ("comm.allreduce(ones(9))", "comm.allreduce(ones(9, 'f4'))", ["float64", "float32"]),
    "op": ("comm.allreduce(ones(9), op='max')", "comm.allreduce(ones(9), op='min')", ["op=max", "op=min"]),
    "algorithm": (
        "comm.allreduce(ones(9), algorithm='dense_ring')",
        "comm.allreduce(ones(9), algorithm='split_allgather')",
        ["algorithm=dense_ring", "algorithm=split_allgather"],
    ),
    "order, first call": ("comm.barrier()", "comm.allreduce(ones(9))", ["barrier()", "allreduce("]),
    "order, second call": ("comm.allreduce(ones(9))", "comm.barrier()", ["allreduce(", "barrier()"]),
}


def assert_all(outcomes, error, *texts):
    for rank, outcome in enumerate(outcomes):
        assert outcome.get("error") == error, (rank, outcomes)
        for text in texts:
            assert text in outcome["message"], (rank, outcome)


@pytest.mark.parametrize("size", [2, 3])
def test_calls_that_differ_are_raised_by_every_rank_and_the_next_call_works(mpi, size):
    cases = [(one, other) for one, other, _ in MISMATCHES.values()]
    outcomes = mpi.run(
        f"""
        from numpy import ones
        def main(rank, size):
            comm = sw.init(timeout=30)
            seen = []
            for one, other in {cases!r}:
                call = one if rank == size - 1 else other
                seen.append(tried(lambda: str(eval(call, {{"comm": comm, "ones": ones}}))))
                seen.append(tried(lambda: comm.allreduce(np.array([2**rank])).tolist()))
            return seen
        """,
        size,
    )
    by_rank = [outcome["result"] for outcome in outcomes]
    for i, (_, _, named) in enumerate(MISMATCHES.values()):
        assert_all([seen[2 * i] for seen in by_rank], "CallMismatchError", *named, f"rank {size - 1} called")
        assert [seen[2 * i + 1] for seen in by_rank] == [{"result": [2**size - 1]}] * size


def test_two_calls_in_opposite_order_are_raised_by_both_ranks_and_the_next_call_works(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=30)
            def add():
                return comm.allreduce(np.array([2**rank])).tolist()
            calls = [add, comm.barrier] if rank == 0 else [comm.barrier, add]
            return [tried(call) for call in [*calls, add]]
        """,
        2,
    )
    first, second, third = zip(*(outcome["result"] for outcome in outcomes), strict=True)
    assert_all(first, "CallMismatchError", "rank 0 called allreduce(", "rank 1 called barrier()")
    assert_all(second, "CallMismatchError", "rank 0 called barrier()", "rank 1 called allreduce(")
    assert third == ({"result": [3]},) * 2


def test_bad_input_on_one_rank_is_raised_by_every_rank_and_the_next_call_works(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=30)
            bad = tried(lambda: str(comm.allreduce((9, [5, 4], np.ones(2)) if rank == 1 else np.ones(9))))
            return [bad, comm.allreduce(np.array([2**rank])).tolist()]
        """,
        3,
    )
    assert_all([outcome["result"][0] for outcome in outcomes], "InputError", "rank 1: indices[1] is 4")
    assert [outcome["result"][1] for outcome in outcomes] == [[7]] * 3


def test_communicators_that_cannot_be_used_are_refused(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            from mpi4py import MPI
            freed = MPI.COMM_WORLD.Dup()
            freed.Free()
            comm = sw.init(timeout=30)
            comm.close()
            return [
                tried(lambda: sw.init(comm=freed)),
                tried(lambda: sw.init(comm=MPI.COMM_NULL)),
                tried(lambda: sw.init(comm="world")),
                tried(lambda: comm.barrier()),
            ]
        """,
        2,
    )
    for outcome in outcomes:
        freed, null, text, closed = outcome["result"]
        assert_all([freed, null], "InputError")
        assert "freed" in freed["message"]
        assert_all([text], "InputError", "str", "mpi4py communicator")
        assert_all([closed], "TransportError", "closed")


@pytest.mark.parametrize("nbytes", [13, 100_001], ids=["short", "long"])
def test_message_that_is_no_whole_number_of_words_is_an_error_on_every_rank(mpi, nbytes):
    outcomes = mpi.run(
        f"""
        def main(rank, size):
            from mpi4py import MPI
            from sparsewire.communicator import Communicator
            from sparsewire.drivers import mpi
            engine = mpi.connect()
            comm = Communicator.of(engine, 30)
            comm.barrier()
            open(in_folder(f"ready-{{rank}}"), "w").close()
            if rank == 0:
                wait_for("ready-1", "ready-2")
                transport = engine.transport
                stray = [bytes({nbytes}), {nbytes}, MPI.BYTE]
                stray = transport._comm.Isend(stray, 1, transport._tag)
            return [tried(lambda: comm.iallreduce(np.ones(9)).wait(30)), tried(comm.barrier)]
        """,
        3,
    )
    failed, broken = zip(*(outcome["result"] for outcome in outcomes), strict=True)
    assert_all(failed, "WireError", "from rank 0: ")
    assert_all(broken, "TransportError", "this communicator is broken", "from rank 0: ")


def test_rank_that_does_not_come_is_named(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            first, second = sw.init(timeout=60), sw.init(timeout=60)
            second.barrier()
            if rank == 2:
                wait_for("outcome-0.json", "outcome-1.json")
                return "slept"
            x = np.ones(1000)
            return [
                tried(lambda: first.allreduce(x, algorithm="split_allgather", timeout=1)),
                tried(lambda: second.iallreduce(x, algorithm="split_allgather", timeout=1).wait()),
            ]
        """,
        3,
    )
    assert outcomes.pop() == {"result": "slept"}
    for outcome in outcomes:
        assert_all(outcome["result"], "CollectiveTimeout", "rank 2 did not arrive within 1 s")


def test_rank_that_dies_takes_the_job_with_it(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=300)
            comm.barrier()
            request = comm.iallreduce(np.ones(1000))
            if rank == 1:
                os._exit(3)
            request.wait()
            comm.barrier()
        """,
        3,
        seconds=30,
    )
    assert outcomes[1]["error"] == jobs.DIED
    assert jobs.HUNG not in [outcome["error"] for outcome in outcomes]


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_without_mpi4py_the_error_says_what_to_install(variable):
    program = "import sys; sys.modules['mpi4py'] = None; import sparsewire; sparsewire.init()"
    done = subprocess.run(
        [sys.executable, "-c", program], env={variable: "2"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "MissingExtraError: mpi4py is not installed: pip install 'sparsewire[mpi]'" in done.stderr


@pytest.mark.skipif(not OPEN_MPI.python.exists(), reason="needs both MPIs; `make test` installs them")
def test_mpiexec_of_another_mpi_is_noticed():
    """Then every process believes that it is alone.  (The other way round, MPICH itself ends the job.)"""
    outcomes = MPICH.run("def main(rank, size):\n    sw.init(timeout=30)\n", 2, python=OPEN_MPI.python)
    assert_all(outcomes, "InputError", "PMI_SIZE=2", "MPI has 1 rank")
