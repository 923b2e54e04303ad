"""Faults between real processes: each ends in a named error on every rank, and never in a hang."""

import contextlib
import functools
import json
import socket
import threading
import time

import jobs
import pytest

from sparsewire.algorithms import ALGORITHMS
from sparsewire.drivers.tcp.handshake import HELLO_BYTES, REFUSED, Hello

BIG = 2_000_000  # float32 values: 8 MB, more than any socket buffer holds


def assert_all(outcomes, error, *texts):
    for rank, outcome in enumerate(outcomes):
        assert outcome.get("error") == error, (rank, outcomes)
        for text in texts:
            assert text in outcome["message"], (rank, outcome)


# -- a rank that dies, leaves, or does not come --------------------------------------------------

SUM_UNTIL_IT_BREAKS = f"""
def main(rank, size):
    comm = sw.init(timeout=60)
    x = np.random.default_rng(rank).normal(size={BIG}).astype("float32")
    comm.barrier()
    if rank == VICTIM:
        after(0.5, lambda: (open(in_folder("death"), "w").write(str(time.time())), die()))
    while True:
        comm.allreduce(x, algorithm=ALGORITHM)
"""


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "auto"])
def test_killed_rank_is_named_by_all_others_within_ten_seconds(algorithm):
    assert_kill_is_noticed(algorithm, size=3, victim=1)


@pytest.mark.parametrize("victim", [0, 1, 4])
def test_killed_rank_is_named_by_all_of_four_others(victim):
    assert_kill_is_noticed("recursive_doubling", size=5, victim=victim)


def test_killed_rank_is_named_by_its_only_peer():
    assert_kill_is_noticed("split_allgather", size=2, victim=0)


def assert_kill_is_noticed(algorithm, size, victim):
    program = f"VICTIM, ALGORITHM = {victim}, {algorithm!r}\n{SUM_UNTIL_IT_BREAKS}"
    with jobs.job(size) as job:
        for rank in range(size):
            job.start(rank, program)
        outcomes = job.wait()
        died_at = float((job.folder / "death").read_text())
    assert outcomes.pop(victim)["error"] == jobs.DIED
    assert_all(outcomes, "PeerLostError", f"rank {victim} is gone")
    assert max(outcome["at"] for outcome in outcomes) - died_at < 10


@pytest.mark.parametrize("size", [2, 3, 5])
def test_rank_that_exits_too_early_is_named(size):
    outcomes = jobs.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=60)
            comm.barrier()
            if rank == size - 1:
                return "left"
            comm.allreduce(np.ones(1000), algorithm="recursive_doubling")
        """,
        size,
    )
    assert outcomes.pop() == {"result": "left"}
    assert_all(outcomes, "PeerLostError", f"rank {size - 1} is gone")


@pytest.mark.parametrize("size", [2, 5])
def test_rank_that_never_comes_to_the_rendezvous_is_named(size):
    program = "def main(rank, size):\n    sw.init(timeout=2)\n"
    with jobs.job(size) as job:
        for rank in range(size - 1):
            job.start(rank, program)
        outcomes = job.wait()
    assert_all(outcomes, "CollectiveTimeout", f"rank {size - 1} did not arrive within")


def test_rank_0_that_never_comes_is_named():
    with jobs.job(3) as job:
        for rank in (1, 2):
            job.start(rank, "def main(rank, size):\n    sw.init(timeout=1)\n")
        outcomes = job.wait()
    assert_all(outcomes, "CollectiveTimeout", "rank 0 did not arrive within")


# A failure breaks one group only, so each algorithm has a group.
NEVER_COME = """
from concurrent.futures import ThreadPoolExecutor
def main(rank, size):
    with sw.init(timeout=60) as world:
        groups = {name: world.split(0) for name in [*sw.ALGORITHMS, "auto"]}
        for group in groups.values():
            group.barrier()
        if rank == 2:
            wait_for("outcome-0.json", "outcome-1.json", "outcome-3.json")
            return "slept"
        def call(name, group):
            return name, tried(lambda: group.allreduce(np.ones(1000), algorithm=name, timeout=1))
        with ThreadPoolExecutor(len(groups)) as threads:  # their time-outs pass together
            return dict(threads.map(call, groups, groups.values()))
"""


@functools.cache
def without_rank_2():
    return jobs.run(NEVER_COME, 4)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "auto"])
def test_rank_that_never_comes_to_a_collective_is_named(algorithm):
    zero, one, two, three = (outcome["result"] for outcome in without_rank_2())
    assert two == "slept"
    in_time = "rank 2 did not arrive within 1 s in allreduce(length=1,000"
    assert_all([rank[algorithm] for rank in (zero, one, three)], "CollectiveTimeout", in_time)


def test_interrupt_in_one_rank_reaches_the_others():
    outcomes = jobs.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=60)
            comm.barrier()
            def interrupt():
                while comm._driver.idle:  # not before it waits inside the call
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
            if rank == 1:
                after(0.3, interrupt)
            if rank == 2:
                wait_for("interrupted")
            try:
                comm.allgather(np.ones(10))  # which cannot end without rank 2
            finally:
                open(in_folder("interrupted"), "w").close()
            comm.barrier()  # rank 2 may have had all it needs
        """,
        3,
    )
    assert outcomes.pop(1)["error"] == "KeyboardInterrupt"
    assert_all(outcomes, "TransportError", "rank 1 failed with KeyboardInterrupt")


# -- after a failure -----------------------------------------------------------------------------


def test_communicator_is_broken_after_a_transport_error():
    outcomes = jobs.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=60)
            if rank == 2:
                return []
            calls = [lambda: comm.allreduce(np.ones(5)), comm.barrier, lambda: comm.allreduce("nonsense")]
            outcomes = [tried(call) for call in calls]
            comm.close()
            return [*outcomes, tried(comm.barrier)]
        """,
        3,
    )
    for outcome in outcomes[:2]:
        first, *later, closed = outcome["result"]
        assert first["error"] == "PeerLostError"
        for again in later:
            assert again["error"] == "TransportError"
            assert "broken" in again["message"]
            assert "rank 2 is gone" in again["message"]
        assert closed["error"] == "TransportError"


@pytest.mark.parametrize("size", [2, 3])
def test_unsent_rest_of_a_failed_call_does_not_harm_the_next(size):
    """The caller may write to its array after the error, while the old message is still half sent."""
    outcomes = jobs.run(
        f"""
        def main(rank, size):
            comm = sw.init(timeout=60)
            x = np.ones({BIG}, "float32")
            sums = []
            for turn in range(5):
                x[:] = turn + 1
                if rank == size - 1:
                    failed = tried(lambda: comm.allreduce((1, [7], [1.0])))
                else:
                    failed = tried(lambda: comm.allreduce(x, algorithm="allgather_sum"))
                x[:] = 10 * (turn + 1)
                total = comm.allreduce(x, algorithm="allgather_sum")
                sums.append((failed["error"], float(total.min()), float(total.max())))
            return sums
        """,
        size,
    )
    expected = [["InputError", 10.0 * size * turn, 10.0 * size * turn] for turn in range(1, 6)]
    assert outcomes == [{"result": expected}] * size


def test_bad_input_is_raised_by_a_rank_that_comes_later():
    outcomes = jobs.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=60)
            if rank == 2:
                wait_for("outcome-0.json", "outcome-1.json")
            comm.allreduce((9, [5, 4], np.ones(2)) if rank == 1 else np.ones(9))
        """,
        3,
    )
    assert_all(outcomes, "InputError", "rank 1: indices[1] is 4")


def test_connection_that_waited_between_two_calls_is_not_refused():
    """Two ranks dial each other at once; one leaves the call before its own connection is answered."""
    outcomes = jobs.run(
        """
        import sparsewire.drivers.tcp.mesh as mesh
        mesh.handshake_seconds = lambda timeout: 0.2
        def main(rank, size):
            comm = sw.init(timeout=20)
            for root in range(1, size):
                comm.broadcast(np.ones(3), root=root)
                if rank != root:
                    time.sleep(0.6)
                comm.barrier()
            return float(comm.allreduce(np.ones(3), algorithm="allgather_sum").sum())
        """,
        5,
    )
    assert outcomes == [{"result": 15.0}] * 5


# -- strangers -----------------------------------------------------------------------------------

SUM_UNTIL_IT_IS_ENOUGH = """
def main(rank, size):
    comm = sw.init(timeout=30)
    go_on, sums = True, set()
    while go_on:
        is_enough = os.path.exists(in_folder("enough"))  # and one more sum after that
        sums.add(float(comm.allreduce(np.full(100, 2.0**rank)).sum()))
        open(in_folder(f"summed-{rank}"), "w").close()
        go_on = comm.broadcast(np.array([float(not is_enough)]))[0] > 0
    return sorted(sums)
"""


@contextlib.contextmanager
def running_job(size=3, **environment_of_rank_1):
    with jobs.job(size) as job:
        for rank in range(size):
            job.start(rank, SUM_UNTIL_IT_IS_ENOUGH, **(environment_of_rank_1 if rank == 1 else {}))
        yield job
        (job.folder / "enough").touch()
        assert job.wait() == [{"result": [100.0 * (2**size - 1)]}] * size


def wait_until_summed(job):
    """The ranks have found each other."""
    end = time.monotonic() + 20
    while len(list(job.folder.glob("summed-*"))) < job.size:
        assert time.monotonic() < end
        time.sleep(0.01)


def connect(port):
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.01)


def read_to_the_end(connection):
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(4096):
            received += chunk
    return received


def test_stranger_who_sends_garbage_is_refused_and_the_job_goes_on():
    with running_job() as job, connect(job.port) as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        received = read_to_the_end(stranger)
        assert len(received) == HELLO_BYTES or received[HELLO_BYTES:] == REFUSED  # no proof, and no frame


def test_strangers_who_stay_silent_do_not_disturb_the_job():
    with running_job() as job, contextlib.ExitStack() as strangers:
        for _ in range(20):
            strangers.enter_context(connect(job.port))


def test_many_strangers_do_not_use_up_the_connections():
    with running_job() as job, contextlib.ExitStack() as strangers:
        wait_until_summed(job)  # from now on, only unproven connections are given up
        for _ in range(600):
            strangers.enter_context(connect(job.port))


def test_replayed_handshake_is_refused_and_the_job_goes_on():
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        port = proxy.getsockname()[1]
        with running_job(MASTER_PORT=str(port)) as job:
            recorded = record_one_connection(proxy, job.port)
            wait_until_summed(job)
            assert Hello.unpack(recorded).rank == 1  # and its proof
            with connect(job.port) as stranger:
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(recorded)
                received = read_to_the_end(stranger)
            assert len(received) == HELLO_BYTES or received[HELLO_BYTES:] == REFUSED


def record_one_connection(proxy, port):
    """Forward one connection to ``port``; returns what the dialler has sent so far, which keeps growing."""
    recorded = bytearray()
    near, _ = proxy.accept()
    far = connect(port)

    def carry(source, target, record):
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if record:
                    recorded.extend(chunk)
                target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    threads = [
        threading.Thread(target=carry, args=(near, far, True)),
        threading.Thread(target=carry, args=(far, near, False)),
    ]

    def close():
        for thread in threads:
            thread.join()
        near.close()
        far.close()

    for thread in threads:
        thread.start()
    threading.Thread(target=close).start()
    return recorded


def test_wrong_secret_on_one_rank_is_a_clear_error_on_all():
    program = "def main(rank, size):\n    sw.init(timeout=3)\n"
    outcomes = jobs.run(program, 3, environments={1: {"SPARSEWIRE_SECRET": "not the job's secret"}})
    impostor = outcomes.pop(1)
    assert "TransportError" in impostor["kinds"]
    assert "SPARSEWIRE_SECRET" in impostor["message"]
    assert_all(outcomes, "CollectiveTimeout", "rank 1 did not arrive")
    assert "1 connections could not prove to be ranks" in outcomes[0]["message"]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_ranks_listen_at_the_interface_of_the_master_only(address):
    with jobs.job(2) as job:
        for rank in (0, 1):
            job.start(
                rank,
                """
                import socket
                def reachable(host, port):
                    with socket.socket() as probe:
                        return probe.connect_ex((host, port)) == 0
                def main(rank, size):
                    comm = sw.init(timeout=30)
                    ports = comm.allgather(np.array([comm._driver.transport.address[1]]))
                    found = [[h, reachable(h, int(p[0]))] for p in ports for h in ("127.0.0.1", "127.0.0.2")]
                    comm.barrier()
                    return found
                """,
                MASTER_ADDR=address,
            )
        outcomes = job.wait()
    for outcome in outcomes:
        # rank 1 dials 127.0.0.2 from 127.0.0.1, which is then the interface that it listens at
        to_rank_0, to_rank_1 = outcome["result"][:2], outcome["result"][2:]
        assert to_rank_0 == [["127.0.0.1", address == "127.0.0.1"], ["127.0.0.2", address == "127.0.0.2"]]
        assert sorted(reached for _, reached in to_rank_1) == [False, True]


# -- corrupted frames ----------------------------------------------------------------------------

# The last rank writes to its authenticated connection to rank 0 directly, without its driver.
CORRUPT = """
from sparsewire.coding import frame as wire
from sparsewire.coding.call import Envelope
def main(rank, size):
    comm = sw.init(timeout=30)
    x = np.arange(1000.0)
    comm.allreduce(x, algorithm="allgather_sum")
    if rank == size - 1:
        link = comm._driver.transport._routes[0]
        frame = bytearray(b"".join(wire.encode(sw.SparseVector.from_dense(x), Envelope())))
        frame[AT] ^= 1
        link.sock.setblocking(True)
        link.sock.sendall(frame)
        link.sock.setblocking(False)
    comm.allreduce(x, algorithm="allgather_sum")  # a rank that has all it needs may end this one
    comm.allreduce(x, algorithm="allgather_sum")
"""


@pytest.mark.parametrize("at", [0, 4, 5, 60, 90, 111, 112, -1], ids=lambda at: f"byte {at}")
def test_corrupted_frame_is_a_wire_error_on_every_rank(at):
    outcomes = jobs.run(f"AT = {at}\n{CORRUPT}", 3)
    assert_all(outcomes, "WireError", "from rank 2: ")


def test_garbage_on_a_proven_connection_is_a_wire_error_on_every_rank():
    program = CORRUPT.replace("frame[AT] ^= 1", "frame = b'garbage' * 100")
    assert_all(jobs.run(program, 2), "WireError", "from rank 1: a frame starts with b'SPWR'")


# The bytes of a rank lead to an error that is not ours, in a decoder that does not know them.
UNFORESEEN = """
from sparsewire.coding import frame as wire
def main(rank, size):
    comm = sw.init(timeout=30)
    if rank == 0:
        parse = wire._Header.piece
        def fail(header, data):
            if header.length == 1234:
                raise OverflowError("Python int too large to convert to C long")
            return parse(header, data)
        wire._Header.piece = fail
    comm.allreduce(np.ones(10), algorithm="allgather_sum")
    x = np.ones(1234 if rank == 2 else 10)
    comm.allgather(x)
    comm.allgather(x)
"""


def test_an_unforeseen_error_in_decoding_names_the_sender_on_every_rank():
    outcomes = jobs.run(UNFORESEEN, 3)
    assert_all(outcomes, "WireError", "from rank 2: a message that led to OverflowError")


# The checksum is right, because it is computed from the wrong words.
WRONG_WORDS = """
from dataclasses import replace
from sparsewire.coding import frame
def main(rank, size):
    comm = sw.init(timeout=30)
    comm.network = replace(comm.network, seconds_per_index=0.0)
    if rank == 1:
        encode = frame.encode_indices
        def one_bit_wrong(*arguments):
            words = encode(*arguments)
            words[-1] ^= words.dtype.type(1)
            return words
        frame.encode_indices = one_bit_wrong
    vector = sw.SparseVector(20_000, range(0, 20_000, 50), np.ones(400))
    comm.allreduce(vector, algorithm=ALGORITHM)  # a rank that has all it needs may end this one
    comm.allreduce(vector, algorithm=ALGORITHM)
"""


@pytest.mark.parametrize("algorithm", ["allgather_sum", "split_allgather", "recursive_doubling"])
def test_words_that_code_no_indices_are_a_wire_error_on_every_rank(algorithm):
    outcomes = jobs.run(f"ALGORITHM = {algorithm!r}\n{WRONG_WORDS}", 3)
    assert_all(outcomes, "WireError", "from rank 1: the frame does not code ")


def test_outcomes_are_written_as_json(tmp_path):
    """The harness itself: what a rank returns is reported, and a death is told from a hang."""
    outcomes = jobs.run(
        "def main(rank, size):\n    die() if rank == 1 else time.sleep(60 * rank)\n    return rank\n", 3, 3
    )
    assert outcomes[0] == json.loads('{"result": 0}')
    assert [outcome.get("error") for outcome in outcomes] == [None, jobs.DIED, jobs.HUNG]
    with pytest.raises(
        AssertionError, match=r"rank 1 has no 'result'; it ended with died: exit code -9; it printed"
    ):
        outcomes[1]["result"]
