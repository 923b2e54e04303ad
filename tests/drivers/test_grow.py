"""Ranks that come later: a group takes them in at a point on which it agrees."""

import jobs
import pytest
from test_shrink import GO_ON

JOIN = f"""
{GO_ON}
def main(rank, size):
    wait_for("ready")
    comm = sw.join(timeout=30)
    return facts(comm)
"""


@pytest.mark.parametrize("newcomers", [1, 3])
def test_newcomers_follow_the_old_ranks(newcomers):
    members = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=30)
    assert comm.grow() is comm  # nobody waits
    open(in_folder("ready"), "w").close()
    return facts(comm.grow(at_least={newcomers}))
"""
    with jobs.job(2) as job:
        for rank in range(2):
            job.start(rank, members)
        for rank in range(2, 2 + newcomers):
            job.start(rank, JOIN)
        outcomes = job.wait()
    size = 2 + newcomers
    said = [outcome["result"] for outcome in outcomes]
    assert [facts[1:] for facts in said] == [[size, [0, 1], [size * (size + 1) / 2] * 3]] * size
    assert [facts[0] for facts in said[:2]] == [0, 1]
    assert sorted(facts[0] for facts in said) == list(range(size))


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_dies_and_another_takes_its_place(victim):
    """The environment of the newcomer is that of the job, also if rank 0 died."""
    members = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=30)
    comm.barrier()
    if rank == {victim}:
        after(0.3, die)
    comm = go_on(comm)
    open(in_folder("shrunk"), "w").close()
    comm = comm.grow(at_least=1, timeout=30)
    return facts(comm)
"""
    with jobs.job(3) as job:
        for rank in range(3):
            job.start(rank, members)
        job.start(
            3,
            f"{GO_ON}\ndef main(rank, size):\n    wait_for('shrunk')\n    return facts(sw.join(timeout=30))",
        )
        outcomes = job.wait()
    outcomes.pop(victim)
    assert [outcome["result"] for outcome in outcomes] == [
        [place, 3, [0, 1], [6.0] * 3] for place in range(3)
    ]


def test_the_group_goes_on_if_a_newcomer_dies_while_it_joins():
    members = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=30)
    open(in_folder("ready"), "w").close()
    return facts(comm.grow(at_least=2, timeout=20))
"""
    dies = """
def main(rank, size):
    sw.Communicator.formed = lambda *_: die()
    sw.join(timeout=30)
"""
    with jobs.job(2) as job:
        for rank in range(2):
            job.start(rank, members)
        job.start(2, JOIN)
        job.start(3, dies)
        outcomes = job.wait()
    assert [outcomes[rank]["result"][1:] for rank in range(3)] == [[3, [0, 1], [6.0] * 3]] * 3


def test_a_newcomer_that_waits_in_vain_ends_with_a_named_error():
    with jobs.job(2) as job:
        for rank in range(2):
            job.start(
                rank, "def main(rank, size):\n    comm = sw.init(timeout=30)\n    wait_for('refused')\n"
            )
        job.start(
            2,
            """
            def main(rank, size):
                time.sleep(1)
                try:
                    sw.join(timeout=2)
                finally:
                    open(in_folder("refused"), "w").close()
            """,
        )
        outcomes = job.wait()
    assert outcomes[2]["error"] == "CollectiveTimeout", outcomes
    assert "nobody was taken in at 127.0.0.1" in outcomes[2]["message"]


def test_a_newcomer_with_another_secret_is_not_taken_in_and_disturbs_nobody():
    members = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=30)
    while not comm.allreduce(np.array([os.path.exists(in_folder("refused"))], "int32")):
        pass
    assert comm.grow() is comm
    return facts(comm)
"""
    with jobs.job(2) as job:
        for rank in range(2):
            job.start(rank, members)
        job.start(
            2,
            """
            def main(rank, size):
                try:
                    sw.join(timeout=2)
                finally:
                    open(in_folder("refused"), "w").close()
            """,
            SPARSEWIRE_SECRET="another secret, also long",
        )
        outcomes = job.wait()
    assert outcomes[2]["error"] == "CollectiveTimeout", outcomes
    assert [outcomes[rank]["result"][1] for rank in range(2)] == [2, 2]


def test_a_group_that_is_alone_says_why_it_cannot_grow():
    [outcome] = jobs.run("def main(rank, size):\n    sw.init().grow()\n", 1)
    assert outcome["error"] == "InputError"
    assert "takes nobody in" in outcome["message"]


@pytest.mark.parametrize("protection", ["SPARSEWIRE_TLS", "SPARSEWIRE_AUTHENTICATE_FRAMES"])
def test_connections_are_protected_as_before_when_a_group_shrinks_and_grows(protection):
    """A rank without this protection would be refused, so whoever takes part has it."""
    if protection == "SPARSEWIRE_TLS":
        pytest.importorskip("cryptography")
    members = f"""
{GO_ON}
def main(rank, size):
    comm = sw.init(timeout=30)
    comm.barrier()
    if rank == 1:
        after(0.3, die)
    comm = go_on(comm)
    open(in_folder("ready"), "w").close()
    comm = comm.grow(at_least=1, timeout=30)
    assert comm._driver.transport._protection == sw.communicator.join.protection_of(), "not inherited"
    return facts(comm)
"""
    with jobs.job(3) as job:
        for rank in range(3):
            job.start(rank, members, **{protection: "1"})
        job.start(3, JOIN, **{protection: "1"})
        outcomes = job.wait()
    outcomes.pop(1)
    assert [outcome["result"][1:3] for outcome in outcomes] == [[3, [0, 1]]] * 3


def test_a_newcomer_without_the_groups_protection_is_not_taken_in():
    with jobs.job(2) as job:
        for rank in range(2):
            job.start(
                rank,
                """
def main(rank, size):
    comm = sw.init(timeout=30)
    open(in_folder("ready"), "w").close()
    return comm.grow(at_least=1, timeout=8).size
""",
                SPARSEWIRE_AUTHENTICATE_FRAMES="1",
            )
        job.start(2, "def main(rank, size):\n    wait_for('ready')\n    sw.join(timeout=3)\n")
        outcomes = job.wait()
    assert [outcomes[rank]["result"] for rank in range(2)] == [2, 2]
    assert outcomes[2]["error"] == "CallMismatchError", outcomes
    assert "the newcomer has authenticate_frames=False" in outcomes[2]["message"]
