"""Living beside the caller's own MPI: its communicators, its messages, its thread level; calls in flight."""

import pytest


def test_init_takes_a_part_of_the_world_in_the_order_of_its_ranks(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            from mpi4py import MPI
            half = MPI.COMM_WORLD.Split(rank % 2, -rank)
            with sw.init(comm=half, timeout=30) as comm, sw.init(comm=MPI.COMM_SELF, timeout=30) as alone:
                ranks = [comm.rank, comm.size, alone.rank, alone.size]
                sums = [int(c.allreduce(np.array([2**rank]))[0]) for c in (comm, alone, comm)]
            half.Barrier()  # it is still the caller's
            half.Free()
            return ranks + sums
        """,
        5,
    )
    even, odd = 1 + 4 + 16, 2 + 8
    assert [outcome["result"] for outcome in outcomes] == [
        [2, 3, 0, 1, even, 1, even],
        [1, 2, 0, 1, odd, 2, odd],
        [1, 3, 0, 1, even, 4, even],
        [0, 2, 0, 1, odd, 8, odd],
        [0, 3, 0, 1, even, 16, even],
    ]


def test_split_groups_and_their_parent_work_at_the_same_time(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            world = sw.init(timeout=30)
            part = world.split(None if rank == 4 else rank % 2, key=-rank)
            everybody = world.iallreduce(np.array([2**rank]))
            mine = None if part is None else int(part.allreduce(np.array([2**rank]))[0])
            place = None if part is None else [part.rank, part.size]
            return [place, mine, int(everybody.wait(30)[0])]
        """,
        5,
    )
    assert [outcome["result"] for outcome in outcomes] == [
        [[1, 2], 1 + 4, 31],
        [[1, 2], 2 + 8, 31],
        [[0, 2], 1 + 4, 31],
        [[0, 2], 2 + 8, 31],
        [None, None, 31],
    ]


def test_groups_are_made_while_messages_of_their_parent_wait_to_be_fetched(mpi):
    """MPI sends messages of its own while it makes a group; it must not take ours for them."""
    outcomes = mpi.run(
        """
        def main(rank, size):
            from sparsewire.coding import frame
            from sparsewire.coding.call import Envelope
            from sparsewire.drivers import mpi
            heard, tags = [], set()
            transport = mpi.connect().transport
            transport.attach(lambda source, message: heard.append(message.payload.values.tolist()), None)
            if rank == 0:  # rank 1 fetches it only when the group is made
                transport.post([1], frame.encode(sw.SparseVector.from_dense(np.ones(9)), Envelope()))
            part = transport.split([0, 1], [b"", b""])
            while rank == 1 and not heard:
                transport.poll(1.0)
            mpi._tags = mpi.TAGS - 3  # so that numbers begin again
            for _ in range(5):
                tags.add(part.split([0, 1], [b"", b""])._tag)
            return [heard, len(tags), mpi.GROUP_TAG in tags, max(tags) < mpi.TAGS]
        """,
        2,
    )
    assert [outcome["result"] for outcome in outcomes] == [
        [[], 5, False, True],
        [[[1.0] * 9], 5, False, True],
    ]


def test_messages_of_the_caller_are_not_disturbed(mpi):
    """The caller listens to anybody, with any tag, while ours are under way; each gets its own."""
    outcomes = mpi.run(
        """
        def main(rank, size):
            from mpi4py import MPI
            world = MPI.COMM_WORLD
            comm = sw.init(comm=world, timeout=30)
            heard, sums = [], []
            for turn in range(20):
                inbox = [np.zeros(1, np.int64) for _ in range(size - 1)]
                early = [world.Irecv(box, MPI.ANY_SOURCE, MPI.ANY_TAG) for box in inbox]
                sums.append(int(comm.allreduce(np.array([2**rank]))[0]))
                late = [
                    world.Isend(np.array([100 * turn + rank]), peer, tag=turn % 3)
                    for peer in range(size) if peer != rank
                ]
                sums.append(int(comm.allreduce(np.array([2**rank]), algorithm="allgather_sum")[0]))
                MPI.Request.Waitall(early + late)
                heard.append(sorted(int(box[0]) - 100 * turn for box in inbox))
                world.Barrier()
            return [heard, sums]
        """,
        3,
    )
    for rank, outcome in enumerate(outcomes):
        others = [peer for peer in range(3) if peer != rank]
        assert outcome == {"result": [[others] * 20, [7] * 40]}


@pytest.mark.parametrize("level", ["single", "funneled"])
def test_blocking_calls_need_no_more_than_one_thread(mpi, level):
    outcomes = mpi.run(
        f"""
        def main(rank, size):
            import mpi4py
            mpi4py.rc.thread_level = {level!r}
            from mpi4py import MPI
            comm = sw.init(timeout=30)
            sums = [int(comm.allreduce(np.array([2**rank]), algorithm=a)[0]) for a in sw.ALGORITHMS]
            return [MPI.Query_thread() == MPI.THREAD_{level.upper()}, set(sums) == {{3}}]
        """,
        2,
    )
    assert outcomes == [{"result": [True, True]}] * 2


def test_calls_in_flight_need_no_more_than_serialized_threads(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            import mpi4py
            mpi4py.rc.thread_level = "serialized"
            comm = sw.init(timeout=30)
            requests = [comm.iallreduce(np.array([2**rank, i])) for i in range(5)]
            blocking = comm.allreduce(np.array([2**rank, 5]))
            return [*(request.wait(30).tolist() for request in requests), blocking.tolist()]
        """,
        2,
    )
    assert outcomes == [{"result": [[3, 2 * i] for i in range(6)]}] * 2


def test_many_calls_in_flight_end_in_any_order_among_blocking_ones(mpi):
    outcomes = mpi.run(
        """
        def main(rank, size):
            comm = sw.init(timeout=60)
            algorithms = [*sw.ALGORITHMS]
            requests, sums, ended = [], [], []
            for i in range(20):
                x = np.full(100 * (20 - i), i + 2**rank, np.int64)  # the first ones are the largest
                requests.append(comm.iallreduce(x, algorithm=algorithms[i % len(algorithms)]))
                requests[-1].add_done_callback(lambda request, i=i: ended.append(i))
                if i % 5 == 4:
                    sums.append(int(comm.allreduce(np.array([2**rank]))[0]))
            for request in reversed(requests):
                total = request.wait(60)
                sums.append([len(total), int(total.min()), int(total.max()), request.test()])
            return [sums, sorted(ended)]
        """,
        4,
    )
    in_reverse = [[100 * (20 - i), 4 * i + 15, 4 * i + 15, True] for i in reversed(range(20))]
    assert outcomes == [{"result": [[15] * 4 + in_reverse, list(range(20))]}] * 4


@pytest.mark.parametrize("absent", [None, 1], ids=["all ranks came", "rank 1 did not come"])
def test_program_that_ends_with_calls_in_flight_does_not_hang_or_crash(mpi, absent):
    program = f"""
        def main(rank, size):
            comm = sw.init(timeout=60)
            comm.barrier()
            if rank != {absent}:
                for _ in range(10):
                    comm.iallreduce(np.ones(100_000))
            return "left"
        """
    with mpi.job(program, 3) as job:
        assert job.wait(30) == [{"result": "left"}] * 3
        assert job.process.returncode == 0
