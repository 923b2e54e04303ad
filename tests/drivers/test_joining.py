"""Who gets into a job: all of its ranks, however late and among strangers, and nobody twice."""

import contextlib
import resource
import socket
import threading
import time

import jobs
import pytest

from sparsewire.drivers.tcp import handshake, sockets
from sparsewire.drivers.tcp.handshake import AuthenticationError
from sparsewire.drivers.tcp.link import Link
from sparsewire.drivers.tcp.mesh import Mesh
from sparsewire.drivers.tcp.sockets import listen
from sparsewire.drivers.tcp.unproven import Unproven
from sparsewire.errors import TransportError

SECRET = "a secret for tests"
JOIN = """
def main(rank, size):
    with sw.init(timeout=TIMEOUT) as comm:
        return float(comm.allreduce(np.ones(1))[0])
"""


@contextlib.contextmanager
def one_rank(size, timeout=60.0):
    """The connections of rank 0 of a job, polled by a thread; and the errors that it reported."""
    mesh = Mesh(0, size, listen(("127.0.0.1", 0)), SECRET, timeout)
    errors, end = [], threading.Event()
    mesh.attach(lambda source, message: None, errors.append)

    def poll():
        while not end.is_set():
            mesh.poll(0.05)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield mesh, errors
    finally:
        end.set()
        thread.join()
        mesh.close()


def exchange(connection, dialogue, pause_s=0.0):
    """Carry a dialogue over a blocking socket, with a pause before the answer."""
    step = next(dialogue)
    try:
        while True:
            if isinstance(step, bytes):
                time.sleep(pause_s)
                connection.sendall(step)
                step = next(dialogue)
            else:
                data = b""
                while len(data) < step:
                    chunk = connection.recv(step - len(data))
                    if not chunk:
                        raise ConnectionResetError("closed early")
                    data += chunk
                step = dialogue.send(data)
    except StopIteration as proven:
        return proven.value


# -- slow ranks ----------------------------------------------------------------------------------


def test_400_ranks_that_answer_after_a_second_are_all_kept():
    size = 401
    sockets.allow_descriptors(2 * size)
    with one_rank(size) as (mesh, _), contextlib.ExitStack() as connections:
        dialogues = {}
        for rank in range(1, size):
            connection = connections.enter_context(socket.create_connection(mesh.address))
            dialogues[rank] = (connection, handshake.dial(SECRET.encode(), rank, 0, size))
        time.sleep(1.0)
        for connection, dialogue in dialogues.values():
            connection.settimeout(20)
            assert exchange(connection, dialogue).peer == 0
        end = time.monotonic() + 20
        while sum(map(bool, [*mesh._links.values()])) < size - 1:  # the last one may not be written down yet
            assert time.monotonic() < end
            time.sleep(0.01)
        assert mesh.refused == 0


@pytest.mark.parametrize(("timeout", "kept"), [(60.0, True), (0.1, False)])
def test_pause_in_the_handshake_may_be_as_long_as_the_time_out(timeout, kept, monkeypatch):
    monkeypatch.setattr("sparsewire.drivers.tcp.unproven.SHORTEST_S", 0.1)
    with one_rank(2, timeout) as (mesh, _), socket.create_connection(mesh.address) as connection:
        connection.settimeout(20)
        dialogue = handshake.dial(SECRET.encode(), 1, 0, 2)
        if kept:
            assert exchange(connection, dialogue, pause_s=1.5).peer == 0
        else:
            with pytest.raises(ConnectionError):
                exchange(connection, dialogue, pause_s=1.5)


# -- strangers -----------------------------------------------------------------------------------


class Flood:
    """Strangers who dial as fast as they can, hold some connections open, and prove nothing."""

    def __init__(self, port, held=600):
        self._port, self._held = port, held
        self.dialled = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._dial)

    def _dial(self):
        held = []
        while not self._end.is_set():
            try:
                held.append(socket.create_connection(("127.0.0.1", self._port), timeout=1))
                self.dialled += 1
            except OSError:
                time.sleep(0.01)  # nobody listens yet
            if len(held) > self._held:
                held.pop(0).close()
        for connection in held:
            connection.close()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def test_ranks_join_in_a_flood_of_strangers():
    sockets.allow_descriptors(200)
    with jobs.job(4) as job, Flood(job.port) as flood:
        job.start(0, f"TIMEOUT = 60{JOIN}")
        while flood.dialled < 300:
            time.sleep(0.01)
        for rank in (1, 2, 3):
            job.start(rank, f"TIMEOUT = 60{JOIN}")
        assert job.wait(90) == [{"result": 4.0}] * 4


def test_the_host_with_most_unproven_connections_loses_its_oldest():
    unproven = Unproven(limit=3, seconds=1.0)
    rank, *strangers = [Link(None, host=host) for host in ("10.0.0.1", *["10.0.0.2"] * 3)]
    for link in (rank, *strangers[:2]):
        unproven.add(link)
        assert unproven.surplus() is None
    unproven.add(strangers[2])
    assert unproven.surplus() is strangers[0]
    unproven.discard(strangers[0])
    assert unproven.surplus() is None
    assert set(unproven) == {rank, *strangers[1:]}


# -- who does not fit ----------------------------------------------------------------------------


def test_rank_that_comes_twice_is_named_on_all_ranks_at_once():
    with jobs.job(3) as job:
        started = time.time()
        for rank in (0, 1):
            job.start(rank, f"TIMEOUT = 30{JOIN}")
        job.start(2, f"TIMEOUT = 30{JOIN}".replace("sw.init", "(os.environ.update(RANK='1'), sw.init)[1]"))
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome["error"] == "InputError"
        assert "rank 1 came twice" in outcome["message"]
        assert outcome["at"] - started < 10  # the machine may be busy; the time-out is 30 s


def test_rank_that_comes_again_when_all_have_joined_is_refused_and_the_job_goes_on():
    program = """
def main(rank, size):
    with sw.init(timeout=30) as comm:
        comm.barrier()
        open(in_folder("joined"), "w").close()
        end = time.monotonic() + 20
        go_on = True
        while go_on:
            is_told = os.path.exists(in_folder("outcome-2.json")) or time.monotonic() > end
            go_on = comm.allreduce(np.array([float(not is_told)]))[0] == 2
        time.sleep(1.2)
        return float(comm.allreduce(np.ones(1))[0])
"""
    again = """
def main(rank, size):
    wait_for("joined")
    os.environ["RANK"] = "1"
    sw.init(timeout=10)
"""
    with jobs.job(2) as job:
        for rank in (0, 1):
            job.start(rank, program)
        job.start(2, again)
        *ranks, late = job.wait()
    assert ranks == [{"result": 2.0}] * 2
    assert late["error"] == "InputError"
    assert "rank 1 came twice" in late["message"]


def test_another_wire_format_is_named_on_all_ranks_at_once():
    other = "from sparsewire.coding import frame\nframe.VERSION += 1\n"
    with jobs.job(3) as job:
        started = time.time()
        for rank in range(3):
            job.start(rank, f"{other if rank == 2 else ''}TIMEOUT = 30{JOIN}")
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome["error"] == "CallMismatchError"
        assert "rank 0 has version" in outcome["message"]
        assert "rank 2 has version" in outcome["message"]
        assert outcome["at"] - started < 10


def test_rank_with_another_secret_is_told_so_at_once():
    with one_rank(2) as (mesh, _), socket.create_connection(mesh.address) as connection:
        with pytest.raises(AuthenticationError, match="SPARSEWIRE_SECRET"):
            exchange(connection, handshake.dial(b"another secret of a job", 1, 0, 2))
        assert connection.recv(1) == b""
        assert mesh.refused == 1


# -- descriptors ---------------------------------------------------------------------------------

USE_UP = """
import resource
def use_up():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    kept = []
    while True:
        try:
            kept.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return kept
"""


def test_soft_limit_of_descriptors_is_raised_when_a_rank_joins():
    program = (
        """
        import resource
        def main(rank, size):
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
            with sw.init(timeout=30) as comm:
                comm.barrier()
                return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        """,
        2,
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert jobs.run(*program) == [{"result": min(hard, 4096 + 8 * 2)}] * 2


def test_dialling_without_descriptors_is_an_error_that_says_so_on_all_ranks():
    """Everybody sends to everybody, and rank 1 does not have all of its connections yet."""
    outcomes = jobs.run(
        USE_UP
        + """
def main(rank, size):
    comm = sw.init(timeout=20)
    kept = []
    def sums():
        comm.barrier()
        kept.extend(use_up() if rank == 1 else [])
        for _ in range(3):
            comm.allreduce(np.ones(100), algorithm="allgather_sum")
    outcome = tried(sums)
    for one in kept:
        os.close(one)
    return outcome
""",
        6,
    )
    for outcome in outcomes:
        assert "TransportError" in outcome["result"]["kinds"], outcome["result"]
        assert "rank 1 cannot " in outcome["result"]["message"]
        assert "no free file descriptors (limit 64): raise it with ulimit -n" in outcome["result"]["message"]


def test_accepting_without_descriptors_rests_and_is_an_error_that_says_so():
    outcomes = jobs.run(
        USE_UP
        + """
import socket
from sparsewire.drivers.tcp.mesh import Mesh
from sparsewire.drivers.tcp.sockets import listen
def main(rank, size):
    mesh = Mesh(0, 2, listen(("127.0.0.1", 0)), "a secret for tests")
    errors = []
    mesh.attach(lambda source, message: None, errors.append)
    dialler = socket.socket()
    kept = use_up()
    dialler.connect(mesh.address)
    polls, end = 0, time.monotonic() + 20
    while not errors and time.monotonic() < end:
        mesh.poll(1.0)
        polls += 1
    os.close(kept.pop())
    while not [*mesh._unproven] and time.monotonic() < end:
        mesh.poll(1.0)  # it is accepted after all
    return polls, str(errors[0]), len([*mesh._unproven])
""",
        1,
    )
    polls, message, accepted = outcomes[0]["result"]
    assert polls < 60  # the listener is ready all the time
    assert "rank 0 cannot accept connections: this process has no free file descriptors (limit 64)" in message
    assert accepted == 1


def test_group_without_descriptors_is_an_error_that_says_so():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    listener = listen(("127.0.0.1", 0))
    kept = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (listener.fileno() + 1, hard))
        with pytest.raises(TransportError, match="no free file descriptors"):
            kept += (listen(("127.0.0.1", 0)) for _ in range(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in (listener, *kept):
            one.close()
