"""Communicator of one rank: arguments, results and what it says about them.  Several ranks: tests/drivers."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.choosing.calibration import Calibration
from sparsewire.choosing.explain import render
from sparsewire.coding.rounding import rounded
from sparsewire.communicator import Communicator
from sparsewire.communicator.collectives import AllreduceOptions, TopkOptions
from sparsewire.cost import CostFigures, Shape
from sparsewire.drivers.engine import Engine
from sparsewire.drivers.local import Alone


@pytest.fixture
def comm():
    with Communicator(Engine(0, 1, Alone())) as communicator:
        yield communicator


@pytest.fixture
def vector():
    return sw.SparseVector(100, [3, 50], np.array([2.0, -1.0], dtype="float32"))


@pytest.mark.parametrize("algorithm", ["auto", *sw.ALGORITHMS])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_allreduce_of_one_rank_is_the_vector(comm, vector, algorithm, op):
    total = comm.allreduce(vector, algorithm=algorithm, op=op)
    assert (total.to_dense() == vector.to_dense()).all()


def test_every_collective_works_alone(comm, vector):
    dense = vector.to_dense()
    assert [v.nnz for v in comm.allgather(vector)] == [2]
    assert (comm.reduce_scatter(dense) == dense).all()
    assert (comm.broadcast(dense) == dense).all()
    assert (comm.reduce(dense) == dense).all()
    comm.barrier()


def test_last_tells_what_happened(comm, vector):
    assert comm.last is None
    comm.allreduce(vector, algorithm="split_allgather")
    last = comm.last
    assert (last.operation, last.algorithm) == ("allreduce", "split_allgather")
    assert (last.nnz_in, last.nnz_out) == (2, 2)
    assert (last.density_in, last.density_out) == (0.02, 0.02)
    assert (last.messages_sent, last.bytes_sent, last.bytes_received) == (0, 0, 0)
    assert last.seconds >= 0


def test_last_tells_what_auto_chose(comm, vector):
    comm.allreduce(vector)
    assert comm.last.algorithm in sw.ALGORITHMS


def test_a_mostly_zero_array_is_sent_as_entries(comm):
    comm.allreduce(np.eye(10, dtype="float32"), algorithm="split_allgather")
    assert comm.last.nnz_in == 10


def test_unknown_algorithm_is_refused_with_the_known_ones(comm, vector):
    with pytest.raises(sw.InputError) as caught:
        comm.allreduce(vector, algorithm="fastest")
    assert all(name in str(caught.value) for name in ("'fastest'", "auto", *sw.ALGORITHMS))


@pytest.mark.parametrize("algorithm", [5, None, ["dense_ring"], sw.OmniReduce])
def test_what_is_no_name_and_no_options_is_no_algorithm(comm, vector, algorithm):
    with pytest.raises(sw.InputError, match="unknown algorithm"):
        comm.allreduce(vector, algorithm=algorithm)


CALLS_WITH_OPTIONS = [
    ("allreduce", ()),
    ("iallreduce", ()),
    ("allreduce_topk", (1,)),
    ("iallreduce_topk", (1,)),
]


@pytest.mark.parametrize(("method", "arguments"), CALLS_WITH_OPTIONS)
def test_a_misspelt_option_is_a_type_error_that_names_it(comm, vector, method, arguments):
    with pytest.raises(
        TypeError, match=rf"{method}\(\) got an unexpected keyword argument 'algoritm'.*algorithm"
    ):
        getattr(comm, method)(vector, *arguments, algoritm="auto")
    comm.allreduce(vector)  # nothing was begun


@pytest.mark.parametrize(
    ("method", "options"), [("allreduce", AllreduceOptions), ("allreduce_topk", TopkOptions)]
)
def test_help_tells_every_option(method, options):
    text = getattr(Communicator, method).__doc__
    assert all(f"``{name}=" in text for name in options.__annotations__)


def test_a_dense_array_is_not_made_sparse_for_a_dense_algorithm(comm, monkeypatch):
    comm.network = CostFigures(
        latency=0.0, bandwidth=1e9
    )  # for one rank all costs nothing: dense wins the tie
    x = np.zeros(100, np.float32)
    x[::10] = 3

    def fail(vector):
        raise AssertionError(f"{vector} was made sparse")

    monkeypatch.setattr(sw.SparseVector, "as_sparse", fail)
    for options in ({}, {"name": "seen"}, {"name": "seen"}, {"nnz": 10}, {"algorithm": "dense_ring"}):
        assert (comm.allreduce(x, **options) == x).all()
        assert sw.ALGORITHMS[comm.last.algorithm].dense


def test_unknown_op_is_refused_with_the_known_ones(comm, vector):
    with pytest.raises(sw.InputError, match="unknown op 'product'; known are sum, max, min, avg"):
        comm.allreduce(vector, op="product")


def test_mean_of_integers_is_refused(comm):
    with pytest.raises(sw.InputError, match="use a float dtype"):
        comm.allreduce(np.arange(3), op="avg")


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeout_must_be_positive(comm, vector, timeout):
    with pytest.raises(sw.InputError, match="positive number of seconds"):
        comm.allreduce(vector, timeout=timeout)


@pytest.mark.parametrize("root", [-1, 1])
def test_root_must_be_a_rank(comm, vector, root):
    with pytest.raises(sw.InputError, match=f"root is {root}"):
        comm.broadcast(vector, root=root)
    with pytest.raises(sw.InputError, match=f"root is {root}"):
        comm.reduce(vector, root=root)


def test_root_of_a_broadcast_must_give_something(comm):
    with pytest.raises(sw.InputError, match="gave None"):
        comm.broadcast(None)


def test_input_is_not_written_to(comm):
    x = np.arange(10, dtype="float32")
    x.flags.writeable = False
    for algorithm in ("auto", *sw.ALGORITHMS):
        comm.allreduce(x, algorithm=algorithm)[:] = 0
    assert (x == np.arange(10)).all()


def test_a_closed_communicator_says_so(comm, vector):
    comm.close()
    comm.close()
    with pytest.raises(sw.TransportError, match="closed"):
        comm.allreduce(vector)


def test_the_explained_times_are_those_with_the_ranks_that_only_aggregate(capsys):
    with Communicator(Engine(0, 6, Alone(), aggregators=2), aggregators=2) as comm:
        comm.explain(2**20, 2**10)
        shape = Shape(4, 2**20, 2**10, index_price=comm.network.index_price, aggregators=2)
        assert capsys.readouterr().out == render(Calibration(comm.network), shape) + "\n"
        assert render(Calibration(comm.network), shape) != render(
            Calibration(comm.network), replace(shape, aggregators=0)
        )


def test_repr_names_rank_and_size(comm):
    assert repr(comm) == "Communicator(rank=0, size=1)"


# -- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["auto", "allgather_sum", "split_allgather", "balanced"])
def test_a_rank_that_is_alone_rounds_as_well(comm, algorithm):
    x = np.array([1.0, 1 + 2.0**-20, 0.0, -(2.0**20)], "float32")
    assert comm.allreduce(x, algorithm=algorithm, precision="float16").tolist() == [1.0, 1.0, 0.0, -np.inf]
    assert comm.allreduce(x, algorithm=algorithm, precision="bfloat16").tolist() == [1, 1, 0, -(2.0**20)]
    assert comm.last.precision == "bfloat16"
    comm.allreduce(x, algorithm=algorithm)
    assert comm.last.precision == "exact"


def test_each_call_rounds_by_another_chance_and_the_next_run_alike():
    x = np.linspace(0, 1, 3000, dtype="float32")
    with Communicator(Engine(0, 1, Alone())) as comm:
        first, second = (comm.allreduce(x, precision="qsgd4") for _ in range(2))
        other_seed = comm.allreduce(x, precision=sw.QSGD(4, seed=1))
    with Communicator(Engine(0, 1, Alone())) as comm:
        again = comm.allreduce(x, precision="qsgd4")
    assert (first == again).all()
    assert (first != second).any()
    assert (other_seed != again).any()


def test_feedback_makes_good_in_the_next_calls_what_rounding_left_out(comm):
    x, feedback = np.full(100, 0.01, "float32"), sw.Feedback()
    x[:2] = 1.0, 0.5  # two bits have two magnitudes, and these are three
    total = sum(comm.allreduce(x, precision="qsgd2", feedback=feedback) for _ in range(300))
    assert np.abs(total / 300 - x).max() < 0.02
    assert np.abs(feedback.contribution).max() > 0


def test_what_was_rounded_to_the_nearest_before_the_call_is_sent_as_it_is(comm):
    """A random level would be 0 for most of it, and the caller's feedback knows nothing of that error."""
    values = np.random.default_rng(0).standard_t(2, 1000).astype("float32")
    sent = rounded(sw.SparseVector(9000, range(0, 9000, 9), values), sw.QSGD(2), None)
    got = comm.allreduce(sent, algorithm="allgather_sum", precision="qsgd2")
    assert got.values.tobytes() == sent.values.tobytes()


def test_explain_tells_what_a_precision_saves(comm, capsys):
    comm.explain(1 << 20, 1 << 12, precision="qsgd4")
    text = capsys.readouterr().out
    assert "4 bytes per value, sent as qsgd4" in text
    assert "dense_ring" not in text
    with pytest.raises(sw.InputError, match="unknown precision 'qsgd5'"):
        comm.explain(1 << 20, 1 << 12, precision="qsgd5")


def test_request_with_callbacks_goes_when_nobody_holds_it():
    """Nothing refers to itself: a result would stay until the garbage collector looks for cycles."""
    gc.disable()
    try:
        with sw.init() as comm:
            request = comm.iallreduce(np.ones(4))
            request.add_done_callback(lambda ended: ended.result())
            request.wait()
            gone = weakref.ref(request)
            del request
            comm.iallreduce(np.ones(4)).wait()  # behind it the thread has forgotten the one before
        assert gone() is None
    finally:
        gc.enable()
