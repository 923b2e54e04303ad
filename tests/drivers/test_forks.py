"""A rank that forks, as DataLoaders do: its child holds none of its connections, and cannot use them."""

import jobs
import pytest

DIES_WITH_CHILDREN = """
import multiprocessing
def fork():
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)

def work(connection):
    connection.send("ready")
    time.sleep(20)

def start_workers():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    for _ in range(2):
        context.Process(target=work, args=(there,)).start()
    here.recv(), here.recv()

def main(rank, size):
    comm = sw.init(timeout=30)
    comm.barrier()
    group = comm.split(0)
    group.iallreduce(np.ones(3)).wait()
    if rank == 1:
        HOW()
        open(in_folder("dies"), "w").close()
        die()
    wait_for("dies")
    died = time.time()
    outcomes = [tried(lambda: one.allreduce(np.ones(10))) for one in (comm, group)]
    return [(outcome, outcome["at"] - died) for outcome in outcomes]
"""


@pytest.mark.parametrize("how", ["fork", "start_workers"])
def test_death_of_a_rank_is_noticed_at_once_while_its_children_live(how):
    outcomes = jobs.run(DIES_WITH_CHILDREN.replace("HOW", how), 2, seconds=25)
    for outcome, seconds in outcomes[0]["result"]:
        assert outcome["error"] == "PeerLostError"
        assert "rank 1 is gone" in outcome["message"]
        assert seconds < 8  # the children live for 20 s


IN_A_CHILD = """
def in_a_child(action):
    'What the action gives in a forked process.'
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        after(15, lambda: os._exit(3))
        os.write(writer, json.dumps(tried(action)).encode())
        os._exit(0)
    os.close(writer)
    said = b""
    while chunk := os.read(reader, 65536):
        said += chunk
    os.waitpid(child, 0)
    return json.loads(said or '{"error": "hung", "message": ""}')

def sum_and_close(comm):
    outcome = tried(lambda: comm.allreduce(np.ones(10)))
    comm.close()
    comm.close()
    return outcome
"""


def test_communicator_of_the_parent_is_an_error_in_its_child_and_still_works_in_the_parent():
    outcomes = jobs.run(
        IN_A_CHILD
        + """
def main(rank, size):
    comm = sw.init(timeout=30)
    comm.barrier()
    before = [in_a_child(lambda: sum_and_close(comm))]
    comm.iallreduce(np.ones(3)).wait()  # from now on there is a thread, which children do not have
    before.append(in_a_child(lambda: sum_and_close(comm)))
    flying = comm.iallreduce(np.ones(3)) if rank == 0 else None
    before.append(in_a_child(lambda: sum_and_close(comm)))
    (flying or comm.iallreduce(np.ones(3))).wait()
    return before, float(comm.allreduce(np.ones(10)).sum())
""",
        2,
    )
    for outcome in outcomes:
        children, total = outcome["result"]
        for child in children:
            assert child["result"]["error"] == "TransportError", child
            assert "forked" in child["result"]["message"]
        assert total == 20.0


def test_child_holds_no_connection_of_its_parent():
    outcomes = jobs.run(
        IN_A_CHILD
        + """
def kinds():
    'What the open descriptors of this process are.'
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}").split(":")[0])
        except OSError:
            pass
    return {kind: found.count(kind) for kind in ("socket", "anon_inode")}

def main(rank, size):
    before = kinds()
    comm = sw.init(timeout=30)
    group = comm.split(0)
    group.barrier()
    comm._driver.transport.invite()  # a listener of a group that is not there yet
    during = kinds()
    child = in_a_child(kinds)["result"]
    comm.barrier()
    return before, during, child
""",
        2,
    )
    for outcome in outcomes:
        before, during, child = outcome["result"]
        assert during["socket"] > before["socket"]
        assert child == before
