"""Ranks of an MPI job that only aggregate."""

PROGRAM = """
def one_leaves(rank):
    comm = sw.init(aggregators=2, timeout=30)
    if comm.is_aggregator:
        return tried(comm.serve)
    if rank == 1:
        comm.close()
        return None
    return tried(lambda: comm.allreduce(np.ones(3), algorithm="omnireduce"))

def add(comm, rank):
    one_by_one = [comm.allreduce(np.array([2.0**rank]), algorithm="omnireduce") for _ in range(100)]
    requests = []
    for turn in range(10):
        algorithm = "omnireduce" if turn % 3 else "recursive_doubling"
        requests.append(comm.iallreduce(np.full(40_000, 2.0**rank), algorithm=algorithm))
        if turn == 5:
            comm.barrier()
    in_flight = [request.wait(20) for request in requests[::-1]]
    refused = tried(lambda: comm.allreduce("text" if rank == 1 else np.ones(3), algorithm="omnireduce"))
    in_group = comm.split(0).allreduce(np.array([2.0**rank]), algorithm="omnireduce")
    after_all = comm.allreduce(np.array([2.0**rank]), algorithm="omnireduce", op="max")
    totals = [*one_by_one, *in_flight, in_group, after_all]
    return [[sorted(set(total.tolist())) for total in totals], refused]

def main(rank, size):
    differ = tried(lambda: sw.init(aggregators=1 + (rank == 3)))
    gone = one_leaves(rank)
    comm = sw.init(aggregators=2, timeout=30)
    said = comm.serve() if comm.is_aggregator else add(comm, rank)
    if rank == 1:
        comm.close()  # the other workers leave when the program ends
    return [differ, gone, said]
"""


def test_workers_get_their_sums_and_are_told_what_goes_wrong(mpi):
    outcomes = mpi.run(PROGRAM, 5)
    assert all("result" in outcome for outcome in outcomes), outcomes
    differ, gone, said = zip(*(outcome["result"] for outcome in outcomes), strict=True)
    both = "rank 0 called init(aggregators=1), but rank 3 called init(aggregators=2)"
    assert {(error["error"], error["message"]) for error in differ} == {("CallMismatchError", both)}
    assert gone[1] is None
    for error in (gone[0], *gone[2:]):
        assert error["error"] == "PeerLostError"
        assert "rank 1 is gone: it closed the communicator" in error["message"]
    assert said[3:] == (None, None)
    for totals, refused in said[:3]:
        assert totals == [[7.0]] * 111 + [[4.0]]
        assert refused["error"] == "InputError"
        assert "rank 1: str cannot be summed" in refused["message"]
